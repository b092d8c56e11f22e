//! Order: events of one key stand in line, and one of them at a time is with a listener.
//!
//! ```text
//!            first of its key             outcome written: next
//!   (none) ───────────────────▶ running ◀──────────────────────┐
//!     ▲                           │ │                          │
//!     │ nobody waits, no more in  │ └── somebody waits ────────┘
//!     │ the table                 │
//!     ├───────────────────────────┤ not delivered: to be tried again, put off, parked
//!     │      a pass begins        ▼
//!     └──────────────────────── blocked: takes nobody in; the table tells for how long
//! ```
//!
//! A line has a bound, so that one busy key does not keep the others out of memory. Beyond it, the line knows that there is
//! more in the table, and asks for it when it runs short. What a worker has taken no longer counts: while its outcome is being
//! written, the next ones are read.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::HashMap;
use tokio::sync::Notify;

use super::queue::Job;
use crate::event::Event;
use crate::store::LaneSet;

/// Aggregate type and id.
pub(crate) type Key = (String, String);

/// What order is kept by. `None`: the event has no order.
pub(crate) fn key(event: &Event) -> Option<Key> {
    let id = event.aggregate_id()?;
    Some((event.aggregate_type().to_string(), id.to_owned()))
}

#[derive(Debug)]
pub(crate) struct Lines {
    state: Mutex<State>,
    /// Half of the room is free.
    room: Notify,
    /// A line runs short, and there is more in the table.
    hungry: Notify,
    capacity: usize,
    per_key: usize,
}

#[derive(Debug, Default)]
struct State {
    lines: HashMap<Arc<Key>, Line>,
    /// Every event that is running.
    running: HashMap<i64, Running>,
    /// How many of those no worker has taken yet.
    queued: usize,
    /// How many events wait for another one of their key.
    waiting: usize,
}

#[derive(Debug)]
struct Running {
    key: Arc<Key>,
    queued: bool,
}

impl State {
    /// How many events are in memory for want of a worker, or of their turn.
    fn held(&self) -> usize {
        self.queued + self.waiting
    }

    fn run(&mut self, seq: i64, key: Arc<Key>) {
        self.running.insert(seq, Running { key, queued: true });
        self.queued += 1;
    }
}

#[derive(Debug)]
struct Line {
    key: Arc<Key>,
    lane: u8,
    waiting: VecDeque<Job>,
    stage: Stage,
    /// There is more in the table, after this one.
    more: Option<i64>,
    /// More is being read: until then it is not known whether there is any.
    feeding: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its first event is queued, or with a listener, or waiting for its outcome to be written.
    Running,
    /// It has run out, and there is more in the table.
    Short,
    /// Its first event is to be delivered later.
    Blocked,
}

/// A row of the table, for the line of its key.
#[derive(Debug)]
pub(crate) enum Standing {
    Job {
        key: Key,
        lane: u8,
        job: Job,
    },
    /// It cannot be delivered yet: nothing after it is.
    HeldBack {
        key: Key,
        lane: u8,
    },
}

/// What became of an event that was to stand in line.
#[derive(Debug)]
pub(crate) enum Place {
    /// It is the first: deliver it.
    First(Job),
    /// It waits.
    Waits,
    /// There is no place for it now.
    None(Job),
}

impl Line {
    fn new(key: Arc<Key>, lane: u8, stage: Stage) -> Self {
        Self {
            key,
            lane,
            waiting: VecDeque::new(),
            stage,
            more: None,
            feeding: false,
        }
    }
}

/// What follows when events have left their lines.
#[derive(Debug, Default)]
pub(crate) struct Next {
    /// To be delivered.
    pub(crate) first: Vec<Job>,
    /// No longer waiting, and not to be delivered either.
    pub(crate) dropped: Vec<Job>,
}

impl Lines {
    /// For `capacity` events in all.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            state: Mutex::default(),
            room: Notify::new(),
            hungry: Notify::new(),
            capacity,
            per_key: (capacity / 8).max(1),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many more events can be taken in.
    pub(crate) fn free(&self) -> usize {
        self.capacity.saturating_sub(self.state().held())
    }

    /// How many events wait for another one of their key.
    pub(crate) fn waiting(&self) -> usize {
        self.state().waiting
    }

    /// Returns when half of the room is free.
    pub(crate) async fn half_empty(&self) {
        loop {
            let room = self.room.notified();
            if self.free() * 2 >= self.capacity {
                return;
            }
            room.await;
        }
    }

    /// Returns when a line runs short.
    pub(crate) async fn hungry(&self) {
        self.hungry.notified().await;
    }

    /// A pass over the table begins: what is blocked from here on, the table knows.
    pub(crate) fn begin_pass(&self) {
        self.state().lines.retain(|_, line| line.stage != Stage::Blocked);
    }

    /// Puts rows in line, as they come.
    pub(crate) fn line_up(&self, rows: Vec<Standing>) -> Vec<Place> {
        let mut state = self.state();
        let mut places = Vec::with_capacity(rows.len());
        for row in rows {
            match row {
                Standing::Job { key, lane, job } => places.push(self.stand(&mut state, key, lane, job)),
                Standing::HeldBack { key, lane } => hold_back(&mut state, key, lane),
            }
        }
        places
    }

    /// In the order of `seq`.
    fn stand(&self, state: &mut State, key: Key, lane: u8, job: Job) -> Place {
        let Some(line) = state.lines.get_mut(&key) else {
            let key = Arc::new(key);
            state.run(job.admission.seq, Arc::clone(&key));
            let line = Line::new(Arc::clone(&key), lane, Stage::Running);
            state.lines.insert(key, line);
            return Place::First(job);
        };
        match line.stage {
            Stage::Blocked => return Place::None(job),
            // Somebody asks for what comes before it.
            _ if line.more.is_some() => return Place::None(job),
            Stage::Short => {
                line.stage = Stage::Running;
                let key = Arc::clone(&line.key);
                state.run(job.admission.seq, key);
                return Place::First(job);
            }
            Stage::Running => {}
        }
        if line.waiting.len() >= self.per_key {
            line.more = line.waiting.back().map(|last| last.admission.seq);
            return Place::None(job);
        }
        let place = line
            .waiting
            .partition_point(|other| other.admission.seq < job.admission.seq);
        line.waiting.insert(place, job);
        state.waiting += 1;
        Place::Waits
    }

    /// A worker has taken an event: there is room for another.
    pub(crate) fn taken(&self, seq: i64) {
        let mut state = self.state();
        let before = state.held();
        if let Some(running) = state.running.get_mut(&seq)
            && std::mem::take(&mut running.queued)
        {
            state.queued -= 1;
            self.freed(&state, before);
        }
    }

    /// Tells whoever waits for room.
    fn freed(&self, state: &State, before: usize) {
        let half = self.capacity / 2;
        if before > half && state.held() <= half {
            self.room.notify_waiters();
            // Some may have found no room.
            self.hungry.notify_one();
        }
    }

    /// The outcomes of events are written, or they are no longer ours: then, and if one is to be delivered later, its line is
    /// blocked.
    pub(crate) fn leave(&self, left: impl IntoIterator<Item = (i64, bool)>) -> Next {
        let mut state = self.state();
        let before = state.held();
        let mut next = Next::default();
        for (seq, delivered) in left {
            self.leave_one(&mut state, seq, delivered, &mut next);
        }
        self.freed(&state, before);
        next
    }

    fn leave_one(&self, state: &mut State, seq: i64, delivered: bool, next: &mut Next) {
        let Some(Running { key, queued }) = state.running.remove(&seq) else {
            return;
        };
        state.queued -= usize::from(queued);
        let Some(line) = state.lines.get_mut(&key) else {
            return;
        };
        if !delivered {
            line.stage = Stage::Blocked;
            (line.more, line.feeding) = (None, false);
            state.waiting -= line.waiting.len();
            next.dropped.extend(line.waiting.drain(..));
        } else if let Some(job) = line.waiting.pop_front() {
            state.waiting -= 1;
            state.queued += 1;
            let running = Running { key, queued: true };
            state.running.insert(job.admission.seq, running);
            next.first.push(job);
            if line.more.is_some() && line.waiting.len() == self.per_key / 4 {
                self.hungry.notify_one();
            }
        } else if line.more.is_some() || line.feeding {
            line.stage = Stage::Short;
            self.hungry.notify_one();
        } else {
            state.lines.remove(&key);
        }
    }

    /// Nothing of these lanes is taken in any more, and nothing of them waits. What runs, runs on.
    pub(crate) fn close(&self, lanes: LaneSet) -> Vec<Job> {
        let mut state = self.state();
        let state = &mut *state;
        let mut dropped = Vec::new();
        state.lines.retain(|_, line| {
            if lanes.contains(line.lane) {
                dropped.extend(line.waiting.drain(..));
                (line.more, line.feeding) = (None, false);
            }
            line.stage == Stage::Running || !lanes.contains(line.lane)
        });
        let before = state.held();
        state.waiting -= dropped.len();
        self.freed(state, before);
        dropped
    }

    /// Up to `limit` keys that run short, and after which event they go on. They are ready to take it.
    pub(crate) fn take_hungry(&self, limit: usize) -> Vec<(Key, i64)> {
        let mut state = self.state();
        let hungry = state
            .lines
            .iter_mut()
            .filter(|(_, line)| line.waiting.len() <= self.per_key / 4);
        let mut taken = Vec::new();
        for (key, line) in hungry {
            if taken.len() == limit {
                break;
            }
            if let Some(after) = line.more.take() {
                line.feeding = true;
                taken.push(((**key).clone(), after));
            }
        }
        taken
    }

    /// A read for hungry keys has come to its end, or as far as `Some`.
    pub(crate) fn fed(&self, keys: &[(Key, i64)], as_far_as: Option<i64>) {
        let mut state = self.state();
        for (key, after) in keys {
            let Some(line) = state.lines.get_mut(key) else {
                continue;
            };
            // Blocked or closed meanwhile: nothing is owed.
            let owed = std::mem::take(&mut line.feeding);
            if let Some(last) = as_far_as {
                if owed {
                    line.more = line.more.or(Some(last.max(*after)));
                }
            } else if line.stage == Stage::Short && line.more.is_none() {
                state.lines.remove(key);
            }
        }
        let hungry = state.lines.values().any(|line| line.stage == Stage::Short);
        if hungry {
            self.hungry.notify_one();
        }
    }

    /// Keys with more in the table than they may have in memory.
    pub(crate) fn full(&self, limit: usize) -> Vec<Key> {
        let state = self.state();
        let full = state.lines.iter().filter(|(_, line)| line.more.is_some());
        full.take(limit).map(|(key, _)| (**key).clone()).collect()
    }
}

/// An event of this key is in the table that cannot be delivered yet: nothing after it is.
fn hold_back(state: &mut State, key: Key, lane: u8) {
    let Some(line) = state.lines.get_mut(&key) else {
        let key = Arc::new(key);
        let line = Line::new(Arc::clone(&key), lane, Stage::Blocked);
        state.lines.insert(key, line);
        return;
    };
    match line.stage {
        Stage::Blocked => {}
        Stage::Short => {
            line.stage = Stage::Blocked;
            (line.more, line.feeding) = (None, false);
        }
        // What is before it goes on; whatever is after is read again.
        Stage::Running => {
            line.more = line
                .more
                .or(Some(line.waiting.back().map_or(0, |last| last.admission.seq)))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;
    use crate::dispatch::InFlight;
    use crate::listen::Path;
    use crate::store::Lease;

    fn job(in_flight: &InFlight, seq: i64) -> Job {
        Job {
            admission: in_flight.admit(Lease { seq, token: 0 }, Instant::now()).unwrap(),
            event: Event::json("x", "{}").unwrap(),
            attempts: 0,
            done_by: Vec::new(),
            path: Path::Cold,
            lag: Duration::ZERO,
            queued_at: Instant::now(),
        }
    }

    fn stand(lines: &Lines, lane: u8, job: Job) -> Place {
        let key = a();
        lines.line_up(vec![Standing::Job { key, lane, job }]).remove(0)
    }

    fn hold_back(lines: &Lines) {
        lines.line_up(vec![Standing::HeldBack { key: a(), lane: 0 }]);
    }

    fn leave(lines: &Lines, seq: i64, delivered: bool) -> Next {
        lines.leave([(seq, delivered)])
    }

    fn a() -> Key {
        ("Order".to_owned(), "a".to_owned())
    }

    fn is_first(place: &Place) -> bool {
        matches!(place, Place::First(_))
    }

    #[test]
    fn one_runs_and_the_others_wait_in_their_order() {
        let (lines, in_flight) = (Lines::new(100), InFlight::default());
        assert!(is_first(&stand(&lines, 0, job(&in_flight, 1))));
        assert!(matches!(stand(&lines, 0, job(&in_flight, 3)), Place::Waits));
        assert!(matches!(stand(&lines, 0, job(&in_flight, 2)), Place::Waits));
        assert_eq!(lines.free(), 97);
        assert_eq!(leave(&lines, 1, true).first[0].admission.seq, 2);
        assert_eq!(leave(&lines, 2, true).first[0].admission.seq, 3);
        assert!(leave(&lines, 3, true).first.is_empty());
        assert_eq!(lines.free(), 100);
    }

    #[test]
    fn what_is_not_delivered_blocks_its_line_until_a_pass_begins() {
        let (lines, in_flight) = (Lines::new(100), InFlight::default());
        stand(&lines, 0, job(&in_flight, 1));
        stand(&lines, 0, job(&in_flight, 2));
        assert_eq!(leave(&lines, 1, false).dropped.len(), 1);
        assert!(matches!(stand(&lines, 0, job(&in_flight, 3)), Place::None(_)));
        assert_eq!(lines.free(), 100);
        lines.begin_pass();
        assert!(is_first(&stand(&lines, 0, job(&in_flight, 4))));
    }

    #[test]
    fn line_that_is_full_takes_nobody_in_until_it_is_fed() {
        let (lines, in_flight) = (Lines::new(16), InFlight::default());
        for seq in 1..=3 {
            stand(&lines, 0, job(&in_flight, seq));
        }
        assert!(matches!(stand(&lines, 0, job(&in_flight, 4)), Place::None(_)));
        assert_eq!(lines.full(9), [a()]);
        assert!(lines.take_hungry(9).is_empty(), "it is not short yet");
        leave(&lines, 1, true);
        leave(&lines, 2, true);
        assert_eq!(lines.take_hungry(9), [(a(), 3)]);
        // It runs dry while more is being read, and the read does not come as far as its next event.
        leave(&lines, 3, true);
        lines.fed(&[(a(), 3)], Some(9));
        assert!(
            matches!(stand(&lines, 0, job(&in_flight, 20)), Place::None(_)),
            "something before it may still be in the table"
        );
        assert_eq!(lines.take_hungry(9), [(a(), 9)]);
        lines.fed(&[(a(), 9)], None);
        assert!(is_first(&stand(&lines, 0, job(&in_flight, 21))));
    }

    #[test]
    fn event_that_rests_holds_back_what_comes_after_it() {
        let (lines, in_flight) = (Lines::new(100), InFlight::default());
        hold_back(&lines);
        assert!(matches!(stand(&lines, 0, job(&in_flight, 2)), Place::None(_)));
        lines.begin_pass();
        stand(&lines, 0, job(&in_flight, 3));
        hold_back(&lines);
        assert!(matches!(stand(&lines, 0, job(&in_flight, 5)), Place::None(_)));
    }

    #[test]
    fn closed_lanes_keep_only_what_runs() {
        let (lines, in_flight) = (Lines::new(100), InFlight::default());
        stand(&lines, 7, job(&in_flight, 1));
        stand(&lines, 7, job(&in_flight, 2));
        assert_eq!(lines.close([7].into_iter().collect()).len(), 1);
        assert_eq!(lines.free(), 99);
        assert!(leave(&lines, 1, true).first.is_empty());
        assert_eq!(lines.free(), 100);
    }
}
