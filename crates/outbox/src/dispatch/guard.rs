use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// How a guarded future ended, other than well.
pub(super) enum Broken {
    Panicked(String),
    TimedOut,
}

/// Runs somebody else's future: a panic stays inside, and it ends in time.
pub(super) async fn guarded<T>(work: impl Future<Output = T>, timeout: Duration) -> Result<T, Broken> {
    let mut work = pin!(work);
    // Set when it is first looked at in vain: much of it is done at once.
    let mut timer = pin!(None);
    std::future::poll_fn(|context| {
        match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
            Ok(Poll::Pending) => {}
            Ok(Poll::Ready(value)) => return Poll::Ready(Ok(value)),
            Err(panic) => return Poll::Ready(Err(Broken::Panicked(message(&*panic)))),
        }
        if timer.is_none() {
            // Work that uses up its task's budget every time must not keep it from being looked at.
            timer.set(Some(tokio::task::unconstrained(tokio::time::sleep(timeout))));
        }
        match timer.as_mut().as_pin_mut() {
            Some(timer) => timer.poll(context).map(|()| Err(Broken::TimedOut)),
            None => Poll::Pending,
        }
    })
    .await
}

fn message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn work_ends_in_time_also_if_it_never_rests() {
        let never = async {
            loop {
                tokio::task::consume_budget().await;
            }
        };
        let ended = tokio::time::timeout(Duration::from_secs(30), guarded(never, SHORT)).await;
        assert!(matches!(ended, Ok(Err::<(), _>(Broken::TimedOut))));
        let ended = guarded(std::future::pending::<()>(), SHORT).await;
        assert!(matches!(ended, Err(Broken::TimedOut)));
    }

    #[tokio::test]
    async fn panics_stay_inside_at_once_and_later() {
        for yields in 0..2 {
            let panics = async move {
                for _ in 0..yields {
                    tokio::task::yield_now().await;
                }
                panic!("on purpose");
            };
            let ended = guarded::<()>(panics, Duration::from_secs(30)).await;
            assert!(matches!(ended, Err(Broken::Panicked(message)) if message == "on purpose"));
        }
    }
}
