use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::{HashMap, HashSet};
use tokio::time::Instant;

use crate::store::{LaneRow, LaneSet, Lease};

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
    lanes: Lanes,
    /// What was settled since the read of lanes that is under way began: it may still show it as pending.
    settled_meanwhile: Option<HashSet<i64>>,
}

/// The lanes that are ours.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lanes {
    /// The name under which they are ours: another one each time this node joins.
    member: Arc<str>,
    /// Whose rows are taken in. One that is being handed over is ours, and not among these.
    pub(crate) open: LaneSet,
    /// Until when they are ours, at the least.
    until: Option<Instant>,
    /// How many nodes share the lanes.
    pub(crate) members: usize,
    /// Goes up when lanes are added: those have to be read from their start.
    pub(crate) gains: u64,
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
    right: Right,
    since: Instant,
    stage: Stage,
    /// The row was claimed again after its outcome was written, and before we heard of that.
    next: Option<(Lease, Instant)>,
    /// Somebody else has taken it, and that has been counted.
    lost: bool,
}

/// By what right an event is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Right {
    /// A lease of its own, which ends then, at the earliest.
    Lease(Instant),
    /// That of its lane.
    Lane(u8),
}

/// What an event is settled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settling {
    pub(crate) lease: Lease,
    /// The lane that it was read from.
    pub(crate) lane: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Queued,
    Started,
    Settling,
}

impl Held {
    fn queued(number: u64, token: i64, right: Right, since: Instant) -> Self {
        Self {
            number,
            token,
            right,
            since,
            stage: Stage::Queued,
            next: None,
            lost: false,
        }
    }
}

impl State {
    fn settle(&mut self, admission: Admission) -> Option<Settling> {
        let held = self
            .held
            .get_mut(&admission.seq)
            .filter(|held| held.number == admission.number)?;
        held.stage = Stage::Settling;
        Some(Settling {
            lease: Lease {
                seq: admission.seq,
                token: held.token,
            },
            lane: match held.right {
                Right::Lease(_) => None,
                Right::Lane(lane) => Some(lane),
            },
        })
    }

    fn admit(&mut self, lease: Lease, deadline: Instant, now: Instant) -> Option<Admission> {
        self.admissions += 1;
        let number = self.admissions;
        match self.held.entry(lease.seq) {
            Entry::Vacant(vacant) => {
                vacant.insert(Held::queued(number, lease.token, Right::Lease(deadline), now));
                Some(Admission { seq: lease.seq, number })
            }
            Entry::Occupied(mut held) => {
                let held = held.get_mut();
                // A claim adds one to the token; so does a written outcome. Two or more: the outcome was written, and this
                // is the next delivery.
                if held.stage == Stage::Settling && lease.token > held.token + 1 {
                    held.next = Some((lease, deadline));
                } else if lease.token > held.token {
                    held.token = lease.token;
                    held.right = Right::Lease(deadline);
                    held.lost = false;
                }
                None
            }
        }
    }

    fn admit_from_lane(&mut self, lease: Lease, lane: u8, now: Instant) -> Option<Admission> {
        let settled = self.settled_meanwhile.as_ref();
        if settled.is_some_and(|settled| settled.contains(&lease.seq)) || !self.lanes.open.contains(lane) {
            return None;
        }
        self.admissions += 1;
        let number = self.admissions;
        let Entry::Vacant(vacant) = self.held.entry(lease.seq) else {
            return None;
        };
        vacant.insert(Held::queued(number, lease.token, Right::Lane(lane), now));
        Some(Admission { seq: lease.seq, number })
    }
}

impl InFlight {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an event in. `None` if it is here already: then a newer lease on it replaces the older one, so that the
    /// delivery under way can still be settled.
    pub(crate) fn admit(&self, lease: Lease, deadline: Instant) -> Option<Admission> {
        self.state().admit(lease, deadline, Instant::now())
    }

    /// The same, of many.
    pub(crate) fn admit_all(&self, leases: impl Iterator<Item = Lease>, deadline: Instant) -> Vec<Option<Admission>> {
        let now = Instant::now();
        let mut state = self.state();
        leases.map(|lease| state.admit(lease, deadline, now)).collect()
    }

    /// Begins a delivery, unless the event is no longer ours, or its lease ends within `margin`: then it is let go, to be
    /// taken by whoever comes first.
    pub(crate) fn start(&self, admission: Admission, margin: Duration) -> bool {
        let mut state = self.state();
        let lanes_until = state.lanes.until;
        match state.held.get_mut(&admission.seq) {
            Some(held) if held.number != admission.number || held.stage != Stage::Queued => false,
            Some(held)
                if held
                    .right
                    .until(lanes_until)
                    .is_some_and(|until| until > Instant::now() + margin) =>
            {
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

    /// What to settle each with. From here on they are being settled. `None`: it is no longer ours. And the name under which
    /// lanes are ours, of the same moment: a node that has lost its lanes and joined again has another one, and what it had read
    /// before must not be written by that.
    pub(crate) fn settle(&self, admissions: impl IntoIterator<Item = Admission>) -> (Arc<str>, Vec<Option<Settling>>) {
        let mut state = self.state();
        let member = Arc::clone(&state.lanes.member);
        let settling = admissions.into_iter().map(|admission| state.settle(admission));
        (member, settling.collect())
    }

    /// Lets go of events whose outcome is written. Returns those that were claimed again meanwhile, and are ours; each with
    /// the instant at which its lease ends, at the earliest.
    pub(crate) fn settled(&self, admissions: impl IntoIterator<Item = Admission>) -> Vec<(Lease, Instant)> {
        let mut state = self.state();
        let mut next = Vec::new();
        for admission in admissions {
            if let Some(settled) = &mut state.settled_meanwhile {
                settled.insert(admission.seq);
            }
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
            .filter(|(_, held)| matches!(held.right, Right::Lease(deadline) if deadline < horizon) && !held.lost);
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
        let kept: HashSet<&Lease> = renewed.iter().collect();
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
                held.get_mut().right = Right::Lease(deadline);
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

    /// Lets everything go, and says what it was. What is of a lane goes with it, and needs no release.
    pub(crate) fn drain(&self) -> Drained {
        let mut drained = Drained::default();
        for (seq, held) in self.state().held.drain() {
            match held.right {
                Right::Lease(_) => drained.leases.push(Lease { seq, token: held.token }),
                Right::Lane(_) => drained.of_lanes += 1,
            }
        }
        drained
    }
}

/// What was let go.
#[derive(Debug, Default)]
pub(crate) struct Drained {
    pub(crate) leases: Vec<Lease>,
    pub(crate) of_lanes: u64,
}

impl Right {
    fn until(self, lanes_until: Option<Instant>) -> Option<Instant> {
        match self {
            Self::Lease(until) => Some(until),
            Self::Lane(_) => lanes_until,
        }
    }
}

/// Events that are ours because their lane is.
impl InFlight {
    pub(crate) fn lanes(&self) -> Lanes {
        self.state().lanes.clone()
    }

    /// These lanes are ours until then, under this name. What is queued of others is let go; what a listener has begun of them
    /// is not.
    pub(crate) fn hold_lanes(&self, member: &str, open: LaneSet, until: Instant, members: usize) {
        let mut state = self.state();
        let state = &mut *state;
        if !open.without(state.lanes.open).is_empty() {
            state.lanes.gains += 1;
        }
        state.lanes = Lanes {
            member: member.into(),
            open,
            until: Some(until),
            members,
            gains: state.lanes.gains,
        };
        state.held.retain(|_, held| match held.right {
            Right::Lane(lane) => open.contains(lane) || held.stage != Stage::Queued,
            Right::Lease(_) => true,
        });
    }

    /// No lane is ours any longer, nor is anything that was read from one.
    pub(crate) fn lose_lanes(&self) -> u64 {
        let mut state = self.state();
        let before = state.held.len();
        state.lanes = Lanes {
            gains: state.lanes.gains,
            ..Lanes::default()
        };
        state.held.retain(|_, held| matches!(held.right, Right::Lease(_)));
        (before - state.held.len()) as u64
    }

    /// Lanes of which something is here.
    pub(crate) fn busy_lanes(&self) -> LaneSet {
        let state = self.state();
        let lanes = state.held.values().filter_map(|held| match held.right {
            Right::Lane(lane) => Some(lane),
            Right::Lease(_) => None,
        });
        lanes.collect()
    }

    /// Before lanes are read: remembers what is settled from here on.
    pub(crate) fn begin_read(&self) {
        self.state().settled_meanwhile = Some(HashSet::default());
    }

    pub(crate) fn end_read(&self) {
        self.state().settled_meanwhile = None;
    }

    /// Whether it is here, or was until just now.
    pub(crate) fn knows(&self, seq: i64) -> bool {
        let state = self.state();
        state.held.contains_key(&seq)
            || state
                .settled_meanwhile
                .as_ref()
                .is_some_and(|settled| settled.contains(&seq))
    }

    /// Takes in events that were read from lanes. `None`: it cannot be delivered yet, or it is here already, or was while it
    /// was being read, or its lane is not ours.
    pub(crate) fn admit_from_lanes(&self, rows: &[LaneRow]) -> Vec<Option<Admission>> {
        let now = Instant::now();
        let mut state = self.state();
        let admitted = rows.iter().map(|row| {
            let ready = !row.row.recovered && row.rests.is_zero();
            ready.then(|| state.admit_from_lane(row.row.lease, row.lane, now))?
        });
        admitted.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(token: i64) -> Lease {
        Lease { seq: 1, token }
    }

    fn of_row(token: i64) -> Option<Settling> {
        Some(Settling {
            lease: lease(token),
            lane: None,
        })
    }

    fn settle(in_flight: &InFlight, admission: Admission) -> Option<Settling> {
        in_flight.settle([admission]).1[0]
    }

    fn admit_from_lane(in_flight: &InFlight, lease: Lease, lane: u8) -> Option<Admission> {
        in_flight.state().admit_from_lane(lease, lane, Instant::now())
    }

    fn lanes(lanes: &[u8]) -> LaneSet {
        lanes.iter().copied().collect()
    }

    #[test]
    fn rows_are_taken_in_from_open_lanes_only_and_once() {
        let in_flight = InFlight::default();
        assert_eq!(admit_from_lane(&in_flight, lease(1), 3), None);
        in_flight.hold_lanes("node#1", lanes(&[3]), in_a_minute(), 1);
        let admission = admit_from_lane(&in_flight, lease(1), 3).unwrap();
        assert_eq!(admit_from_lane(&in_flight, lease(1), 3), None);
        assert!(in_flight.start(admission, Duration::ZERO));
        assert_eq!(settle(&in_flight, admission).unwrap().lane, Some(3));
    }

    #[test]
    fn what_was_settled_while_lanes_were_read_is_not_taken_in_again() {
        let in_flight = InFlight::default();
        in_flight.hold_lanes("node#1", LaneSet::ALL, in_a_minute(), 1);
        let admission = admit_from_lane(&in_flight, lease(1), 3).unwrap();
        in_flight.begin_read();
        in_flight.settled([admission]);
        assert_eq!(admit_from_lane(&in_flight, lease(1), 3), None);
        in_flight.end_read();
        assert!(admit_from_lane(&in_flight, lease(1), 3).is_some());
    }

    #[test]
    fn a_lane_that_is_handed_over_keeps_what_a_listener_has_begun() {
        let in_flight = InFlight::default();
        in_flight.hold_lanes("node#1", lanes(&[3]), in_a_minute(), 1);
        let begun = admit_from_lane(&in_flight, lease(1), 3).unwrap();
        assert!(in_flight.start(begun, Duration::ZERO));
        let queued = admit_from_lane(&in_flight, Lease { seq: 2, token: 1 }, 3).unwrap();
        in_flight.hold_lanes("node#1", LaneSet::NONE, in_a_minute(), 2);
        assert!(!in_flight.start(queued, Duration::ZERO));
        assert_eq!(in_flight.busy_lanes(), lanes(&[3]));
        in_flight.settled([begun]);
        assert!(in_flight.busy_lanes().is_empty());
    }

    #[test]
    fn with_the_lanes_everything_of_them_is_lost() {
        let in_flight = InFlight::default();
        in_flight.hold_lanes("node#1", lanes(&[3]), in_a_minute(), 1);
        let begun = admit_from_lane(&in_flight, lease(1), 3).unwrap();
        assert!(in_flight.start(begun, Duration::ZERO));
        assert_eq!(in_flight.lose_lanes(), 1);
        assert_eq!(settle(&in_flight, begun), None);
    }

    #[test]
    fn what_was_read_under_one_name_is_not_settled_under_the_next() {
        let in_flight = InFlight::default();
        in_flight.hold_lanes("node#1", lanes(&[3]), in_a_minute(), 1);
        let begun = admit_from_lane(&in_flight, lease(1), 3).unwrap();
        assert!(in_flight.start(begun, Duration::ZERO));
        let (member, settling) = in_flight.settle([begun]);
        assert_eq!((&*member, settling[0].is_some()), ("node#1", true));
        in_flight.lose_lanes();
        in_flight.hold_lanes("node#2", lanes(&[3]), in_a_minute(), 1);
        let (member, settling) = in_flight.settle([begun]);
        assert_eq!((&*member, settling[0]), ("node#2", None));
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
        assert_eq!(settle(&in_flight, first), of_row(8));
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
        assert_eq!(settle(&in_flight, queued), None);
        assert!(settle(&in_flight, begun).is_some(), "a listener is at it");
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
        assert_eq!(settle(&in_flight, first), None);
        assert_eq!(settle(&in_flight, second), of_row(8));
    }

    #[test]
    fn a_row_claimed_again_after_its_outcome_was_written_is_not_forgotten() {
        let in_flight = InFlight::default();
        let admission = in_flight.admit(lease(7), in_a_minute()).unwrap();
        in_flight.start(admission, Duration::ZERO);
        assert_eq!(settle(&in_flight, admission), of_row(7));
        // Written: 8. Claimed: 9. And only then the answer to the writing arrives.
        let deadline = in_a_minute();
        assert_eq!(in_flight.admit(lease(9), deadline), None);
        assert_eq!(
            settle(&in_flight, admission),
            of_row(7),
            "a repeated write is still about the first delivery"
        );
        assert_eq!(in_flight.settled([admission]), [(lease(9), deadline)]);
    }

    #[test]
    fn a_row_claimed_again_before_its_outcome_was_written_is_settled_under_the_new_lease() {
        let in_flight = InFlight::default();
        let admission = in_flight.admit(lease(7), Instant::now()).unwrap();
        settle(&in_flight, admission);
        assert_eq!(in_flight.admit(lease(8), in_a_minute()), None);
        assert_eq!(settle(&in_flight, admission), of_row(8));
        assert!(in_flight.settled([admission]).is_empty());
    }
}
