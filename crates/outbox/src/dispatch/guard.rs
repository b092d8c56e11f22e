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
    let mut caught = pin!(std::future::poll_fn(|context| {
        match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
            Err(panic) => Poll::Ready(Err(Broken::Panicked(message(&*panic)))),
        }
    },));
    // Much of it is done at once, and needs no timer.
    let at_once = std::future::poll_fn(|context| Poll::Ready(caught.as_mut().poll(context)));
    if let Poll::Ready(result) = at_once.await {
        return result;
    }
    match tokio::time::timeout(timeout, caught).await {
        Ok(result) => result,
        Err(_) => Err(Broken::TimedOut),
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}
