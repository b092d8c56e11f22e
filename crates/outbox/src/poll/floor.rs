//! Where a pass may start without missing anything.
//!
//! A pass starts at the first pending row, and before that lie the remains of what was delivered. Normally the database clears
//! them away; while a transaction is held open anywhere, it cannot, and every pass walks over all of them. So, where the
//! database tells who writes, passes start at a *floor*: up to there nothing is pending, and nothing will be, since every
//! transaction that could have added a row has ended. Only an operator can make a row below it pending again, by a replay;
//! and one that parks its key is not below it (see [`Store::first_unsettled`]). Those are found by passes from the very start,
//! which may take a twentieth of the time: of an outbox that has little to do, they are all there is.

use std::time::Duration;

use tokio::time::Instant;

use super::next_sweep;
use crate::error::Error;
use crate::service::in_time;
use crate::store::{Store, Writers};

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
    /// When to raise it next.
    raise: Option<Instant>,
    /// Until then, passes start at the floor.
    sweep: Option<Instant>,
}

impl Floor {
    /// After which row the next pass starts.
    pub(super) async fn start(&mut self, store: &dyn Store) -> i64 {
        let now = Instant::now();
        if self.sweep.is_none_or(|sweep| sweep <= now) {
            return 0;
        }
        if self.raise.is_none_or(|raise| raise <= now) {
            let risen = self.rise(store).await;
            // It is safe where it is, and may stay there: a database that cannot be reached, the pass itself will tell of.
            if let Err(error) = &risen {
                tracing::debug!(%error, "the floor of ordered reading stays where it is");
            }
            self.raise = Some(now + if risen.is_ok() { PAUSE } else { LONG_PAUSE });
        }
        self.at
    }

    /// A pass from the very start took so long to find its first rows.
    pub(super) fn swept(&mut self, took: Duration) {
        self.sweep = Some(Instant::now() + next_sweep(took, LONGEST_WITHOUT_SWEEP));
    }

    async fn rise(&mut self, store: &dyn Store) -> Result<(), Error> {
        let Some(writers) = in_time("asking who writes", store.writers()).await? else {
            return Ok(());
        };
        if let Some(decided) = self.decided(writers) {
            let first = in_time("reading lanes", store.first_unsettled(self.at)).await?;
            self.at = self.at.max(first.map_or(decided, |first| decided.min(first - 1)));
        }
        Ok(())
    }

    /// Up to where all rows can be seen that ever will be; `None` if it is no further than before.
    fn decided(&mut self, now: Writers) -> Option<i64> {
        let before = self.writers.get_or_insert_with(|| now.clone());
        if !before.transactions.is_disjoint(&now.transactions) {
            return None;
        }
        Some(std::mem::replace(before, now).last_seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::{Memory, MemoryPool};
    use crate::{Backend, TableName};

    fn writers(last_seq: i64, transactions: &[&str]) -> Writers {
        Writers {
            last_seq,
            transactions: transactions.iter().map(|name| (*name).to_owned()).collect(),
        }
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

    #[tokio::test(start_paused = true)]
    async fn a_pass_from_the_very_start_takes_a_twentieth_of_the_time() {
        let (pool, table) = (MemoryPool::new(), TableName::default());
        let store = <Memory as Backend>::store(&pool, &table);
        let mut floor = Floor {
            at: 7,
            ..Floor::default()
        };
        assert_eq!(floor.start(&*store).await, 0, "the first one");
        floor.swept(Duration::from_millis(100));
        tokio::time::advance(Duration::from_millis(1_999)).await;
        assert_eq!(floor.start(&*store).await, 7);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(floor.start(&*store).await, 0);
        floor.swept(Duration::from_secs(60));
        tokio::time::advance(LONGEST_WITHOUT_SWEEP).await;
        assert_eq!(floor.start(&*store).await, 0, "and in the end in any case");
    }
}
