//! The clock that all processes of a run share, and that nobody can set.

use rustix::time::{ClockId, clock_gettime};

/// Microseconds since the machine started.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000
}
