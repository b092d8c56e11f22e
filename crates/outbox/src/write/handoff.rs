use std::fmt;

use tokio::time::Instant;

use crate::event::Event;
use crate::store::{Born, Lease};

/// Where events go from memory once their transaction is decided. Never blocks, never fails: whatever it cannot take
/// is found in the table.
pub(crate) trait Handoff: Send + Sync + fmt::Debug {
    /// Who will own the rows of the next insert. `None`: nobody here delivers.
    fn born(&self) -> Option<Born<'_>>;

    /// Committed, says the database.
    fn committed(&self, events: Vec<Committed>);

    /// Perhaps committed: to be looked up by their leases. Each with the instant at which it ends, at the earliest.
    fn unconfirmed(&self, leases: Vec<(Lease, Instant)>);
}

/// An event that is in the table for certain.
#[derive(Debug)]
pub(crate) struct Committed {
    /// `None` for an event that is not to be delivered from memory.
    pub(crate) lease: Option<Lease>,
    pub(crate) event: Event,
    /// When the lease ends, at the earliest.
    pub(crate) deadline: Instant,
}
