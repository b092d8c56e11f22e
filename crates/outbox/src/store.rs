//! The store: every statement the outbox runs, behind one contract that each database keeps.
//!
//! A row's life, and who may change it:
//!
//! ```text
//!               claim: owner, lease, token + 1
//!             ┌───────────────────────────────┐
//!   insert ─▶ NEW ──────────┐                 │      settle, fenced by the token:
//!               │           ├─▶ leased ───────┼─▶ Done   ─▶ DONE ─▶ purged
//!   replay ─▶ (NEW)  RETRY ─┘     │           ├─▶ Retry  ─▶ RETRY (attempts + 1, due later)
//!               ▲      ▲          │           ├─▶ Defer  ─▶ as it was (due later)
//!               │      └── lease ends, release└─▶ Dead   ─▶ DEAD ─▶ replayed, discarded, purged
//! ```
//!
//! **The fence.** Whoever owns a row holds a [`Lease`]: its `seq` and the `token` it had when it was taken. Every later
//! write about that delivery names both. A row that somebody else has taken since has another token; the write then
//! changes nothing and is counted as stale.
//!
//! **The clock.** Every time that decides something (lease, availability, age) is the database's. The application's
//! clock is never sent to it, except for [`Due::At`](crate::Due::At), which a user asked for by name.

mod admin;
mod batch;
mod driver;
mod lane;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod memory;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
mod read;
mod row;
mod share;
mod sql;
#[cfg(feature = "sqlite")]
mod sqlite;
mod statement;
#[cfg(feature = "sqlite")]
mod stranded;
mod view;

use std::time::Duration;

use async_trait::async_trait;

use crate::error::Error;
use crate::event::{Event, EventError, EventId};

#[doc(hidden)]
pub use batch::Batch;
pub(crate) use driver::quote;
#[doc(hidden)]
pub use driver::{Dialect, Driver, Serialized};
pub(crate) use lane::UNBLOCKED_AFTER;
pub use lane::{
    BlockedKey, LANES, LaneRead, LaneRow, LaneRows, LaneSet, LaneShare, Ownership, Unsettled, Wanted, Writers,
};
#[doc(hidden)]
pub use row::{Born, Inserted, NewRow};
pub(crate) use sql::{SqlStore, own_pool};
#[doc(hidden)]
pub use statement::Statement;
pub use view::{Attempt, Filter, Page, Stats, Status, StatusCount, StoredEvent};

/// Stored error texts are cut here.
pub const MAX_ERROR_CHARS: usize = 4000;

/// No delay, lease or age is longer: a hundred years, beyond which calendars of databases end.
pub(crate) const LONGEST_DELAY: Duration = Duration::from_secs(36_500 * 24 * 60 * 60);

/// The right to settle one delivery of a row: void as soon as somebody else takes the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The row: its place in the order of writing.
    pub seq: i64,
    /// The fence: what the row's token was when it was taken.
    pub token: i64,
}

/// Asks for rows that are due and that nobody owns.
#[derive(Clone, Debug)]
pub struct Claim<'a> {
    /// Who will own them: unique among nodes, and new with each start of one.
    pub owner: &'a str,
    /// For how long, unless renewed.
    pub lease: Duration,
    /// How many at most.
    pub limit: usize,
    /// Leaves rows alone that were written less than this ago.
    pub skip_recent: Duration,
    /// Looks only at rows after this place in the order of claiming, a [`Claimed::due_at`] and a `seq` of an earlier claim:
    /// dead index entries before it are not walked over again.
    pub after: Option<(Instant, i64)>,
}

/// An instant of the database's clock, in microseconds since 1970. Only ever compared with others of the same database.
pub type Instant = i64;

/// A row that is now ours.
#[derive(Debug)]
pub struct Claimed {
    /// The right to settle it.
    pub lease: Lease,
    /// The event, or why it is none: another program may have written the row.
    pub event: Result<Event, BadRow>,
    /// Failed attempts so far.
    pub attempts: u32,
    /// The named listeners that have succeeded already.
    pub done_by: Vec<String>,
    /// When it became due, by the database's clock.
    pub due_at: Instant,
    /// How long it has been due, by the database's clock.
    pub lag: Duration,
    /// Whether it was taken over from somebody whose lease had ended.
    pub recovered: bool,
}

impl Claimed {
    /// The id as the row has it, decodable or not.
    pub fn event_id(&self) -> &str {
        match &self.event {
            Ok(event) => event.id().as_str(),
            Err(bad) => &bad.event_id,
        }
    }
}

/// A row that holds no event.
#[derive(Debug)]
pub struct BadRow {
    /// The id as the row has it.
    pub event_id: String,
    /// What is wrong with it.
    pub error: EventError,
}

/// What became of a delivery, to be written to its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The delivery.
    pub lease: Lease,
    /// What became of it.
    pub verdict: Verdict,
    /// The lane that the row was read from, if it was. Some databases find rows faster by it, and none in another lane.
    pub lane: Option<u8>,
}

impl Settlement {
    /// Of a row whose lane is not known, or does not matter.
    pub fn new(lease: Lease, verdict: Verdict) -> Self {
        Self {
            lease,
            verdict,
            lane: None,
        }
    }
}

/// How a delivery ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Delivered: the row stays, as DONE, until it is purged.
    Done,
    /// Delivered: the row goes at once. For a retention of zero.
    DoneAndDeleted,
    /// Failed, to be tried again. The attempt is counted and remembered.
    Retry {
        /// Not before this long from now.
        after: Duration,
        /// Why it failed.
        error: String,
        /// The named listeners that have succeeded so far; they will not be run again.
        done_by: Vec<String>,
    },
    /// Failed for good. The attempt is counted and remembered.
    Dead {
        /// Why.
        error: String,
        /// The named listeners that have succeeded so far; a replay does not run them again.
        done_by: Vec<String>,
    },
    /// Failed for good, and the later events of its key wait until somebody [unblocks](Store::unblock_key) it, or replays or
    /// discards the event.
    DeadAndParked {
        /// Why.
        error: String,
        /// The named listeners that have succeeded so far; a replay does not run them again.
        done_by: Vec<String>,
    },
    /// Put off: nothing failed, nothing is counted.
    Defer {
        /// Not before this long from now.
        after: Duration,
        /// The named listeners that have succeeded so far; they will not be run again.
        done_by: Vec<String>,
    },
}

/// How a batch of settlements went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// How many were written.
    pub applied: u64,
    /// How many were refused, because somebody else has taken the row since, or it is gone.
    pub stale: u64,
}

/// Which finished rows to delete, one bounded step at a time.
#[derive(Clone, Debug)]
pub struct Purge {
    /// [`Status::Done`], [`Status::Dead`] or both. Pending rows are never purged, whatever stands here.
    pub statuses: Vec<Status>,
    /// Only rows that were finished longer than this ago, by the database's clock.
    pub older_than: Duration,
    /// Only events of this type.
    pub event_type: Option<String>,
    /// Counts age from the writing and takes rows of every status: for tables that something else reads (CDC).
    pub by_age_alone: bool,
    /// How many rows one step looks at.
    pub limit: usize,
}

/// What one step of a purge did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purged {
    /// How many rows it deleted.
    pub deleted: u64,
    /// Where the next step goes on; `None` when nothing old enough is left.
    pub next: Option<i64>,
}

/// The tables of one outbox in one database.
///
/// # For implementers
/// Pass the conformance suite ([`testing::conformance`](crate::testing), feature `testing`).
/// - Every method is one atomic step, or says otherwise. A conflict with other transactions (deadlock, busy database) is
///   retried inside, a few times; what is returned as an error is what the caller must wait out.
/// - No two concurrent claims, from any number of processes, return the same row.
/// - A write that names a [`Lease`] changes the row only if its token is still that of the lease.
/// - The cost of `claim`, `settle`, `renew`, `release` and `read_leased` does not grow with the number of DONE rows.
///
/// # For callers
/// Any of these futures may be dropped at any await. The statement it was waiting for then happens or does not: a claim
/// that happened is an unused lease, which ends by itself; a settlement that happened may be repeated, and is then
/// counted as stale.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug + 'static {
    /// The database's name, for logs and metrics: `sqlite`, `postgres`, `mysql`, `memory`.
    fn name(&self) -> &'static str;

    /// The event table's name, for logs and metrics.
    fn table(&self) -> &str;

    /// The version of the tables. Zero: there are none.
    async fn schema_version(&self) -> Result<i64, Error>;

    /// Takes rows that are due and free, the longest due first. The token of each goes up by one.
    async fn claim(&self, claim: &Claim<'_>) -> Result<Vec<Claimed>, Error>;

    /// Reads rows that this node owns under exactly these leases, which end no sooner than `at_least` from now.
    /// Changes nothing. What is missing was rolled back, finished or taken over.
    async fn read_leased(&self, leases: &[Lease], at_least: Duration) -> Result<Vec<Claimed>, Error>;

    /// Writes the outcome of deliveries; each stands for itself, stale ones change nothing. All that are applied are
    /// committed together. What was read from lanes is stale if `owner` is no longer a member.
    async fn settle(&self, owner: &str, by: Ownership, settlements: &[Settlement]) -> Result<Settled, Error>;

    /// Makes leases last `lease` from now, and returns those that were still ours.
    async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Lease>, Error>;

    /// Gives rows back, to be taken at once by anybody. Nothing is counted. Returns how many were still ours.
    async fn release(&self, leases: &[Lease]) -> Result<u64, Error>;

    /// Ends every lease and membership, whoever holds it: for the start of a node that is the only one. Returns how many
    /// events were leased.
    async fn release_all(&self) -> Result<u64, Error>;

    /// One step of a purge over rows with a `seq` greater than `after`.
    async fn purge(&self, purge: &Purge, after: i64) -> Result<Purged, Error>;

    /// Takes, or keeps, the named lease: true if `owner` now has it for `lease` from now. One node at a time.
    async fn lead(&self, name: &str, owner: &str, lease: Duration) -> Result<bool, Error>;

    /// Gives the named lease up.
    async fn resign(&self, name: &str, owner: &str) -> Result<(), Error>;

    /// Shows that a member lives, for `lease` from now, and what it owns of the lanes; with `take`, it takes free ones up to
    /// its fair share. Members whose lease has ended are struck off. `None`: this one was, and what it has read is no
    /// longer its own; it may join again, under another name.
    async fn share_lanes(
        &self,
        member: &str,
        joining: bool,
        lease: Duration,
        take: bool,
    ) -> Result<Option<LaneShare>, Error>;

    /// Gives up lanes of a member that stays one.
    async fn give_up_lanes(&self, member: &str, lanes: LaneSet) -> Result<(), Error>;

    /// Gives up all lanes, and the membership with them.
    async fn leave(&self, member: &str) -> Result<(), Error>;

    /// Reads pending rows of lanes that this node owns, in the order of `seq`. Changes nothing.
    async fn read_lanes(&self, read: &LaneRead<'_>) -> Result<LaneRows, Error>;

    /// What is not done with among the rows after this one. Changes nothing.
    async fn unsettled(&self, after: i64) -> Result<Unsettled, Error>;

    /// Who may still add rows; `None` where the database does not tell.
    async fn writers(&self) -> Result<Option<Writers>, Error> {
        Ok(None)
    }

    /// Keys whose events wait, in the order of the events that hold them back.
    async fn blocked_keys(&self, page: Page) -> Result<Vec<BlockedKey>, Error>;

    /// Lets a key go on, two seconds from now (passes under way leave it out to their end): the event that holds it back is
    /// due, unless it is dead. False if the key was not blocked.
    async fn unblock_key(&self, aggregate_type: &str, aggregate_id: &str) -> Result<bool, Error>;

    /// One event, whatever its status.
    async fn fetch(&self, id: &EventId) -> Result<Option<StoredEvent>, Error>;

    /// The failed attempts of an event, the oldest first.
    async fn attempts(&self, id: &EventId) -> Result<Vec<Attempt>, Error>;

    /// Events that match, in the order of `seq`.
    async fn find(&self, filter: &Filter, page: Page) -> Result<Vec<StoredEvent>, Error>;

    /// How many events match; counts no further than `at_most`.
    async fn count(&self, filter: &Filter, at_most: u64) -> Result<u64, Error>;

    /// Makes DEAD events NEW again, with no attempts and no error, due at once; at most `limit`, in the order of `seq`.
    /// Events of another status are left alone. Returns how many.
    async fn replay(&self, filter: &Filter, limit: usize) -> Result<u64, Error>;

    /// Deletes events that match and that nobody is delivering; at most `limit`, in the order of `seq`. Returns how many.
    async fn discard(&self, filter: &Filter, limit: usize) -> Result<u64, Error>;

    /// How much there is to do. Bounded work, however large the table: counts end at `at_most` per status.
    async fn stats(&self, at_most: u64) -> Result<Stats, Error>;

    /// Tells all processes that deliver from this table. Does nothing where the database cannot.
    async fn notify(&self, _news: News) -> Result<(), Error> {
        Ok(())
    }

    /// Hears of such calls; `None` where the database cannot.
    async fn wakeups(&self) -> Result<Option<Box<dyn Wakeups>>, Error> {
        Ok(None)
    }

    /// Connects, as far as that is not done yet: what is delivered first need not wait for it.
    async fn connect(&self) -> Result<(), Error> {
        Ok(())
    }

    /// How the database plans to run a statement of the hot path, for tests and for the curious.
    #[doc(hidden)]
    async fn explain(&self, statement: Explain) -> Result<String, Error>;
}

/// Calls of [`Store::notify`], as other processes make them.
#[async_trait]
pub trait Wakeups: Send {
    /// Waits for the next one. After an error some may have been missed: ask for a new [`Store::wakeups`].
    async fn next(&mut self) -> Result<News, Error>;
}

/// What processes tell each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// There may be something to deliver.
    Events,
    /// The same; and a node has come or gone, or has given up lanes.
    Lanes,
}

/// The statements whose plan matters.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Explain {
    Claim,
    ReadLanes,
    ReadInOrder,
    ReadLeased,
    Done,
    DoneByOneToken,
    Delete,
    DeleteByOneToken,
    Retry,
    Dead,
    Defer,
    Renew,
    Release,
}

/// Cuts an error text to what the table holds.
pub(crate) fn cut(error: &str) -> String {
    // NUL cannot be stored as text in PostgreSQL.
    error
        .chars()
        .map(|c| if c == '\0' { '\u{fffd}' } else { c })
        .take(MAX_ERROR_CHARS)
        .collect()
}
