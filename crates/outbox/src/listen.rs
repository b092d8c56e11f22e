//! Listening: what a service does with an event, and what it can answer.

mod handler;
mod router;

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use async_trait::async_trait;

use crate::event::{AggregateType, Event, EventType};

pub use handler::{Handler, TypedHandler};
pub use router::{DuplicateListener, Subscription};
pub(crate) use router::{Listening, Router};

/// An event on its way to a listener. Reads like the [`Event`] it carries.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Delivery {
    event: Event,
    /// Which attempt this is, from one. Only failures are counted: after a crash the same number comes again.
    pub attempt: u32,
    /// How it came.
    pub path: Path,
}

/// How an event came to its listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Path {
    /// From memory, right after the commit.
    Hot,
    /// From the table.
    Cold,
}

impl Path {
    /// As metrics name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Cold => "cold",
        }
    }
}

impl Delivery {
    pub(crate) fn new(event: Event, attempt: u32, path: Path) -> Self {
        Self { event, attempt, path }
    }

    /// The event.
    pub fn event(&self) -> &Event {
        &self.event
    }
}

impl Deref for Delivery {
    type Target = Event;

    fn deref(&self) -> &Event {
        &self.event
    }
}

/// What a listener answers.
pub type Handled = Result<(), Failure>;

/// Why an event is not delivered yet. Any error turns into one with `?`, and is then tried again.
#[derive(Debug)]
pub struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) error: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    Retry,
    RetryAfter(Duration),
    Defer(Duration),
    Permanent,
}

impl Failure {
    /// Try again, when the retry policy says. The attempt is counted.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self {
            kind: FailureKind::Retry,
            error: error.to_string(),
        }
    }

    /// Try again after this long. The attempt is counted, and the last one is the last.
    pub fn retry_after(delay: Duration, error: impl fmt::Display) -> Self {
        Self {
            kind: FailureKind::RetryAfter(delay),
            error: error.to_string(),
        }
    }

    /// Not now, but after this long. Nothing failed: nothing is counted.
    pub fn defer(delay: Duration) -> Self {
        Self {
            kind: FailureKind::Defer(delay),
            error: "deferred".to_owned(),
        }
    }

    /// Never: the event is dead at once.
    pub fn permanent(error: impl fmt::Display) -> Self {
        Self {
            kind: FailureKind::Permanent,
            error: error.to_string(),
        }
    }
}

impl Failure {
    /// Nothing failed: the event was put off.
    pub fn is_deferral(&self) -> bool {
        matches!(self.kind, FailureKind::Defer(_))
    }

    /// The event is dead at once.
    pub fn is_permanent(&self) -> bool {
        self.kind == FailureKind::Permanent
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error)
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            // Many errors say their source themselves.
            if !text.contains(&cause_text) {
                text.push_str(": ");
                text.push_str(&cause_text);
            }
            source = cause.source();
        }
        Self {
            kind: FailureKind::Retry,
            error: text,
        }
    }
}

/// Delivers events: to code in this process, or as a sink to something outside.
///
/// Most listeners are closures: see [`Builder::listen`](crate::Builder::listen). Implement this, with
/// [`outbox::async_trait`](crate::async_trait), for one that takes several events at once.
///
/// - **Delivery** is at least once: after a crash, a lost connection or a failed answer of another listener the same event
///   comes again, with the same id. Answer `Ok` only when the effect is safe.
/// - **Concurrency**: called from as many workers as there are, unless limited.
/// - **Order**: none.
/// - **Cancellation**: the future is dropped when it takes longer than its timeout, and when a shutdown cannot wait any
///   longer; the event is then delivered again.
/// - **Panics** are failed attempts.
#[async_trait]
pub trait Listener: Send + Sync + 'static {
    /// Takes between one and [`max_batch`](Self::max_batch) events, and answers for each, in their order. What is not
    /// answered for counts as failed.
    async fn deliver(&self, batch: &[Delivery]) -> Vec<Handled>;

    /// How many events it takes at once. Default: one.
    fn max_batch(&self) -> usize {
        1
    }
}

/// Which events a listener is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Route {
    /// Those of an aggregate and an event type.
    Of(AggregateType, EventType),
    /// All of them.
    All,
}
