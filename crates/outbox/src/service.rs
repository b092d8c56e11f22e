//! Background tasks, all of one shape: each runs until it is told to stop, shows a pulse, and its death is reported.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::engine::Stops;
use crate::error::Error;

/// No statement of ours may take longer.
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a statement of the store within [`STATEMENT_TIMEOUT`].
pub(crate) async fn in_time<T>(
    operation: &'static str,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(STATEMENT_TIMEOUT, work).await {
        Ok(result) => result,
        Err(_) => Err(Error::Timeout {
            operation,
            limit: STATEMENT_TIMEOUT,
        }),
    }
}

/// Shows that a loop still turns.
#[derive(Clone, Debug)]
pub(crate) struct Pulse {
    started: Instant,
    /// Milliseconds from `started` to the last beat.
    last: Arc<AtomicU64>,
}

impl Pulse {
    /// Loops beat at least this often, unless they are stuck.
    pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            last: Arc::default(),
        }
    }

    pub(crate) fn beat(&self) {
        let since = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(since, Ordering::Relaxed);
    }

    fn age(&self) -> Duration {
        self.started
            .elapsed()
            .saturating_sub(Duration::from_millis(self.last.load(Ordering::Relaxed)))
    }
}

/// How a background task is.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Condition {
    /// Its loop turns.
    Running,
    /// Its loop has not turned, or not succeeded, for too long.
    Stuck,
    /// It has panicked. Restart the process.
    Dead,
    /// It has ended, as it was told to.
    Stopped,
}

/// How the background tasks of an outbox are.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Health {
    /// Every task is running: events are being delivered.
    pub ready: bool,
    /// Each task.
    pub tasks: BTreeMap<&'static str, Condition>,
}

#[derive(Debug)]
struct Task {
    pulse: Pulse,
    patience: Duration,
    ended: Option<Condition>,
}

/// The background tasks of an outbox.
#[derive(Debug)]
pub(crate) struct Services {
    tracker: TaskTracker,
    /// No task outlives the hard stop, whatever it is waiting for; and none goes on when another has died.
    stops: Stops,
    tasks: Arc<Mutex<BTreeMap<&'static str, Task>>>,
    /// Cancelled when a task dies.
    died: CancellationToken,
    /// A task has ended.
    changed: Arc<Notify>,
}

impl Services {
    pub(crate) fn new(stops: Stops) -> Self {
        Self {
            tracker: TaskTracker::new(),
            stops,
            tasks: Arc::default(),
            died: CancellationToken::new(),
            changed: Arc::default(),
        }
    }

    /// Starts a task that shows a pulse at least every `patience`, or counts as stuck.
    pub(crate) fn start<F>(&self, name: &'static str, patience: Duration, task: impl FnOnce(Pulse) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let pulse = Pulse::new();
        let entry = Task {
            pulse: pulse.clone(),
            patience,
            ended: None,
        };
        self.tasks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name, entry);
        let (task, hard) = (task(pulse), self.stops.hard.clone());
        let running = tokio::spawn(async move {
            tokio::select! {
                biased;
                () = task => {}
                () = hard.cancelled() => {}
            }
        });
        let (tasks, changed) = (Arc::clone(&self.tasks), Arc::clone(&self.changed));
        let (died, stops) = (self.died.clone(), self.stops.clone());
        self.tracker.spawn(async move {
            let condition = match running.await {
                Ok(()) => Condition::Stopped,
                Err(error) => {
                    tracing::error!(task = name, %error, "a background task of the outbox has died; its delivery ends");
                    // A node that cannot finish what it takes must not keep it from the others.
                    stops.all();
                    died.cancel();
                    Condition::Dead
                }
            };
            if let Some(task) = tasks.lock().unwrap_or_else(PoisonError::into_inner).get_mut(name) {
                task.ended = Some(condition);
            }
            changed.notify_one();
        });
    }

    pub(crate) fn is_running(&self, name: &str) -> bool {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.get(name).is_some_and(|task| task.ended.is_none())
    }

    /// Returns when a task has ended since the last call.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(crate) fn health(&self) -> Health {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let tasks: BTreeMap<_, _> = tasks
            .iter()
            .map(|(name, task)| {
                let condition = task.ended.clone().unwrap_or(if task.pulse.age() > task.patience {
                    Condition::Stuck
                } else {
                    Condition::Running
                });
                (*name, condition)
            })
            .collect();
        Health {
            ready: tasks.values().all(|condition| *condition == Condition::Running),
            tasks,
        }
    }

    /// Returns when a task has died.
    pub(crate) async fn died(&self) {
        self.died.cancelled().await;
    }

    /// Waits for all tasks to end.
    pub(crate) async fn ended(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }
}
