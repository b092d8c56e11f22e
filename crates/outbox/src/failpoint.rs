//! Fail points: places where a test can make the process die, and only with the feature `failpoints`. Without it they
//! compile to nothing.
//!
//! | point | the moment |
//! |---|---|
//! | `before-insert` | an event is about to be written in the caller's transaction |
//! | `after-insert` | it is written, the transaction is open |
//! | `after-commit` | the database has said that it is committed; nothing has been handed over |
//! | `after-listener` | a listener has answered; nobody has been told |
//! | `in-settle` | a batch of outcomes is about to be written |
//! | `in-purge` | a step of a purge is about to run |
//!
//! One point of a process is armed by the environment: `OUTBOX_FAILPOINT=in-settle:3` kills it with SIGKILL when the point
//! is reached for the third time, and `in-settle:3:1500` 1500 microseconds after that, which is to say somewhere inside of
//! the statement that follows. A caller may have points of its own (`hit`).
//!
//! Two more things that only tests want: every store can be wrapped (`wrap_stores`), to be watched or to be broken; and
//! `OUTBOX_BROKEN=hot-before-commit` hands events over before their transaction is committed. A checker that has never
//! failed is not trusted; these make it fail.

/// Dies here, if the process is armed for this point.
macro_rules! fail_point {
    ($name:literal) => {
        #[cfg(feature = "failpoints")]
        $crate::failpoint::hit($name)
    };
}
pub(crate) use fail_point;

#[cfg(feature = "failpoints")]
pub(crate) use armed::wrapped;
#[cfg(feature = "failpoints")]
pub use armed::{disarm, hit, is_broken, wrap_stores};

/// The store as it is.
#[cfg(not(feature = "failpoints"))]
pub(crate) fn wrapped(store: std::sync::Arc<dyn crate::store::Store>) -> std::sync::Arc<dyn crate::store::Store> {
    store
}

#[cfg(feature = "failpoints")]
mod armed {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::{Arc, LazyLock, OnceLock};
    use std::time::Duration;

    use rustix::process::{Signal, getpid, kill_process};

    use crate::store::Store;

    #[derive(Debug)]
    struct Armed {
        point: String,
        /// How often it may still be reached, this time included.
        left: AtomicU64,
        delay: Duration,
    }

    static ARMED: LazyLock<Option<Armed>> = LazyLock::new(|| {
        let spec = std::env::var("OUTBOX_FAILPOINT").ok()?;
        let armed = parse(&spec);
        assert!(
            armed.is_some(),
            "OUTBOX_FAILPOINT is POINT:COUNT[:MICROSECONDS], not {spec:?}"
        );
        armed
    });
    static DISARMED: AtomicBool = AtomicBool::new(false);
    static BROKEN: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("OUTBOX_BROKEN").ok());
    static WRAPPER: OnceLock<Wrapper> = OnceLock::new();

    type Wrapper = Box<dyn Fn(Arc<dyn Store>) -> Arc<dyn Store> + Send + Sync>;

    fn parse(spec: &str) -> Option<Armed> {
        let mut parts = spec.split(':');
        let point = parts.next()?.to_owned();
        let count: u64 = parts.next()?.parse().ok()?;
        let delay = Duration::from_micros(parts.next().map_or(Ok(0), str::parse).ok()?);
        (count > 0 && parts.next().is_none()).then_some(Armed {
            point,
            left: AtomicU64::new(count),
            delay,
        })
    }

    /// Reaches a point. Does not return if this is where the process dies at once.
    pub fn hit(point: &str) {
        let Some(armed) = ARMED.as_ref().filter(|armed| armed.point == point) else {
            return;
        };
        if DISARMED.load(Ordering::SeqCst) || armed.left.fetch_sub(1, Ordering::SeqCst) != 1 {
            return;
        }
        if armed.delay.is_zero() {
            die();
        }
        let delay = armed.delay;
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            if !DISARMED.load(Ordering::SeqCst) {
                die();
            }
        });
    }

    fn die() -> ! {
        // No destructor runs, no buffer is flushed, no socket is closed by us: the kernel does what it does for `kill -9`.
        let killed = kill_process(getpid(), Signal::KILL);
        unreachable!("a process can kill itself: {killed:?}")
    }

    /// From here on no point kills this process.
    pub fn disarm() {
        DISARMED.store(true, Ordering::SeqCst);
    }

    /// Whether this process is to be wrong in this way.
    pub fn is_broken(way: &str) -> bool {
        BROKEN.as_deref() == Some(way)
    }

    /// Passes every store of this process through `wrapper`, for outboxes that are built from now on. The first call wins.
    pub fn wrap_stores(wrapper: impl Fn(Arc<dyn Store>) -> Arc<dyn Store> + Send + Sync + 'static) {
        // A second wrapper would be a mistake of the test, which its results will show.
        let _ = WRAPPER.set(Box::new(wrapper));
    }

    pub(crate) fn wrapped(store: Arc<dyn Store>) -> Arc<dyn Store> {
        match WRAPPER.get() {
            Some(wrapper) => wrapper(store),
            None => store,
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_point_has_a_count_and_perhaps_a_delay() {
            let armed = parse("in-settle:3:1500").unwrap();
            assert_eq!(
                (armed.point.as_str(), armed.delay),
                ("in-settle", Duration::from_micros(1500))
            );
            assert_eq!(parse("in-settle:3").unwrap().delay, Duration::ZERO);
            for wrong in [
                "",
                "in-settle",
                "in-settle:0",
                "in-settle:x",
                "in-settle:1:x",
                "in-settle:1:2:3",
            ] {
                assert!(parse(wrong).is_none(), "{wrong}");
            }
        }
    }
}
