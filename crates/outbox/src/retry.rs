//! When a failed event is tried again: the policies.

use std::fmt;
use std::time::Duration;

/// When a failed event is tried again, and when it is given up.
pub trait RetryPolicy: Send + Sync + fmt::Debug + 'static {
    /// The wait before the next attempt, after `failed` failed ones (at least one); `None` gives the event up.
    fn delay(&self, failed: u32) -> Option<Duration>;
}

/// Waits longer with each failure: `min(max, base * multiplier^(failed - 1))`, times a random factor if `jitter`.
///
/// The default is 200 ms, doubling up to 60 s, ten attempts in all, times 0.5 to 1.5.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Exponential {
    /// The first wait.
    pub base: Duration,
    /// The longest wait.
    pub max: Duration,
    /// By how much a wait is longer than the one before.
    pub multiplier: f64,
    /// How many attempts in all, the first included.
    pub attempts: u32,
    /// Multiply each wait with a random number from 0.5 to 1.5, so that what failed together is not tried together.
    pub jitter: bool,
}

impl Default for Exponential {
    fn default() -> Self {
        Self {
            base: Duration::from_millis(200),
            max: Duration::from_secs(60),
            multiplier: 2.0,
            attempts: 10,
            jitter: true,
        }
    }
}

impl Exponential {
    /// With another first and longest wait.
    pub fn new(base: Duration, max: Duration) -> Self {
        Self {
            base,
            max,
            ..Self::default()
        }
    }

    /// How many attempts in all.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// By how much a wait is longer than the one before.
    pub fn multiplier(mut self, multiplier: f64) -> Self {
        self.multiplier = multiplier;
        self
    }

    /// Without the random factor.
    pub fn without_jitter(mut self) -> Self {
        self.jitter = false;
        self
    }
}

impl RetryPolicy for Exponential {
    fn delay(&self, failed: u32) -> Option<Duration> {
        if failed >= self.attempts {
            return None;
        }
        let growth = self
            .multiplier
            .max(1.0)
            .powi(i32::try_from(failed.saturating_sub(1)).unwrap_or(i32::MAX));
        let delay = (self.base.as_secs_f64() * growth).min(self.max.as_secs_f64());
        let factor = if self.jitter { rand::random_range(0.5..1.5) } else { 1.0 };
        Some(Duration::try_from_secs_f64(delay * factor).unwrap_or(self.max))
    }
}

/// Waits the same each time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    delay: Duration,
    attempts: u32,
}

impl Fixed {
    /// This wait, and this many attempts in all.
    pub fn new(delay: Duration, attempts: u32) -> Self {
        Self { delay, attempts }
    }
}

impl RetryPolicy for Fixed {
    fn delay(&self, failed: u32) -> Option<Duration> {
        (failed < self.attempts).then_some(self.delay)
    }
}

/// Gives up at the first failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRetry;

impl RetryPolicy for NoRetry {
    fn delay(&self, _failed: u32) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_that_of_the_contract() {
        let policy = Exponential::default();
        for failed in 1..10 {
            let expected = (0.2 * 2_f64.powi(failed - 1)).min(60.0);
            for _ in 0..100 {
                let delay = policy.delay(failed.cast_unsigned()).unwrap().as_secs_f64();
                assert!(delay >= expected * 0.5 && delay < expected * 1.5, "{failed}: {delay}");
            }
        }
        assert_eq!(policy.delay(10), None);
    }

    #[test]
    fn large_numbers_end_at_the_longest_wait() {
        let policy = Exponential::default().attempts(u32::MAX).without_jitter();
        assert_eq!(policy.delay(1_000_000), Some(Duration::from_secs(60)));
    }

    #[test]
    fn fixed_and_none() {
        assert_eq!(
            Fixed::new(Duration::from_secs(1), 3).delay(2),
            Some(Duration::from_secs(1))
        );
        assert_eq!(Fixed::new(Duration::from_secs(1), 3).delay(3), None);
        assert_eq!(NoRetry.delay(1), None);
    }
}
