use std::panic::Location;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

const INTERVAL: Duration = Duration::from_millis(5);

/// Polls `probe` every few milliseconds until it returns `Some`, and returns what is in it.
///
/// For what gives no signal to wait on. `what` completes the sentence "waited in vain for ..".
///
/// # Panics
///
/// When the probe has not succeeded by the deadline, be it that it returned `None` or that it hangs. The message has
/// `what` and the place of the call.
#[track_caller]
pub fn eventually<T>(
    what: &str,
    deadline: Duration,
    mut probe: impl AsyncFnMut() -> Option<T>,
) -> impl Future<Output = T> {
    let caller = Location::caller();
    async move {
        let end = Instant::now() + deadline;
        loop {
            match timeout_at(end, probe()).await {
                Ok(Some(found)) => return found,
                Ok(None) if Instant::now() < end => sleep(INTERVAL).await,
                Ok(None) => panic!("{caller}: waited {deadline:?} in vain for {what}"),
                Err(_) => panic!("{caller}: waited {deadline:?} in vain for {what} (the probe hangs)"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn returns_what_the_probe_found() {
        let mut calls = 0;
        let found = eventually("the third call", Duration::from_secs(10), async || {
            calls += 1;
            (calls == 3).then_some("found")
        })
        .await;
        assert_eq!(found, "found");
        assert_eq!(calls, 3);
    }

    #[tokio::test]
    #[should_panic(expected = "waited 20ms in vain for a miracle")]
    async fn panics_at_the_deadline() {
        eventually("a miracle", Duration::from_millis(20), async || None::<()>).await;
    }

    #[tokio::test]
    #[should_panic(expected = "in vain for an answer (the probe hangs)")]
    async fn panics_at_the_deadline_although_the_probe_hangs() {
        eventually("an answer", Duration::from_millis(20), async || {
            std::future::pending::<Option<()>>().await
        })
        .await;
    }

    #[tokio::test]
    async fn can_be_used_in_a_spawned_task() {
        tokio::spawn(async {
            eventually("nothing", Duration::from_secs(1), async || Some(())).await;
        })
        .await
        .unwrap();
    }
}
