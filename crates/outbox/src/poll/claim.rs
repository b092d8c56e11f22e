//! Row claims: each row is taken by itself, so that nodes help each other row by row.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{SLACK, Step, next_sweep};
use crate::dispatch::Dispatcher;
use crate::error::Error;
use crate::service::in_time;
use crate::store::{Claim, Lease, Store};

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

    /// As many as were asked for, of which this was the last; it had been due for so long.
    fn more_after(&mut self, last: Place, lag: Duration) {
        let young = SLACK.saturating_sub(lag);
        let mark = match young.is_zero() {
            true => last,
            false => (last.0 - young.as_micros() as i64, 0),
        };
        self.mark = self.mark.max(Some(mark));
        self.end = Some(last);
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
            self.sweep.more_after((last.due_at, last.lease.seq), last.lag);
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

#[cfg(test)]
mod tests {
    use super::*;

    const LONG_AGO: Duration = Duration::from_secs(10);

    /// As after a first sweep that took a second.
    fn swept() -> Sweep {
        let mut sweep = Sweep::default();
        assert_eq!(sweep.after(), None, "the first is from the very start");
        sweep.swept(Duration::from_secs(1));
        sweep
    }

    /// Rows that are written in one go are due at one time. Found by `held-transaction`: each claim walked over all of them.
    #[tokio::test(start_paused = true)]
    async fn a_drain_goes_on_where_the_last_claim_ended_also_among_rows_due_at_one_time() {
        let mut sweep = swept();
        for seq in [500, 1_000, 1_500] {
            sweep.more_after((7_000_000, seq), Duration::ZERO);
            if seq > 500 {
                assert_eq!(sweep.after(), Some((7_000_000, seq)));
            } else {
                assert_eq!(sweep.after(), Some((6_800_000, 0)), "the first look back");
            }
        }
        tokio::time::advance(SLACK).await;
        assert_eq!(sweep.after(), Some((6_800_000, 0)), "what was committed late is found");
        sweep.end = None;
        assert_eq!(sweep.after(), Some((6_800_000, 0)), "and when nothing is left, at once");
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_long_been_due_is_not_looked_at_again() {
        let mut sweep = swept();
        sweep.more_after((7_000_000, 500), LONG_AGO);
        tokio::time::advance(SLACK).await;
        assert_eq!(sweep.after(), Some((7_000_000, 500)));
        sweep.more_after((5_000_000, 9), LONG_AGO);
        sweep.end = None;
        assert_eq!(sweep.after(), Some((7_000_000, 500)), "the mark never goes back");
    }

    #[tokio::test(start_paused = true)]
    async fn a_sweep_takes_a_twentieth_of_the_time_and_comes_in_the_end() {
        let mut sweep = Sweep::default();
        sweep.swept(Duration::from_millis(100));
        sweep.more_after((7_000_000, 500), LONG_AGO);
        tokio::time::advance(Duration::from_millis(1_999)).await;
        assert!(sweep.after().is_some());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(sweep.after(), None);
        sweep.swept(Duration::from_secs(3_600));
        tokio::time::advance(LONGEST_WITHOUT_SWEEP).await;
        assert_eq!(sweep.after(), None);
    }
}
