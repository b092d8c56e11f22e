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
//! more in the table, and asks for it when it runs short.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    /// The key of every event that is running.
    running: HashMap<i64, Arc<Key>>,
    /// How many events are in lines, running or waiting.
    held: usize,
}

#[derive(Debug)]
struct Line {
    lane: u8,
    waiting: VecDeque<Job>,
    stage: Stage,
    /// There is more in the table, after this one.
    more: Option<i64>,
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

/// What follows when an event has left its line.
#[derive(Debug, Default)]
pub(crate) struct Next {
    /// To be delivered.
    pub(crate) first: Option<Job>,
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

    /// How many more events can be taken in.
    pub(crate) fn free(&self) -> usize {
        self.capacity.saturating_sub(self.state().held)
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

    /// Puts an event in line, in the order of `seq`.
    pub(crate) fn stand(&self, key: Key, lane: u8, job: Job) -> Place {
        let mut state = self.state();
        let state = &mut *state;
        let Some((key, line)) = lookup(&mut state.lines, &key) else {
            let key = Arc::new(key);
            state.running.insert(job.admission.seq, Arc::clone(&key));
            state.held += 1;
            let line = Line {
                lane,
                waiting: VecDeque::new(),
                stage: Stage::Running,
                more: None,
            };
            state.lines.insert(key, line);
            return Place::First(job);
        };
        match line.stage {
            Stage::Blocked => return Place::None(job),
            // Somebody asks for what comes before it.
            _ if line.more.is_some() => return Place::None(job),
            Stage::Short => {
                line.stage = Stage::Running;
                state.running.insert(job.admission.seq, key);
                state.held += 1;
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
        state.held += 1;
        Place::Waits
    }

    /// An event of this key is in the table that cannot be delivered yet: nothing after it is.
    pub(crate) fn hold_back(&self, key: Key, lane: u8) {
        let mut state = self.state();
        let Some((_, line)) = lookup(&mut state.lines, &key) else {
            let line = Line {
                lane,
                waiting: VecDeque::new(),
                stage: Stage::Blocked,
                more: None,
            };
            state.lines.insert(Arc::new(key), line);
            return;
        };
        match line.stage {
            Stage::Blocked => {}
            Stage::Short => {
                line.stage = Stage::Blocked;
                line.more = None;
            }
            // What is before it goes on; whatever is after is read again.
            Stage::Running => {
                line.more = line
                    .more
                    .or(Some(line.waiting.back().map_or(0, |last| last.admission.seq)))
            }
        }
    }

    /// An event's outcome is written, or it is no longer ours: then, and if it is to be delivered later, its line is blocked.
    pub(crate) fn leave(&self, seq: i64, delivered: bool) -> Next {
        let mut state = self.state();
        let state = &mut *state;
        let mut next = Next::default();
        let Some(key) = state.running.remove(&seq) else {
            return next;
        };
        state.held -= 1;
        let Some(line) = state.lines.get_mut(&key) else {
            return next;
        };
        if !delivered {
            line.stage = Stage::Blocked;
            line.more = None;
            next.dropped.extend(line.waiting.drain(..));
            state.held -= next.dropped.len();
        } else if let Some(job) = line.waiting.pop_front() {
            state.running.insert(job.admission.seq, key);
            next.first = Some(job);
            if line.more.is_some() && line.waiting.len() == self.per_key / 4 {
                self.hungry.notify_one();
            }
        } else if line.more.is_some() {
            line.stage = Stage::Short;
            self.hungry.notify_one();
        } else {
            state.lines.remove(&key);
        }
        if state.held * 2 <= self.capacity {
            self.room.notify_waiters();
        }
        next
    }

    /// Nothing of these lanes is taken in any more, and nothing of them waits. What runs, runs on.
    pub(crate) fn close(&self, lanes: LaneSet) -> Vec<Job> {
        let mut state = self.state();
        let state = &mut *state;
        let mut dropped = Vec::new();
        state.lines.retain(|_, line| {
            if lanes.contains(line.lane) {
                dropped.extend(line.waiting.drain(..));
                line.more = None;
            }
            line.stage == Stage::Running || !lanes.contains(line.lane)
        });
        state.held -= dropped.len();
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
                taken.push(((**key).clone(), after));
            }
        }
        taken
    }

    /// A read for hungry keys has come to its end, or as far as `Some`.
    pub(crate) fn fed(&self, keys: &[(Key, i64)], as_far_as: Option<i64>) {
        let mut state = self.state();
        for (key, after) in keys {
            let Some((key, line)) = lookup(&mut state.lines, key) else {
                continue;
            };
            if let Some(last) = as_far_as {
                line.more = line.more.or(Some(last.max(*after)));
            } else if line.stage == Stage::Short && line.more.is_none() {
                state.lines.remove(&key);
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

fn lookup<'a>(lines: &'a mut HashMap<Arc<Key>, Line>, key: &Key) -> Option<(Arc<Key>, &'a mut Line)> {
    let shared = lines.get_key_value(key).map(|(shared, _)| Arc::clone(shared))?;
    let line = lines.get_mut(key)?;
    Some((shared, line))
}
