//! Dispatching: workers take events from the queues, call the listeners, and pass the outcome to the settler.

mod guard;
mod inflight;
mod lines;
mod queue;
mod worker;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::intercept::Interceptor;
use crate::listen::{Path, Router};
use crate::retry::RetryPolicy;
use crate::settle::{Outcome, Outcomes};
use crate::store::{BadRow, Claimed, Lease, Ownership, Verdict};
use crate::telemetry::Telemetry;

pub(crate) use inflight::{Admission, InFlight, Settling};
pub(crate) use lines::{Lines, Standing, key};
use lines::{Next, Place};
pub(crate) use queue::{Job, Popped, Queues};

/// What workers, poller, hot path and lease keeper share.
pub(crate) struct Dispatcher {
    pub(crate) queues: Queues,
    pub(crate) in_flight: InFlight,
    /// Events of one key, in order. Empty where there is none.
    pub(crate) lines: Lines,
    /// How cold rows are owned.
    pub(crate) ownership: Ownership,
    /// A dead event keeps its key from going on.
    pub(crate) parks: bool,
    pub(crate) router: Router,
    pub(crate) interceptors: Vec<Arc<dyn Interceptor>>,
    pub(crate) retry: Arc<dyn RetryPolicy>,
    pub(crate) retry_by_type: HashMap<String, Arc<dyn RetryPolicy>>,
    pub(crate) outcomes: Outcomes,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) lease: Duration,
    /// Held from before a claim until its rows are admitted: whoever has it knows of every row that is ours.
    pub(crate) claiming: tokio::sync::Mutex<()>,
    /// What delivered rows turn into.
    pub(crate) done: Verdict,
}

impl std::fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatcher")
            .field("router", &self.router)
            .finish_non_exhaustive()
    }
}

impl Dispatcher {
    /// No delivery starts on a lease that ends sooner than this.
    pub(crate) fn margin(&self) -> Duration {
        self.lease / 10
    }

    /// Queues an event that is in memory. False if there is no room.
    pub(crate) fn enqueue_hot(&self, lease: Lease, event: crate::Event, deadline: Instant) -> bool {
        let Some(admission) = self.in_flight.admit(lease, deadline) else {
            return true;
        };
        let job = Job {
            admission,
            event,
            attempts: 0,
            done_by: Vec::new(),
            path: Path::Hot,
            lag: Duration::ZERO,
            queued_at: Instant::now(),
        };
        let queued = self.queues.push(job).is_ok();
        if !queued {
            self.in_flight.remove(admission);
        }
        queued
    }

    /// Queues rows that are ours and admitted. What cannot be decoded is settled at once. Returns what there was no room
    /// for.
    pub(crate) async fn enqueue_cold(&self, rows: impl IntoIterator<Item = (Admission, Claimed)>) -> Vec<Admission> {
        let queued_at = Instant::now();
        let mut jobs = Vec::new();
        for (admission, row) in rows {
            match Job::cold(admission, row, queued_at) {
                Ok(job) => jobs.push(job),
                Err((bad, done_by)) => self.bury(admission, bad, done_by).await,
            }
        }
        let wanted = jobs.len();
        let no_room = self.queues.push_cold(jobs);
        self.telemetry.cold_enqueued.increment((wanted - no_room.len()) as u64);
        let no_room: Vec<Admission> = no_room.iter().map(|job| job.admission).collect();
        self.in_flight.settled(no_room.iter().copied());
        no_room
    }

    /// A row that cannot be decoded is dead.
    async fn bury(&self, admission: Admission, bad: BadRow, done_by: Vec<String>) {
        let BadRow { event_id, error } = bad;
        tracing::error!(event.id = %event_id, seq = admission.seq, %error, "a row cannot be decoded, it is dead");
        self.telemetry.dead.increment(1);
        let error = format!("the row cannot be decoded: {error}");
        let verdict = match self.parks {
            true => Verdict::DeadAndParked { error, done_by },
            false => Verdict::Dead { error, done_by },
        };
        self.settle(admission, verdict).await;
    }

    /// Puts rows in line, and queues the first of each. Returns for how many there was a place.
    pub(crate) fn enqueue_in_order(&self, rows: Vec<Standing>) -> usize {
        let (mut first, mut waiting) = (Vec::new(), 0);
        for place in self.lines.line_up(rows) {
            match place {
                Place::First(job) => first.push(job),
                Place::Waits => waiting += 1,
                Place::None(job) => self.in_flight.remove(job.admission),
            }
        }
        let placed = first.len() + waiting;
        self.telemetry.cold_enqueued.increment(placed as u64);
        self.push_first(first);
        placed
    }

    /// There is room for every one of them; only a shutdown closes the queue.
    fn push_first(&self, first: Vec<Job>) {
        for job in self.queues.push_cold(first) {
            self.let_go(job.admission);
        }
    }

    /// How many events are queued, with a listener, or on their way to their row: without those that stand in line.
    pub(crate) fn under_way(&self) -> usize {
        self.in_flight.len().saturating_sub(self.lines.waiting())
    }

    /// An event that was not begun is no longer ours to deliver.
    pub(crate) fn let_go(&self, admission: Admission) {
        self.in_flight.remove(admission);
        self.left(admission, false);
    }

    /// What comes after an event in its line.
    pub(crate) fn left(&self, admission: Admission, delivered: bool) {
        self.all_left([(admission, delivered)]);
    }

    /// What comes after each of these events in its line.
    pub(crate) fn all_left(&self, left: impl IntoIterator<Item = (Admission, bool)>) {
        if self.ownership != Ownership::Keys {
            return;
        }
        let left = left
            .into_iter()
            .map(|(admission, delivered)| (admission.seq, delivered));
        let Next { first, dropped } = self.lines.leave(left);
        self.in_flight.settled(dropped.iter().map(|job| job.admission));
        self.telemetry.cold_enqueued.increment(first.len() as u64);
        self.push_first(first);
    }

    /// Passes an outcome on. Waits while the settler is behind: nothing new is begun then.
    async fn settle(&self, admission: Admission, verdict: Verdict) {
        let put = self.outcomes.put(Outcome { admission, verdict }).await;
        // The settler outlives all who have outcomes; if it died, so does the outbox, and leases end by themselves.
        if put.is_err() {
            tracing::error!(
                seq = admission.seq,
                "an outcome was lost, because the settler has ended; the event will be delivered again"
            );
        }
    }
}
