//! Row claims: each row is taken by itself, so that nodes help each other row by row.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{SLACK, Step, next_sweep};
use crate::dispatch::Dispatcher;
use crate::error::Error;
use crate::service::in_time;
use crate::store::{Claim, Lease, Store};

pub(crate) struct Claims {
    pub(crate) owner: String,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) skip_recent: Duration,
    pub(crate) sweep: Sweep,
}

/// Where to start reading. Behind the mark lies what was delivered, and, while some transaction keeps the database from
/// cleaning up, its remains; walking over them again and again is what makes pollers slow down. So most polls start at the
/// mark. A sweep from the very start finds what became visible late; it may take a twentieth of the time.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    mark: Option<i64>,
    next: Option<Instant>,
}

impl Sweep {
    fn from(&self) -> Option<i64> {
        match self.next {
            Some(next) if Instant::now() < next => self.mark,
            _ => None,
        }
    }

    fn swept(&mut self, took: Duration) {
        self.next = Some(Instant::now() + next_sweep(took));
    }

    fn claimed_up_to(&mut self, due_at: i64, lag: Duration) {
        let slack = SLACK.saturating_sub(lag).as_micros() as i64;
        self.mark = self.mark.max(Some(due_at - slack));
    }
}

impl Claims {
    /// Claims up to `limit` rows.
    pub(super) async fn read(&mut self, limit: usize) -> Result<Step, Error> {
        let from = self.sweep.from();
        let lease = self.dispatcher.lease;
        let claim = Claim {
            owner: &self.owner,
            lease,
            limit,
            skip_recent: self.skip_recent,
            from,
        };
        let claiming = self.dispatcher.claiming.lock().await;
        // Measured before the database starts the lease by its own clock, so ours ends first.
        let started = Instant::now();
        let rows = in_time("claiming events", self.store.claim(&claim)).await?;
        if from.is_none() {
            self.sweep.swept(started.elapsed());
        }
        if let Some(last) = rows.last().filter(|_| rows.len() == limit) {
            self.sweep.claimed_up_to(last.due_at, last.lag);
        }
        let claimed = rows.len();
        let recovered = rows.iter().filter(|row| row.recovered).count();
        self.dispatcher.telemetry.recovered.increment(recovered as u64);
        let admitted: Vec<_> = rows
            .into_iter()
            .filter_map(|row| Some((self.dispatcher.in_flight.admit(row.lease, started + lease)?, row)))
            .collect();
        // Not while queueing, which may wait for the settler, which may wait for this.
        drop(claiming);
        let leases: Vec<Lease> = admitted.iter().map(|(_, row)| row.lease).collect();
        let no_room = self.dispatcher.enqueue_cold(admitted).await;
        // Only a shutdown closes a queue that had room.
        if !no_room.is_empty() {
            let leases = leases.into_iter();
            let leases: Vec<Lease> = leases
                .filter(|lease| no_room.iter().any(|one| one.seq == lease.seq))
                .collect();
            in_time("releasing leases", self.store.release(&leases)).await?;
        }
        Ok(Step {
            found: claimed,
            more: claimed == limit,
        })
    }
}
