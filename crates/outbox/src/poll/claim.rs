//! Row claims: each row is taken by itself, so that nodes help each other row by row.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Batch, SLACK, next_sweep};
use crate::dispatch::Dispatcher;
use crate::error::Error;
use crate::service::in_time;
use crate::store::{Claim, Store};

/// A sweep from the very start comes at the latest after this long: what a dead node has left is found by it, and what was
/// committed late.
const LONGEST_WITHOUT_SWEEP: Duration = Duration::from_secs(15);

/// While there is more and more to claim, sweeps take a hundredth of the time: the pages of rows long delivered are read again by
/// them, and those of rows to come have to make room.
const WHILE_DRAINING: u32 = 100;
/// Otherwise a twentieth: what others have let go again is all that is left.
const AT_REST: u32 = 20;

/// How many batches further on a node goes where others claim as well; by chance, or they would all meet again.
const AHEAD: RangeInclusive<i64> = 4..=32;

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
/// what became visible late; it may take a part of the time.
///
/// Nodes that go on side by side meet in every claim, and the database has to pass over what the other one is just locking,
/// row by row: a tenth of the time of a claim, for each of them. So a node that has come upon others goes on somewhere ahead.
/// The mark stays, and with it what was left out: it is looked at again as soon as there is nothing ahead, and as often as
/// anything that was committed late.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    mark: Option<Place>,
    /// Where the last claim ended, if there was more, or a place ahead of that.
    next: Option<Start>,
    /// When to look at what lies between the mark and that place.
    look_back: Option<Instant>,
    /// There was nothing ahead: not tried again before then.
    stay_until: Option<Instant>,
    /// When the last sweep was, and how long it took.
    swept: Option<(Instant, Duration)>,
}

/// In the order of claiming: when a row is due, and its seq.
type Place = (i64, i64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Start {
    /// The very start, if none.
    after: Option<Place>,
    /// Right behind the last claim: what lies between them, others have taken.
    goes_on: bool,
    /// Something was left out between the mark and this.
    ahead: bool,
}

/// As many rows as were asked for.
#[derive(Clone, Copy, Debug)]
struct Full {
    last: Place,
    rows: i64,
    /// For how long the last one has been due.
    lag: Duration,
}

impl Sweep {
    fn start(&mut self) -> Start {
        let now = Instant::now();
        let from = |after| Start {
            after,
            goes_on: false,
            ahead: false,
        };
        let parts = if self.next.is_some() { WHILE_DRAINING } else { AT_REST };
        let rest = |took| next_sweep(took, parts, LONGEST_WITHOUT_SWEEP);
        if self.swept.is_none_or(|(at, took)| at + rest(took) <= now) {
            return from(None);
        }
        match self.next {
            Some(start) if self.look_back.is_some_and(|look_back| now < look_back) => start,
            _ => {
                self.look_back = Some(now + SLACK);
                from(self.mark)
            }
        }
    }

    /// After a claim that took so long. Returns whether there may be more.
    fn claimed(&mut self, start: Start, took: Duration, full: Option<Full>) -> bool {
        let now = Instant::now();
        self.next = None;
        if start.after.is_none() {
            self.swept = Some((now, took));
        }
        let Some(full) = full else {
            if start.ahead {
                self.stay_until = Some(now + SLACK);
            }
            return start.ahead;
        };
        if !start.ahead {
            let young = SLACK.saturating_sub(full.lag);
            let mark = match young.is_zero() {
                true => full.last,
                false => (full.last.0 - young.as_micros() as i64, 0),
            };
            self.mark = self.mark.max(Some(mark));
        }
        let ahead = match start.after {
            // Between here and the mark there may be nothing but remains.
            None => return true,
            Some(after) if start.goes_on && self.stay_until.is_none_or(|until| until <= now) => {
                ahead_of_others(after, full, rand::random_range(AHEAD))
            }
            Some(_) => None,
        };
        self.next = Some(Start {
            after: Some(ahead.unwrap_or(full.last)),
            goes_on: ahead.is_none(),
            ahead: start.ahead || ahead.is_some(),
        });
        true
    }
}

/// So many batches on, if others have taken half as much as this claim, right before it: where that is follows from how much
/// lay between its start and its end. None, if nothing is due there yet.
fn ahead_of_others(after: Place, full: Full, batches: i64) -> Option<Place> {
    let passed = full.last.1.saturating_sub(after.1);
    if passed < full.rows + full.rows / 2 {
        return None;
    }
    let further = full.rows.saturating_mul(batches);
    let time = i128::from(full.last.0.saturating_sub(after.0)) * i128::from(further) / i128::from(passed);
    match u64::try_from(time) {
        // All of them are due at one time.
        Ok(0) | Err(_) => Some((full.last.0, full.last.1.saturating_add(further))),
        Ok(micros) if Duration::from_micros(micros) < full.lag => Some((full.last.0 + micros.cast_signed(), 0)),
        Ok(_) => None,
    }
}

impl Claims {
    /// Claims up to `limit` rows.
    pub(super) async fn read(&mut self, limit: usize) -> Result<Batch, Error> {
        let start = self.sweep.start();
        let lease = self.dispatcher.lease;
        let claim = Claim {
            owner: &self.owner,
            lease,
            limit,
            skip_recent: self.skip_recent,
            after: start.after,
        };
        let claiming = self.dispatcher.claiming.lock().await;
        // Measured before the database starts the lease by its own clock, so ours ends first.
        let started = Instant::now();
        let rows = in_time("claiming events", self.store.claim(&claim)).await?;
        let full = rows.last().filter(|_| rows.len() == limit).map(|last| Full {
            last: (last.due_at, last.lease.seq),
            rows: limit as i64,
            lag: last.lag,
        });
        let more = self.sweep.claimed(start, started.elapsed(), full);
        let recovered = rows.iter().filter(|row| row.recovered).count();
        self.dispatcher.telemetry.recovered.increment(recovered as u64);
        let leases = rows.iter().map(|row| row.lease);
        let admissions = self.dispatcher.in_flight.admit_all(leases, started + lease);
        drop(claiming);
        let rows = admissions.into_iter().zip(rows);
        let rows = rows.filter_map(|(admission, row)| Some((admission?, row))).collect();
        Ok(Batch {
            rows,
            more,
            ..Batch::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const LONG_AGO: Duration = Duration::from_secs(10);

    /// As after a first sweep that took a second.
    fn swept() -> Sweep {
        let mut sweep = Sweep::default();
        let start = sweep.start();
        assert_eq!(start.after, None, "the first is from the very start");
        sweep.claimed(start, Duration::from_secs(1), None);
        sweep
    }

    /// A claim that finds as many rows as it asked for. Returns where it started.
    fn claim(sweep: &mut Sweep, last: Place, lag: Duration) -> Option<Place> {
        let start = sweep.start();
        let full = Full { last, rows: 500, lag };
        assert!(sweep.claimed(start, Duration::ZERO, Some(full)));
        start.after
    }

    /// Rows that are written in one go are due at one time. Found by `held-transaction`: each claim walked over all of them.
    #[tokio::test(start_paused = true)]
    async fn a_drain_goes_on_where_the_last_claim_ended_also_among_rows_due_at_one_time() {
        let mut sweep = swept();
        sweep.mark = Some((6_800_000, 0));
        assert_eq!(
            claim(&mut sweep, (7_000_000, 500), Duration::ZERO),
            Some((6_800_000, 0))
        );
        assert_eq!(
            claim(&mut sweep, (7_000_000, 1_000), Duration::ZERO),
            Some((7_000_000, 500))
        );
        assert_eq!(
            claim(&mut sweep, (7_000_000, 1_500), Duration::ZERO),
            Some((7_000_000, 1_000))
        );
        tokio::time::advance(SLACK).await;
        assert_eq!(
            sweep.start().after,
            Some((6_800_000, 0)),
            "what was committed late is found"
        );
        sweep.next = None;
        assert_eq!(
            sweep.start().after,
            Some((6_800_000, 0)),
            "and when nothing is left, at once"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_long_been_due_is_not_looked_at_again() {
        let mut sweep = swept();
        sweep.mark = Some((1, 0));
        claim(&mut sweep, (7_000_000, 500), LONG_AGO);
        tokio::time::advance(SLACK).await;
        assert_eq!(claim(&mut sweep, (5_000_000, 9), LONG_AGO), Some((7_000_000, 500)));
        sweep.next = None;
        assert_eq!(sweep.start().after, Some((7_000_000, 500)), "the mark never goes back");
    }

    #[tokio::test(start_paused = true)]
    async fn a_sweep_takes_a_part_of_the_time_and_comes_in_the_end() {
        let mut sweep = Sweep::default();
        let start = sweep.start();
        sweep.claimed(start, Duration::from_millis(100), None);
        sweep.mark = Some((1, 0));
        tokio::time::advance(Duration::from_millis(1_999)).await;
        assert!(sweep.start().after.is_some());
        claim(&mut sweep, (7_000_000, 500), LONG_AGO);
        tokio::time::advance(Duration::from_millis(8_000)).await;
        assert!(
            sweep.start().after.is_some(),
            "while there is more to claim, a hundredth"
        );
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(sweep.start().after, None);
        sweep.next = None;
        sweep.swept = Some((Instant::now(), Duration::from_millis(100)));
        tokio::time::advance(Duration::from_millis(2_000)).await;
        let start = sweep.start();
        assert_eq!(start.after, None, "when nothing is left, a twentieth");
        sweep.claimed(start, Duration::from_secs(3_600), None);
        tokio::time::advance(LONGEST_WITHOUT_SWEEP).await;
        assert_eq!(sweep.start().after, None);
    }

    #[test]
    fn who_comes_upon_others_goes_on_ahead_of_them() {
        let full = |last, lag| Full { last, rows: 500, lag };
        let after = (7_000_000, 500);
        let alone = full((7_005_000, 1_000), LONG_AGO);
        assert_eq!(ahead_of_others(after, alone, 8), None);
        let beside_one = full((7_010_000, 1_500), LONG_AGO);
        assert_eq!(
            ahead_of_others(after, beside_one, 8),
            Some((7_050_000, 0)),
            "4,000 rows on"
        );
        let just_due = full((7_010_000, 1_500), Duration::from_millis(30));
        assert_eq!(ahead_of_others(after, just_due, 8), None, "nothing is due there yet");
        let at_one_time = full((7_000_000, 1_500), LONG_AGO);
        assert_eq!(ahead_of_others(after, at_one_time, 8), Some((7_000_000, 5_500)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_left_out_is_looked_at_when_there_is_nothing_ahead_and_before_long() {
        let mut sweep = swept();
        sweep.mark = Some((1, 0));
        claim(&mut sweep, (7_000_000, 500), LONG_AGO);
        claim(&mut sweep, (7_000_000, 1_500), LONG_AGO);
        let ahead = sweep.start();
        assert!(ahead.ahead && ahead.after > Some((7_000_000, 3_000)), "{ahead:?}");
        claim(&mut sweep, (7_000_000, 30_000), LONG_AGO);
        assert_eq!(sweep.mark, Some((7_000_000, 1_500)), "not passed over");
        tokio::time::advance(SLACK).await;
        assert_eq!(sweep.start().after, sweep.mark, "before long");

        sweep.next = Some(ahead);
        assert!(sweep.claimed(ahead, Duration::ZERO, None), "there is more, behind");
        assert_eq!(sweep.start().after, sweep.mark, "at once");
        claim(&mut sweep, (7_000_000, 2_000), LONG_AGO);
        claim(&mut sweep, (7_000_000, 3_000), LONG_AGO);
        assert_eq!(
            sweep.start().after,
            Some((7_000_000, 3_000)),
            "not tried again for a while"
        );
    }

    /// However nodes cross each other's ways: when each of them says that there is no more, there is none, and they need not
    /// wait for a sweep.
    #[tokio::test(start_paused = true)]
    async fn nodes_leave_nothing_out() {
        const BATCH: usize = 10;
        for times in [1, 7, i64::MAX] {
            for nodes in 1..=4 {
                let mut rows: BTreeSet<Place> = (1..=5_000).map(|seq| (seq / times, seq)).collect();
                let mut sweeps: Vec<Sweep> = std::iter::repeat_with(swept).take(nodes).collect();
                sweeps.iter_mut().for_each(|sweep| sweep.mark = Some((-1, 0)));
                let mut claims = 0;
                while !rows.is_empty() {
                    let sweep = &mut sweeps[rand::random_range(0..nodes)];
                    let start = sweep.start();
                    let after = start.after.expect("no sweep is due");
                    let taken: Vec<Place> = rows.range((after.0, after.1 + 1)..).take(BATCH).copied().collect();
                    rows.retain(|row| !taken.contains(row));
                    let full = taken.last().filter(|_| taken.len() == BATCH);
                    let full = full.map(|last| Full {
                        last: *last,
                        rows: BATCH as i64,
                        lag: LONG_AGO,
                    });
                    let more = sweep.claimed(start, Duration::ZERO, full);
                    assert!(more || rows.is_empty(), "{} rows are left out", rows.len());
                    claims += 1;
                }
                assert!(claims < 700, "{claims} claims of {nodes} nodes");
            }
        }
    }
}
