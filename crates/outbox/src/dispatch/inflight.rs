use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::store::Lease;

/// The events this process holds: queued, with a listener, or waiting for their outcome to be written.
///
/// An event is here at most once, so it is delivered by at most one worker at a time; and its lease is renewed for as long
/// as it is here. What was let go and comes again is another [`Admission`]: whatever is left of the first, a job in a queue
/// or a late outcome, finds that it no longer counts.
#[derive(Debug, Default)]
pub(crate) struct InFlight(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    held: HashMap<i64, Held>,
    admissions: u64,
}

/// One stay of an event in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admission {
    pub(crate) seq: i64,
    number: u64,
}

#[derive(Debug)]
struct Held {
    number: u64,
    token: i64,
    /// When the lease ends, at the earliest.
    deadline: Instant,
    since: Instant,
    stage: Stage,
    /// The row was claimed again after its outcome was written, and before we heard of that.
    next: Option<Lease>,
    /// Somebody else has taken it, and that has been counted.
    lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Queued,
    Started,
    Settling,
}

impl InFlight {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an event in. `None` if it is here already: then a newer lease on it replaces the older one, so that the
    /// delivery under way can still be settled.
    pub(crate) fn admit(&self, lease: Lease, deadline: Instant) -> Option<Admission> {
        let mut state = self.state();
        state.admissions += 1;
        let number = state.admissions;
        match state.held.entry(lease.seq) {
            Entry::Vacant(vacant) => {
                vacant.insert(Held {
                    number,
                    token: lease.token,
                    deadline,
                    since: Instant::now(),
                    stage: Stage::Queued,
                    next: None,
                    lost: false,
                });
                Some(Admission { seq: lease.seq, number })
            }
            Entry::Occupied(mut held) => {
                let held = held.get_mut();
                // A claim adds one to the token; so does a written outcome. Two or more: the outcome was written, and this
                // is the next delivery.
                if held.stage == Stage::Settling && lease.token > held.token + 1 {
                    held.next = Some(lease);
                } else if lease.token > held.token {
                    held.token = lease.token;
                    held.deadline = deadline;
                    held.lost = false;
                }
                None
            }
        }
    }

    /// Begins a delivery, unless the event is no longer ours, or its lease ends within `margin`: then it is let go, to be
    /// taken by whoever comes first.
    pub(crate) fn start(&self, admission: Admission, margin: Duration) -> bool {
        let mut state = self.state();
        match state.held.get_mut(&admission.seq) {
            Some(held) if held.number != admission.number || held.stage != Stage::Queued => false,
            Some(held) if held.deadline > Instant::now() + margin => {
                held.stage = Stage::Started;
                true
            }
            Some(_) => {
                state.held.remove(&admission.seq);
                false
            }
            None => false,
        }
    }

    /// The lease to settle with. From here on the event is being settled. `None`: it is no longer ours.
    pub(crate) fn settle(&self, admission: Admission) -> Option<Lease> {
        let mut state = self.state();
        let held = state
            .held
            .get_mut(&admission.seq)
            .filter(|held| held.number == admission.number)?;
        held.stage = Stage::Settling;
        Some(Lease {
            seq: admission.seq,
            token: held.token,
        })
    }

    /// Lets go of events whose outcome is written. Returns those that were claimed again meanwhile, and are ours.
    pub(crate) fn settled(&self, admissions: impl IntoIterator<Item = Admission>) -> Vec<Lease> {
        let mut state = self.state();
        let mut next = Vec::new();
        for admission in admissions {
            if let Entry::Occupied(held) = state.held.entry(admission.seq)
                && held.get().number == admission.number
            {
                next.extend(held.remove().next);
            }
        }
        next
    }

    /// Lets go of an event that could not be queued.
    pub(crate) fn remove(&self, admission: Admission) {
        self.settled([admission]);
    }

    pub(crate) fn len(&self) -> usize {
        self.state().held.len()
    }

    /// The leases that end before `horizon`, without those that have been here longer than `ttl`: these are let go.
    pub(crate) fn ending_before(&self, horizon: Instant, ttl: Option<Duration>) -> Vec<Lease> {
        let mut state = self.state();
        if let Some(ttl) = ttl {
            state.held.retain(|_, held| held.since.elapsed() < ttl);
        }
        let ending = state
            .held
            .iter()
            .filter(|(_, held)| held.deadline < horizon && !held.lost);
        ending
            .map(|(seq, held)| Lease {
                seq: *seq,
                token: held.token,
            })
            .collect()
    }

    /// Notes which of `asked` were renewed. The others are lost: those that no listener has begun are let go. Returns how
    /// many were lost.
    pub(crate) fn renewed(&self, asked: &[Lease], renewed: &[Lease], deadline: Instant) -> u64 {
        let mut state = self.state();
        let kept: std::collections::HashSet<&Lease> = renewed.iter().collect();
        let mut lost = 0;
        for lease in asked {
            // Settled, or taken again under a newer lease, in the meantime: there is nothing to note.
            let Entry::Occupied(mut held) = state.held.entry(lease.seq) else {
                continue;
            };
            if held.get().token != lease.token {
                continue;
            }
            if kept.contains(lease) {
                held.get_mut().deadline = deadline;
                continue;
            }
            match held.get().stage {
                Stage::Queued => {
                    lost += 1;
                    held.remove();
                }
                Stage::Started => {
                    lost += 1;
                    held.get_mut().lost = true;
                }
                // Its outcome has just been written, or will be refused.
                Stage::Settling => {}
            }
        }
        lost
    }

    /// Lets everything go, and says what it was.
    pub(crate) fn drain(&self) -> Vec<Lease> {
        self.state()
            .held
            .drain()
            .map(|(seq, held)| Lease { seq, token: held.token })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(token: i64) -> Lease {
        Lease { seq: 1, token }
    }

    fn in_a_minute() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn an_event_is_here_once_and_a_newer_lease_replaces_the_older() {
        let in_flight = InFlight::default();
        let first = in_flight.admit(lease(7), Instant::now()).unwrap();
        assert_eq!(in_flight.admit(lease(8), in_a_minute()), None);
        assert!(in_flight.start(first, Duration::ZERO));
        assert_eq!(in_flight.settle(first), Some(lease(8)));
    }

    #[test]
    fn no_delivery_starts_on_a_lease_that_is_about_to_end() {
        let in_flight = InFlight::default();
        let admission = in_flight
            .admit(lease(7), Instant::now() + Duration::from_secs(1))
            .unwrap();
        assert!(!in_flight.start(admission, Duration::from_secs(2)));
        assert_eq!(in_flight.len(), 0);
    }

    #[test]
    fn a_lost_lease_lets_go_of_what_was_not_begun_and_is_counted_once() {
        let in_flight = InFlight::default();
        let queued = in_flight.admit(lease(7), in_a_minute()).unwrap();
        let begun = in_flight.admit(Lease { seq: 2, token: 1 }, in_a_minute()).unwrap();
        assert!(in_flight.start(begun, Duration::ZERO));
        let later = Instant::now() + Duration::from_secs(120);
        let asked = in_flight.ending_before(later, None);
        assert_eq!(in_flight.renewed(&asked, &[], in_a_minute()), 2);
        assert_eq!(in_flight.settle(queued), None);
        assert!(in_flight.settle(begun).is_some(), "a listener is at it");
        assert!(in_flight.ending_before(later, None).is_empty());
    }

    #[test]
    fn what_is_left_of_an_earlier_stay_no_longer_counts() {
        let in_flight = InFlight::default();
        let first = in_flight.admit(lease(7), in_a_minute()).unwrap();
        assert!(
            in_flight.ending_before(in_a_minute(), Some(Duration::ZERO)).is_empty(),
            "let go for its age"
        );
        let second = in_flight.admit(lease(8), in_a_minute()).unwrap();
        assert!(!in_flight.start(first, Duration::ZERO));
        assert!(in_flight.start(second, Duration::ZERO));
        assert!(!in_flight.start(second, Duration::ZERO), "and never twice");
        assert_eq!(in_flight.settle(first), None);
        assert_eq!(in_flight.settle(second), Some(lease(8)));
    }

    #[test]
    fn a_row_claimed_again_after_its_outcome_was_written_is_not_forgotten() {
        let in_flight = InFlight::default();
        let admission = in_flight.admit(lease(7), in_a_minute()).unwrap();
        in_flight.start(admission, Duration::ZERO);
        assert_eq!(in_flight.settle(admission), Some(lease(7)));
        // Written: 8. Claimed: 9. And only then the answer to the writing arrives.
        assert_eq!(in_flight.admit(lease(9), in_a_minute()), None);
        assert_eq!(
            in_flight.settle(admission),
            Some(lease(7)),
            "a repeated write is still about the first delivery"
        );
        assert_eq!(in_flight.settled([admission]), [lease(9)]);
    }

    #[test]
    fn a_row_claimed_again_before_its_outcome_was_written_is_settled_under_the_new_lease() {
        let in_flight = InFlight::default();
        let admission = in_flight.admit(lease(7), Instant::now()).unwrap();
        in_flight.settle(admission);
        assert_eq!(in_flight.admit(lease(8), in_a_minute()), None);
        assert_eq!(in_flight.settle(admission), Some(lease(8)));
        assert!(in_flight.settled([admission]).is_empty());
    }
}
