//! Dispatching: workers take events from the queues, call the listeners, and pass the outcome to the settler.

mod guard;
mod inflight;
mod queue;
mod worker;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::intercept::Interceptor;
use crate::listen::{Path, Router};
use crate::retry::RetryPolicy;
use crate::settle::Outcome;
use crate::store::{Claimed, Lease, Verdict};
use crate::telemetry::Telemetry;

pub(crate) use inflight::{Admission, InFlight};
pub(crate) use queue::{Job, Queues};

/// What workers, poller, hot path and lease keeper share.
pub(crate) struct Dispatcher {
    pub(crate) queues: Queues,
    pub(crate) in_flight: InFlight,
    pub(crate) router: Router,
    pub(crate) interceptors: Vec<Arc<dyn Interceptor>>,
    pub(crate) retry: Arc<dyn RetryPolicy>,
    pub(crate) retry_by_type: HashMap<String, Arc<dyn RetryPolicy>>,
    pub(crate) outcomes: mpsc::Sender<Outcome>,
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

    /// Queues a row that is ours and admitted. What cannot be decoded is settled at once.
    ///
    /// # Errors
    /// The lease, if there is no room.
    pub(crate) async fn enqueue_cold(&self, admission: Admission, row: Claimed) -> Result<(), Lease> {
        let Claimed {
            lease,
            event,
            event_id,
            attempts,
            done_by,
            lag,
            ..
        } = row;
        match event {
            Ok(event) => {
                let queued_at = Instant::now();
                let job = Job {
                    admission,
                    event,
                    attempts,
                    done_by,
                    path: Path::Cold,
                    lag,
                    queued_at,
                };
                if self.queues.push(job).is_err() {
                    self.in_flight.remove(admission);
                    return Err(lease);
                }
                self.telemetry.cold_enqueued.increment(1);
            }
            Err(error) => {
                tracing::error!(event.id = %event_id, seq = lease.seq, %error, "a row cannot be decoded, it is dead");
                self.telemetry.dead.increment(1);
                let error = format!("the row cannot be decoded: {error}");
                self.settle(admission, Verdict::Dead { error, done_by }).await;
            }
        }
        Ok(())
    }

    /// Passes an outcome on. Waits while the settler is behind: nothing new is begun then.
    async fn settle(&self, admission: Admission, verdict: Verdict) {
        // The settler outlives all who send to it; if it died, so does the outbox, and leases end by themselves.
        if self.outcomes.send(Outcome { admission, verdict }).await.is_err() {
            tracing::error!(
                seq = admission.seq,
                "an outcome was lost, because the settler has ended; the event will be delivered again"
            );
        }
    }
}
