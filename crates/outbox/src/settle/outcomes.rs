use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::dispatch::Admission;
use crate::store::Verdict;

/// What became of an event, on its way to its row.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) admission: Admission,
    pub(crate) verdict: Verdict,
}

/// Outcomes that wait to be written: as many as two writes take, so that workers go on while one is waited for. Then they wait;
/// the settler is woken when there are as many as it wants, and not for each.
#[derive(Debug)]
pub(crate) struct Outcomes {
    state: Mutex<State>,
    /// The most that one write takes.
    batch: usize,
    /// There are as many as the settler wants.
    enough: Notify,
    /// Some were taken, or no more are.
    room: Notify,
}

#[derive(Debug)]
struct State {
    waiting: Vec<Outcome>,
    wanted: usize,
    closed: bool,
}

impl Outcomes {
    pub(crate) fn new(batch: usize) -> Self {
        Self {
            state: Mutex::new(State {
                waiting: Vec::new(),
                wanted: 1,
                closed: false,
            }),
            batch,
            enough: Notify::new(),
            room: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for room. Gives the outcome back if no more are taken; dropped before that, it is lost.
    pub(crate) async fn put(&self, outcome: Outcome) -> Result<(), Outcome> {
        // Most of the time there is room, and nothing to wait for.
        let Err(mut outcome) = self.try_put(outcome)? else {
            return Ok(());
        };
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            // Registered before looking again, so that nothing that happens in between is missed.
            room.as_mut().enable();
            match self.try_put(outcome)? {
                Ok(()) => return Ok(()),
                Err(given_back) => outcome = given_back,
            }
            room.await;
        }
    }

    /// Outer error: no more are taken. Inner one: there is no room.
    fn try_put(&self, outcome: Outcome) -> Result<Result<(), Outcome>, Outcome> {
        let mut state = self.state();
        if state.closed {
            return Err(outcome);
        }
        if state.waiting.len() >= self.capacity() {
            return Ok(Err(outcome));
        }
        state.waiting.push(outcome);
        let enough = state.waiting.len() == state.wanted;
        drop(state);
        if enough {
            self.enough.notify_one();
        }
        Ok(Ok(()))
    }

    fn capacity(&self) -> usize {
        2 * self.batch
    }

    pub(super) fn len(&self) -> usize {
        self.state().waiting.len()
    }

    /// Returns when there are so many, no more than there is room for. Only one may wait at a time.
    pub(super) async fn at_least(&self, wanted: usize) {
        loop {
            {
                let mut state = self.state();
                state.wanted = wanted;
                if state.waiting.len() >= wanted {
                    return;
                }
            }
            self.enough.notified().await;
        }
    }

    /// As many as one write takes, in the order they came.
    pub(super) fn take(&self) -> Vec<Outcome> {
        let mut state = self.state();
        let waiting = state.waiting.len();
        let rest = state.waiting.split_off(waiting.min(self.batch));
        let taken = std::mem::replace(&mut state.waiting, rest);
        drop(state);
        if waiting >= self.capacity() {
            self.room.notify_waiters();
        }
        taken
    }

    /// No more are taken.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.room.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::dispatch::InFlight;
    use crate::store::Lease;

    const SOON: Duration = Duration::from_secs(10);

    fn outcome(seq: i64) -> Outcome {
        Outcome {
            admission: InFlight::default()
                .admit(Lease { seq, token: 0 }, Instant::now())
                .unwrap(),
            verdict: Verdict::Done,
        }
    }

    fn seqs(outcomes: &[Outcome]) -> Vec<i64> {
        outcomes.iter().map(|outcome| outcome.admission.seq).collect()
    }

    #[tokio::test]
    async fn they_come_in_the_order_they_were_put_and_as_many_as_one_write_takes() {
        let outcomes = Outcomes::new(3);
        for seq in 1..=5 {
            outcomes.put(outcome(seq)).await.unwrap();
        }
        outcomes.at_least(3).await;
        assert_eq!(seqs(&outcomes.take()), [1, 2, 3]);
        assert_eq!(seqs(&outcomes.take()), [4, 5]);
        assert!(outcomes.take().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_finds_no_room_waits_until_some_are_taken() {
        let outcomes = Outcomes::new(1);
        outcomes.put(outcome(1)).await.unwrap();
        outcomes.put(outcome(2)).await.unwrap();
        let mut third = std::pin::pin!(outcomes.put(outcome(3)));
        assert!(timeout(SOON, third.as_mut()).await.is_err());
        assert_eq!(seqs(&outcomes.take()), [1]);
        timeout(SOON, third).await.unwrap().unwrap();
        assert_eq!(seqs(&outcomes.take()), [2]);
        assert_eq!(seqs(&outcomes.take()), [3]);
    }

    #[tokio::test]
    async fn none_is_taken_after_the_end() {
        let outcomes = Arc::new(Outcomes::new(1));
        outcomes.put(outcome(1)).await.unwrap();
        outcomes.put(outcome(2)).await.unwrap();
        let waiting = {
            let outcomes = Arc::clone(&outcomes);
            tokio::spawn(async move { outcomes.put(outcome(3)).await })
        };
        tokio::task::yield_now().await;
        outcomes.close();
        let given_back = timeout(SOON, waiting).await.unwrap().unwrap().unwrap_err();
        assert_eq!(given_back.admission.seq, 3);
        assert!(outcomes.put(outcome(4)).await.is_err());
        assert_eq!(seqs(&outcomes.take()), [1], "but what was there before");
        assert_eq!(seqs(&outcomes.take()), [2]);
    }

    /// A settler that wants ever other numbers, and stops waiting for them, against workers that find it full.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn nobody_waits_for_ever() {
        const WORKERS: i64 = 4;
        const EACH: i64 = 5_000;
        let outcomes = Arc::new(Outcomes::new(7));
        for worker in 0..WORKERS {
            let outcomes = Arc::clone(&outcomes);
            tokio::spawn(async move {
                for n in 0..EACH {
                    outcomes.put(outcome(worker * EACH + n)).await.unwrap();
                }
            });
        }
        let mut taken = Vec::new();
        for round in 0.. {
            if taken.len() as i64 == WORKERS * EACH {
                break;
            }
            let left = (WORKERS * EACH) as usize - taken.len();
            let wanted = (round % 7 + 1).min(left);
            if round % 3 == 0 {
                let _ = timeout(Duration::ZERO, outcomes.at_least(wanted)).await;
            } else {
                timeout(SOON, outcomes.at_least(wanted))
                    .await
                    .expect("they wait for each other");
            }
            taken.extend(seqs(&outcomes.take()));
        }
        taken.sort_unstable();
        assert!(taken.iter().copied().eq(0..WORKERS * EACH));
    }
}
