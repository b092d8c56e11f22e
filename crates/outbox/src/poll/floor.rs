//! Where a pass may start without missing anything.
//!
//! A pass starts at the first pending row, and before that lie the remains of what was delivered. Normally the database clears
//! them away; while a transaction is held open anywhere, it cannot, and every pass walks over all of them. So, where the
//! database tells who writes, passes start at a *floor*: up to there nothing is pending, and nothing will be, since every
//! transaction that could have added a row has ended.
//!
//! What can be pending below it is what an operator replays. A row that parks its key is not below (see [`Unsettled`]); of
//! any other replay the floor hears within a [`PAUSE`], which is less than a parked key still waits
//! (`UNBLOCKED_AFTER`), and is laid anew. Besides, passes from the very start take a twentieth of the time, and what they find
//! below the floor lowers it: of an outbox that has little to do, they are all there is.

use std::time::Duration;

use tokio::time::Instant;

use super::next_sweep;
use crate::error::Error;
use crate::service::in_time;
use crate::store::{Store, Unsettled, Writers};

/// How often the floor is raised.
const PAUSE: Duration = Duration::from_secs(1);
/// The same where it could not be.
const LONG_PAUSE: Duration = Duration::from_secs(30);
/// A pass from the very start comes at the latest after this long.
const LONGEST_WITHOUT_SWEEP: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct Floor {
    /// Nothing is pending up to this row.
    at: i64,
    /// Who could still add rows, when last asked: the floor is raised when they have ended.
    writers: Option<Writers>,
    /// How often had been replayed then.
    replays: Option<i64>,
    /// When to raise it next.
    raise: Option<Instant>,
    /// Until then, passes start at the floor.
    sweep: Option<Instant>,
    /// Somebody waits for that.
    awaited: bool,
}

impl Floor {
    /// After which row the next pass starts.
    pub(super) async fn start(&mut self, store: &dyn Store) -> i64 {
        let now = Instant::now();
        if self.sweep.is_none_or(|sweep| sweep <= now) {
            return 0;
        }
        if self.raise.is_none_or(|raise| raise <= now) {
            self.raise = Some(now + PAUSE);
            if let Err(error) = self.rise(store).await {
                // It can be done without. A database that cannot be reached, the pass itself will tell of.
                tracing::debug!(%error, "no floor for ordered reading");
                self.tear_down();
                self.raise = Some(now + LONG_PAUSE);
                return 0;
            }
        }
        self.at
    }

    /// How long until a pass must start from the very start, after one that has not. Tells it once.
    pub(super) fn awaits_sweep(&mut self) -> Option<Duration> {
        let sweep = self.sweep.filter(|_| !self.awaited)?;
        self.awaited = true;
        Some(sweep.saturating_duration_since(Instant::now()))
    }

    /// A pass from the very start took so long to find its first rows, of which this is the first.
    pub(super) fn swept(&mut self, took: Duration, first: Option<i64>) {
        self.at = first.map_or(self.at, |first| self.at.min(first - 1));
        self.sweep = Some(Instant::now() + next_sweep(took, 20, LONGEST_WITHOUT_SWEEP));
        self.awaited = false;
    }

    /// Nothing is known for certain any more.
    pub(super) fn tear_down(&mut self) {
        *self = Self {
            raise: self.raise,
            ..Self::default()
        };
    }

    async fn rise(&mut self, store: &dyn Store) -> Result<(), Error> {
        let Some(writers) = in_time("asking who writes", store.writers()).await? else {
            return Ok(());
        };
        let decided = self.decided(writers);
        // Asked after it is known who has ended: what those have written is seen now.
        let unsettled = in_time("reading lanes", store.unsettled(self.at)).await?;
        self.settle(decided, unsettled);
        Ok(())
    }

    /// Up to where all rows can be seen that ever will be; `None` if it is not known to be further than before.
    fn decided(&mut self, now: Writers) -> Option<i64> {
        let before = self.writers.get_or_insert_with(|| now.clone());
        if before.server != now.server || now.last_seq < self.at {
            self.tear_down();
            return None;
        }
        if !before.transactions.is_disjoint(&now.transactions) {
            return None;
        }
        Some(std::mem::replace(before, now).last_seq)
    }

    fn settle(&mut self, decided: Option<i64>, unsettled: Unsettled) {
        if self.replays.replace(unsettled.replays) != Some(unsettled.replays) {
            self.at = 0;
        } else if let Some(decided) = decided {
            let clear = unsettled.first.map_or(decided, |first| decided.min(first - 1));
            self.at = self.at.max(clear);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::{Memory, MemoryPool};
    use crate::{Backend, TableName};

    fn writers(last_seq: i64, transactions: &[&str]) -> Writers {
        Writers {
            server: 1,
            last_seq,
            transactions: transactions.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    fn unsettled(first: Option<i64>, replays: i64) -> Unsettled {
        Unsettled { first, replays }
    }

    #[test]
    fn a_row_is_decided_when_all_who_wrote_when_it_was_seen_have_ended() {
        let mut floor = Floor::default();
        assert_eq!(floor.decided(writers(10, &["slow", "quick"])), None);
        assert_eq!(floor.decided(writers(20, &["slow", "another"])), None);
        assert_eq!(floor.decided(writers(30, &["slow"])), None, "however often it is asked");
        assert_eq!(
            floor.decided(writers(40, &["late"])),
            Some(10),
            "and no further than that"
        );
        assert_eq!(floor.decided(writers(50, &["late"])), None);
        assert_eq!(floor.decided(writers(60, &[])), Some(40));
        assert_eq!(floor.decided(writers(70, &[])), Some(60));
    }

    /// As after a look at which nothing was pending up to 50.
    fn laid() -> Floor {
        let mut floor = Floor::default();
        floor.decided(writers(50, &[]));
        floor.settle(None, unsettled(None, 3));
        let decided = floor.decided(writers(60, &[]));
        floor.settle(decided, unsettled(None, 3));
        assert_eq!(floor.at, 50);
        floor
    }

    #[test]
    fn the_floor_stays_below_what_is_not_done_with() {
        let mut floor = laid();
        floor.settle(Some(60), unsettled(Some(56), 3));
        assert_eq!(floor.at, 55);
        floor.settle(None, unsettled(Some(80), 3));
        assert_eq!(floor.at, 55, "somebody may still add rows");
        floor.settle(Some(70), unsettled(Some(80), 3));
        assert_eq!(floor.at, 70);
    }

    #[test]
    fn a_replay_and_what_a_sweep_finds_lower_it() {
        let mut floor = laid();
        floor.settle(Some(60), unsettled(None, 4));
        assert_eq!(floor.at, 0);
        let mut floor = laid();
        floor.swept(Duration::from_secs(1), Some(20));
        assert_eq!(floor.at, 19);
    }

    #[test]
    fn another_server_and_a_table_made_anew_tear_it_down() {
        let mut floor = laid();
        let another = Writers {
            server: 2,
            ..writers(70, &[])
        };
        assert_eq!((floor.decided(another), floor.at), (None, 0));
        let mut floor = laid();
        assert_eq!((floor.decided(writers(7, &[])), floor.at), (None, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pass_from_the_very_start_takes_a_twentieth_of_the_time() {
        let (pool, table) = (MemoryPool::new(), TableName::default());
        let store = <Memory as Backend>::store(&pool, &table);
        let mut floor = laid();
        assert_eq!(floor.start(&*store).await, 0, "the first one");
        floor.swept(Duration::from_millis(100), None);
        tokio::time::advance(Duration::from_millis(1_999)).await;
        assert_eq!(floor.start(&*store).await, 50);
        assert_eq!(floor.awaits_sweep(), Some(Duration::from_millis(1)));
        assert_eq!(floor.awaits_sweep(), None, "told once");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(floor.start(&*store).await, 0);
        floor.swept(Duration::from_secs(60), None);
        tokio::time::advance(LONGEST_WITHOUT_SWEEP).await;
        assert_eq!(floor.start(&*store).await, 0, "and in the end in any case");
    }
}
