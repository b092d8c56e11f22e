//! Notifications between processes, where the database has them. Sent after the commit, by a task of our own, at once and
//! then, as long as commits follow each other, a few dozen a second: a NOTIFY inside the business transaction would take a
//! lock that all commits share, and one for each of them would cost as much as the event.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::alarm::Alarm;
use crate::service::{Pulse, in_time};
use crate::store::{Born, Lease, News, Store};
use crate::write::{Committed, Handoff};

/// Between two notifications; twice as long each time that there is another one to be sent at its end.
const GAP: Duration = Duration::from_millis(2);
/// But no longer than this: what is busy looks by itself as often.
const LONGEST_GAP: Duration = Duration::from_millis(20);

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
        let mut gap = GAP;
        let mut rung = false;
        loop {
            pulse.beat();
            if !rung {
                tokio::select! {
                    () = soft.cancelled() => return,
                    () = tokio::time::sleep(Pulse::INTERVAL) => continue,
                    () = self.bell.0.notified() => {}
                }
            }
            // A notification that is lost costs its receivers a poll interval.
            if let Err(error) = in_time("notifying", self.store.notify(News::Events)).await {
                tracing::error!(%error, "other nodes could not be notified");
            }
            let over = Instant::now() + gap;
            rung = tokio::time::timeout_at(over, self.bell.0.notified()).await.is_ok();
            gap = if rung { (gap * 2).min(LONGEST_GAP) } else { GAP };
            if soft.is_cancelled() {
                return;
            }
            if rung {
                tokio::time::sleep_until(over).await;
            }
        }
    }
}

/// Wakes the poller when a notification comes, and the lane keeper when it is of lanes.
pub(crate) struct Wakener {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) alarm: Arc<Alarm>,
    pub(crate) lanes: Arc<Notify>,
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
        self.heard(News::Lanes);
        loop {
            pulse.beat();
            tokio::select! {
                next = wakeups.next() => self.heard(next?),
                () = tokio::time::sleep(Pulse::INTERVAL) => {}
            }
        }
    }

    fn heard(&self, news: News) {
        self.alarm.ring();
        if news == News::Lanes {
            self.lanes.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::store::memory::{Memory, MemoryPool};
    use crate::{Backend, TableName};

    /// Rings so often, with such pauses; returns how often others were notified.
    async fn notified(rings: u32, pause: Duration) -> usize {
        let store = <Memory as Backend>::store(&MemoryPool::new(), &TableName::default());
        let mut wakeups = store.wakeups().await.unwrap().unwrap();
        let heard = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&heard);
        let hearing = tokio::spawn(async move {
            while wakeups.next().await.is_ok() {
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        let (bell, soft) = (Arc::new(Bell::default()), CancellationToken::new());
        let notifier = Notifier {
            bell: Arc::clone(&bell),
            store,
        };
        let notifying = tokio::spawn(notifier.run(soft.clone(), Pulse::new()));
        for _ in 0..rings {
            bell.ring();
            tokio::time::sleep(pause).await;
        }
        soft.cancel();
        notifying.await.unwrap();
        hearing.abort();
        heard.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn commits_that_follow_each_other_share_notifications() {
        assert_eq!(
            notified(20, Duration::from_millis(50)).await,
            20,
            "each is told of at once"
        );
        let of_a_second = notified(1_000, Duration::from_millis(1)).await;
        assert!((40..=60).contains(&of_a_second), "{of_a_second}");
    }
}
