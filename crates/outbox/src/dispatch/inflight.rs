use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::store::Lease;

/// The events this process holds: queued, with a listener, or waiting for their outcome to be written.
///
/// An event is here at most once, so it is delivered by at most one worker at a time; and its lease is renewed for as long
/// as it is here.
#[derive(Debug, Default)]
pub(crate) struct InFlight(Mutex<HashMap<i64, Held>>);

#[derive(Debug)]
struct Held {
    token: i64,
    /// When the lease ends, at the earliest.
    deadline: Instant,
    since: Instant,
    started: bool,
}

impl InFlight {
    fn held(&self) -> MutexGuard<'_, HashMap<i64, Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an event in. False if it is here already: then a newer lease on it replaces the older one, so that the
    /// delivery under way can still be settled.
    pub(crate) fn admit(&self, lease: Lease, deadline: Instant) -> bool {
        match self.held().entry(lease.seq) {
            Entry::Vacant(vacant) => {
                vacant.insert(Held {
                    token: lease.token,
                    deadline,
                    since: Instant::now(),
                    started: false,
                });
                true
            }
            Entry::Occupied(mut held) => {
                let held = held.get_mut();
                if deadline > held.deadline {
                    held.token = lease.token;
                    held.deadline = deadline;
                }
                false
            }
        }
    }

    /// Begins a delivery, unless the event is no longer ours, or its lease ends within `margin`: then it is let go, to be
    /// taken by whoever comes first.
    pub(crate) fn start(&self, seq: i64, margin: Duration) -> bool {
        let mut held = self.held();
        match held.get_mut(&seq) {
            Some(entry) if entry.deadline > Instant::now() + margin => {
                entry.started = true;
                true
            }
            Some(_) => {
                held.remove(&seq);
                false
            }
            None => false,
        }
    }

    /// The lease to settle with.
    pub(crate) fn lease(&self, seq: i64) -> Option<Lease> {
        self.held().get(&seq).map(|held| Lease { seq, token: held.token })
    }

    /// Lets events go.
    pub(crate) fn remove(&self, seqs: impl IntoIterator<Item = i64>) {
        let mut held = self.held();
        for seq in seqs {
            held.remove(&seq);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.held().len()
    }

    /// The leases that end before `horizon`, without those that have been here longer than `ttl`: these are let go.
    pub(crate) fn ending_before(&self, horizon: Instant, ttl: Option<Duration>) -> Vec<Lease> {
        let mut held = self.held();
        if let Some(ttl) = ttl {
            held.retain(|_, entry| entry.since.elapsed() < ttl);
        }
        held.iter()
            .filter(|(_, entry)| entry.deadline < horizon)
            .map(|(seq, entry)| Lease {
                seq: *seq,
                token: entry.token,
            })
            .collect()
    }

    /// Notes which of `asked` were renewed. The others are lost: those that no listener has begun are let go. Returns how
    /// many were lost.
    pub(crate) fn renewed(&self, asked: &[Lease], renewed: &[Lease], deadline: Instant) -> u64 {
        let mut held = self.held();
        for lease in renewed {
            if let Some(entry) = held.get_mut(&lease.seq).filter(|entry| entry.token == lease.token) {
                entry.deadline = deadline;
            }
        }
        let kept: std::collections::HashSet<&Lease> = renewed.iter().collect();
        let mut lost = 0;
        for lease in asked.iter().filter(|lease| !kept.contains(lease)) {
            // Settled, or taken again under a newer lease, in the meantime: nothing is lost.
            if held.get(&lease.seq).is_some_and(|entry| entry.token == lease.token) {
                lost += 1;
                if held.get(&lease.seq).is_some_and(|entry| !entry.started) {
                    held.remove(&lease.seq);
                }
            }
        }
        lost
    }

    /// Lets everything go, and says what it was.
    pub(crate) fn drain(&self) -> Vec<Lease> {
        self.held()
            .drain()
            .map(|(seq, held)| Lease { seq, token: held.token })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Lease = Lease { seq: 1, token: 7 };

    fn in_a_minute() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn an_event_is_here_once_and_a_newer_lease_replaces_the_older() {
        let in_flight = InFlight::default();
        assert!(in_flight.admit(LEASE, Instant::now()));
        assert!(!in_flight.admit(Lease { seq: 1, token: 8 }, in_a_minute()));
        assert_eq!(in_flight.lease(1), Some(Lease { seq: 1, token: 8 }));
        assert_eq!(in_flight.len(), 1);
    }

    #[test]
    fn no_delivery_starts_on_a_lease_that_is_about_to_end() {
        let in_flight = InFlight::default();
        in_flight.admit(LEASE, Instant::now() + Duration::from_secs(1));
        assert!(!in_flight.start(1, Duration::from_secs(2)));
        assert_eq!(in_flight.len(), 0);
    }

    #[test]
    fn a_lost_lease_lets_go_of_what_was_not_begun() {
        let in_flight = InFlight::default();
        in_flight.admit(LEASE, in_a_minute());
        in_flight.admit(Lease { seq: 2, token: 1 }, in_a_minute());
        assert!(in_flight.start(2, Duration::ZERO));
        let asked = in_flight.ending_before(Instant::now() + Duration::from_secs(120), None);
        assert_eq!(in_flight.renewed(&asked, &[], in_a_minute()), 2);
        assert_eq!(in_flight.lease(1), None);
        assert!(in_flight.lease(2).is_some(), "a listener is at it");
    }

    #[test]
    fn what_stays_too_long_is_let_go() {
        let in_flight = InFlight::default();
        in_flight.admit(LEASE, in_a_minute());
        assert!(in_flight.ending_before(in_a_minute(), Some(Duration::ZERO)).is_empty());
        assert_eq!(in_flight.len(), 0);
    }
}
