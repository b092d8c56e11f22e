//! What operators ask about, and what they are told.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::event::{Event, EventError, EventId};

/// Where an event stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Status {
    /// Written, not yet delivered.
    New = 0,
    /// Delivered.
    Done = 1,
    /// Failed, to be tried again.
    Retry = 2,
    /// Failed for good.
    Dead = 3,
}

impl Status {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::New, Self::Done, Self::Retry, Self::Dead];

    /// The number in the table.
    pub fn code(self) -> i64 {
        self as i64
    }

    /// The status of a number in the table.
    pub fn from_code(code: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.code() == code)
    }

    /// The name, in small letters.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Done => "done",
            Self::Retry => "retry",
            Self::Dead => "dead",
        }
    }

    /// Whether somebody still has to deliver it.
    pub fn is_pending(self) -> bool {
        matches!(self, Self::New | Self::Retry)
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// Everything the table knows of an event.
#[derive(Debug)]
#[non_exhaustive]
pub struct StoredEvent {
    /// Its place in the order of writing.
    pub seq: i64,
    /// The id as the row has it, decodable or not.
    pub event_id: String,
    /// The event, or why the row is none.
    pub event: Result<Event, EventError>,
    /// Where it stands.
    pub status: Status,
    /// Failed attempts so far.
    pub attempts: u32,
    /// When it was written, by the database's clock, like all times but `occurred_at`.
    pub created_at: DateTime<Utc>,
    /// When it is, or was, due.
    pub available_at: DateTime<Utc>,
    /// When it was delivered.
    pub done_at: Option<DateTime<Utc>>,
    /// When it was given up.
    pub dead_at: Option<DateTime<Utc>>,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
    /// The node that is delivering it.
    pub locked_by: Option<String>,
    /// Until when that node owns it.
    pub lease_until: Option<DateTime<Utc>>,
    /// The fence: how often it changed hands.
    pub token: i64,
    /// The lane of its key.
    pub lane: i64,
    /// The named listeners that have succeeded already.
    pub done_by: Vec<String>,
}

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Attempt {
    /// Which one, from one; a replay starts anew.
    pub attempt: u32,
    /// The node that made it.
    pub node: String,
    /// Why it failed.
    pub error: String,
    /// When, by the database's clock.
    pub failed_at: DateTime<Utc>,
}

/// Which events. Everything that is set must hold; nothing set means all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Filter {
    /// Exactly this event.
    pub id: Option<EventId>,
    /// One of these; empty means any.
    pub statuses: Vec<Status>,
    /// Of this type.
    pub event_type: Option<String>,
    /// About this kind of thing.
    pub aggregate_type: Option<String>,
    /// About this one.
    pub aggregate_id: Option<String>,
    /// Of this tenant.
    pub tenant_id: Option<String>,
    /// Written at or after this instant, by the database's clock.
    pub created_from: Option<DateTime<Utc>>,
    /// Written before this instant.
    pub created_until: Option<DateTime<Utc>>,
    /// The last error contains this text.
    pub error_contains: Option<String>,
}

impl Filter {
    /// All events.
    pub fn all() -> Self {
        Self::default()
    }

    /// Exactly this event.
    pub fn id(id: &EventId) -> Self {
        Self {
            id: Some(id.clone()),
            ..Self::default()
        }
    }

    /// Events of this status.
    pub fn status(status: Status) -> Self {
        Self {
            statuses: vec![status],
            ..Self::default()
        }
    }

    /// Dead events.
    pub fn dead() -> Self {
        Self::status(Status::Dead)
    }

    /// Only of this type.
    pub fn of_type(mut self, event_type: impl Into<String>) -> Self {
        self.event_type = Some(event_type.into());
        self
    }

    /// Only about this one.
    pub fn about(mut self, aggregate_type: impl Into<String>, aggregate_id: impl Into<String>) -> Self {
        self.aggregate_type = Some(aggregate_type.into());
        self.aggregate_id = Some(aggregate_id.into());
        self
    }

    /// Only of this tenant.
    pub fn of_tenant(mut self, tenant_id: impl Into<String>) -> Self {
        self.tenant_id = Some(tenant_id.into());
        self
    }
}

impl Filter {
    /// Whether a row is one of those, judged in memory.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn matches(&self, stored: &StoredEvent) -> bool {
        fn is(wanted: &Option<String>, found: Option<&str>) -> bool {
            wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
        }
        let event = stored.event.as_ref().ok();
        self.id.as_ref().is_none_or(|id| id.as_str() == stored.event_id)
            && (self.statuses.is_empty() || self.statuses.contains(&stored.status))
            && is(&self.event_type, event.map(|event| event.event_type().as_str()))
            && is(&self.aggregate_type, event.map(|event| event.aggregate_type().as_str()))
            && is(&self.aggregate_id, event.and_then(Event::aggregate_id))
            && is(&self.tenant_id, event.and_then(Event::tenant_id))
            && self.created_from.is_none_or(|from| stored.created_at >= from)
            && self.created_until.is_none_or(|until| stored.created_at < until)
            && self
                .error_contains
                .as_ref()
                .is_none_or(|part| stored.last_error.as_ref().is_some_and(|error| error.contains(part)))
    }
}

/// A part of a long list: rows with a greater `seq` than `after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// The `seq` of the last row of the page before; zero for the first.
    pub after: i64,
    /// How many at most.
    pub limit: usize,
}

impl Page {
    /// The first so many.
    pub fn first(limit: usize) -> Self {
        Self { after: 0, limit }
    }
}

/// How much there is to do.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// By status and type, without DONE: those are history, and as many as there ever were.
    pub counts: Vec<StatusCount>,
    /// The counts ended at the bound: there are at least as many.
    pub at_least: bool,
    /// How long the event that is due the longest has been due, by the database's clock. `None`: nothing is due.
    pub oldest_lag: Option<Duration>,
}

impl Stats {
    /// How many events of a status there are, at least.
    pub fn total(&self, status: Status) -> u64 {
        self.counts
            .iter()
            .filter(|count| count.status == status)
            .map(|count| count.count)
            .sum()
    }
}

/// How many events of a status and type there are.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct StatusCount {
    /// The status.
    pub status: Status,
    /// The type.
    pub event_type: String,
    /// How many.
    pub count: u64,
}
