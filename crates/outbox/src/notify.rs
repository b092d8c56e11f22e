//! Notifications between processes, where the database has them. Sent after the commit, by a task of our own, a few
//! hundred a second at most: a NOTIFY inside the business transaction would take a lock that all commits share.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::alarm::Alarm;
use crate::service::{Pulse, in_time};
use crate::store::{Born, Lease, Store};
use crate::write::{Committed, Handoff};

/// Between two notifications.
const GAP: Duration = Duration::from_millis(2);

/// The hand-over of a process that only writes: wakes those that deliver.
#[derive(Debug, Default)]
pub(crate) struct Bell(Notify);

impl Bell {
    pub(crate) fn ring(&self) {
        self.0.notify_one();
    }
}

impl Handoff for Bell {
    fn born(&self) -> Option<Born<'_>> {
        None
    }

    fn committed(&self, _events: Vec<Committed>) {
        self.0.notify_one();
    }

    fn unconfirmed(&self, _leases: Vec<(Lease, Instant)>) {
        self.0.notify_one();
    }
}

/// Sends a notification when the bell was rung, one for all that rang meanwhile.
pub(crate) struct Notifier {
    pub(crate) bell: Arc<Bell>,
    pub(crate) store: Arc<dyn Store>,
}

impl Notifier {
    /// Runs until `soft` is cancelled.
    pub(crate) async fn run(self, soft: CancellationToken, pulse: Pulse) {
        loop {
            pulse.beat();
            tokio::select! {
                () = soft.cancelled() => return,
                () = tokio::time::sleep(Pulse::INTERVAL) => continue,
                () = self.bell.0.notified() => {}
            }
            // A notification that is lost costs its receivers a poll interval.
            if let Err(error) = in_time("notifying", self.store.notify()).await {
                tracing::error!(%error, "other nodes could not be notified");
            }
            tokio::time::sleep(GAP).await;
        }
    }
}

/// Wakes the poller when a notification comes.
pub(crate) struct Wakener {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) alarm: Arc<Alarm>,
}

impl Wakener {
    /// Runs until `soft` is cancelled; ends at once where the database has no notifications.
    pub(crate) async fn run(self, soft: CancellationToken, pulse: Pulse) {
        let mut wait = Duration::from_millis(100);
        loop {
            let error = tokio::select! {
                () = soft.cancelled() => return,
                result = self.listen(&pulse) => match result {
                    Ok(()) => return soft.cancelled().await,
                    Err(error) => error,
                },
            };
            pulse.beat();
            tracing::error!(%error, "notifications are not heard, polling meanwhile");
            tokio::select! {
                () = soft.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
            wait = (wait * 2).min(Duration::from_secs(5));
        }
    }

    async fn listen(&self, pulse: &Pulse) -> Result<(), crate::Error> {
        let Some(mut wakeups) = in_time("listening", self.store.wakeups()).await? else {
            return Ok(());
        };
        // Whatever was said while nobody listened.
        self.alarm.ring();
        loop {
            pulse.beat();
            tokio::select! {
                next = wakeups.next() => {
                    next?;
                    self.alarm.ring();
                }
                () = tokio::time::sleep(Pulse::INTERVAL) => {}
            }
        }
    }
}
