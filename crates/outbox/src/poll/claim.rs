//! Row claims: each row is taken by itself, so that nodes help each other row by row.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{SLACK, Step, next_sweep};
use crate::dispatch::Dispatcher;
use crate::error::Error;
use crate::service::in_time;
use crate::store::{Claim, Claimed, Lease, Store};

/// A sweep from the very start comes at the latest after this long: what a dead node has left is found by it, and what was
/// committed late.
const LONGEST_WITHOUT_SWEEP: Duration = Duration::from_secs(15);

pub(crate) struct Claims {
    pub(crate) owner: String,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) skip_recent: Duration,
    pub(crate) sweep: Sweep,
}

/// Where to start reading. Behind the mark lies what was delivered, and, while some transaction keeps the database from
/// cleaning up, its remains; walking over them again and again is what makes pollers slow down. So most polls start at the
/// mark, and while there is more and more to claim, each goes on where the last one ended. A sweep from the very start finds
/// what became visible late; it may take a twentieth of the time.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    mark: Option<Place>,
    /// Where the last claim ended, if there was more.
    end: Option<Place>,
    /// When to look at what lies between the mark and that end.
    look_back: Option<Instant>,
    next: Option<Instant>,
}

/// In the order of claiming: when a row is due, and its seq.
type Place = (i64, i64);

impl Sweep {
    fn after(&mut self) -> Option<Place> {
        let now = Instant::now();
        if self.next.is_none_or(|next| next <= now) {
            return None;
        }
        if self.end.is_some() && self.look_back.is_some_and(|look_back| now < look_back) {
            return self.end;
        }
        self.look_back = Some(now + SLACK);
        self.mark
    }

    fn swept(&mut self, took: Duration) {
        self.next = Some(Instant::now() + next_sweep(took, LONGEST_WITHOUT_SWEEP));
    }

    /// As many as were asked for, of which this was the last.
    fn more_after(&mut self, last: &Claimed) {
        let place = (last.due_at, last.lease.seq);
        let young = SLACK.saturating_sub(last.lag);
        let mark = match young.is_zero() {
            true => place,
            false => (last.due_at - young.as_micros() as i64, 0),
        };
        self.mark = self.mark.max(Some(mark));
        self.end = Some(place);
    }
}

impl Claims {
    /// Claims up to `limit` rows.
    pub(super) async fn read(&mut self, limit: usize) -> Result<Step, Error> {
        let after = self.sweep.after();
        let lease = self.dispatcher.lease;
        let claim = Claim {
            owner: &self.owner,
            lease,
            limit,
            skip_recent: self.skip_recent,
            after,
        };
        let claiming = self.dispatcher.claiming.lock().await;
        // Measured before the database starts the lease by its own clock, so ours ends first.
        let started = Instant::now();
        let rows = in_time("claiming events", self.store.claim(&claim)).await?;
        self.sweep.end = None;
        if let Some(last) = rows.last().filter(|_| rows.len() == limit) {
            self.sweep.more_after(last);
        }
        if after.is_none() {
            self.sweep.swept(started.elapsed());
            // Between here and the mark there may be nothing but remains.
            self.sweep.end = None;
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
