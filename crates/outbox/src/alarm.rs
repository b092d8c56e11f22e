//! The alarm: wakes the poller, at once or when something known becomes due.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::store::Lease;

/// Wakes the poller: at once, or when something known becomes due.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    pub(crate) now: Notify,
    state: Mutex<AlarmState>,
}

#[derive(Debug, Default)]
struct AlarmState {
    due: BTreeSet<Instant>,
    /// Rows that may be ours: written here, their hand-over missed or unconfirmed.
    unconfirmed: VecDeque<Unconfirmed>,
    /// Somebody said that there is something.
    rung: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Unconfirmed {
    pub(crate) lease: Lease,
    /// When it ends, at the earliest.
    pub(crate) deadline: Instant,
    /// Looked up in vain so often: its commit may not be visible yet, or it was rolled back.
    tries: u32,
    not_before: Instant,
}

impl Alarm {
    /// More would be found by an ordinary poll anyway, once their leases have ended.
    const MAX_UNCONFIRMED: usize = 20_000;
    /// Beyond it the latest are forgotten: an ordinary poll finds those.
    const MAX_DUE: usize = 4_096;
    /// What was not found is looked up again after so long, and then given up.
    const AGAIN_AFTER: [Duration; 4] = [
        Duration::from_millis(50),
        Duration::from_millis(300),
        Duration::from_secs(2),
        Duration::from_secs(5),
    ];

    fn state(&self) -> MutexGuard<'_, AlarmState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Poll now.
    pub(crate) fn ring(&self) {
        self.state().rung = true;
        self.now.notify_one();
    }

    /// Poll when this much time has passed.
    pub(crate) fn ring_after(&self, delay: Duration) {
        // So far away that an ordinary poll comes first.
        let Some(at) = Instant::now().checked_add(delay) else {
            return;
        };
        let mut state = self.state();
        let soonest = state.due.first().copied();
        state.due.insert(at);
        if state.due.len() > Self::MAX_DUE {
            state.due.pop_last();
        }
        drop(state);
        if soonest.is_none_or(|soonest| at < soonest) {
            // The poller may be asleep until later.
            self.now.notify_one();
        }
    }

    /// Look these up, and deliver those that are there. Each with the instant at which it ends, at the earliest.
    pub(crate) fn look_up(&self, leases: impl IntoIterator<Item = (Lease, Instant)>) {
        let not_before = Instant::now();
        self.keep(leases.into_iter().map(|(lease, deadline)| Unconfirmed {
            lease,
            deadline,
            tries: 0,
            not_before,
        }));
        self.ring();
    }

    pub(crate) fn keep(&self, unconfirmed: impl IntoIterator<Item = Unconfirmed>) {
        let mut state = self.state();
        let room = Self::MAX_UNCONFIRMED.saturating_sub(state.unconfirmed.len());
        state.unconfirmed.extend(unconfirmed.into_iter().take(room));
    }

    /// What was not found, and may be later.
    pub(crate) fn not_found(&self, unconfirmed: impl IntoIterator<Item = Unconfirmed>) {
        for one in unconfirmed {
            if let Some(wait) = Self::AGAIN_AFTER.get(one.tries as usize) {
                self.keep([Unconfirmed {
                    tries: one.tries + 1,
                    not_before: Instant::now() + *wait,
                    ..one
                }]);
                self.ring_after(*wait);
            }
        }
    }

    pub(crate) fn take_rung(&self) -> bool {
        std::mem::take(&mut self.state().rung)
    }

    /// Whether something is to be looked up by now.
    pub(crate) fn has_to_look_up(&self) -> bool {
        let now = Instant::now();
        self.state().unconfirmed.iter().any(|one| one.not_before <= now)
    }

    /// Up to `limit` that are to be looked up by now.
    pub(crate) fn take_unconfirmed(&self, limit: usize) -> Vec<Unconfirmed> {
        let mut state = self.state();
        let now = Instant::now();
        let (mut taken, mut rest) = (Vec::new(), VecDeque::new());
        for one in state.unconfirmed.drain(..) {
            if taken.len() < limit && one.not_before <= now {
                taken.push(one);
            } else {
                rest.push_back(one);
            }
        }
        state.unconfirmed = rest;
        taken
    }

    pub(crate) fn drain_unconfirmed(&self) -> Vec<Lease> {
        self.state().unconfirmed.drain(..).map(|one| one.lease).collect()
    }

    /// When the next known thing is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.state().due.first().copied()
    }

    /// Forgets what is due by now, and says whether there was anything.
    pub(crate) fn pop_due(&self) -> bool {
        let mut state = self.state();
        let now = Instant::now();
        let known = state.due.len();
        while state.due.first().is_some_and(|at| *at <= now) {
            state.due.pop_first();
        }
        state.due.len() < known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_that_is_full_forgets_what_is_due_last() {
        let alarm = Alarm::default();
        for n in 0..2 * Alarm::MAX_DUE as u64 {
            alarm.ring_after(Duration::from_secs(86_400 + n));
        }
        assert_eq!(alarm.state().due.len(), Alarm::MAX_DUE);
        let soon = Duration::from_millis(50);
        alarm.ring_after(soon);
        assert!(alarm.next_due().is_some_and(|due| due <= Instant::now() + soon));
    }

    #[test]
    fn an_alarm_for_never_does_not_ring() {
        let alarm = Alarm::default();
        alarm.ring_after(Duration::MAX);
        assert_eq!(alarm.next_due(), None);
    }

    #[test]
    fn what_is_not_found_is_looked_up_again_a_few_times() {
        let alarm = Alarm::default();
        alarm.look_up([(Lease { seq: 1, token: 1 }, Instant::now())]);
        let mut tried = 0;
        loop {
            // As if the time had passed.
            alarm
                .state()
                .unconfirmed
                .iter_mut()
                .for_each(|one| one.not_before = Instant::now());
            let taken = alarm.take_unconfirmed(10);
            if taken.is_empty() {
                break;
            }
            tried += 1;
            alarm.not_found(taken);
        }
        assert_eq!(tried, 1 + Alarm::AGAIN_AFTER.len());
    }
}
