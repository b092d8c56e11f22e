//! Rows on their way in and out: what is written for an event, and what is read back.
#![allow(
    missing_docs,
    reason = "public only because `Backend` is implemented for every `Driver`"
)]

use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};

use super::driver::Driver;
use super::{BadRow, Claimed, LONGEST_DELAY, Lease};
use crate::event::{Due, Event, EventError, EventId, Headers, Parts, Payload};

/// An event on its way into the table.
#[derive(Clone, Copy, Debug)]
pub struct NewRow<'a> {
    pub event: &'a Event,
    /// Who owns it from birth, so that its hot path needs no claim and nobody can race it.
    pub born: Option<Born<'a>>,
}

#[derive(Clone, Copy, Debug)]
pub struct Born<'a> {
    pub owner: &'a str,
    pub lease: Duration,
    /// Random, so that not even a `seq` gone astray could settle another row.
    pub token: i64,
}

/// Rows that were written.
#[derive(Clone, Debug)]
pub struct Inserted {
    /// One for each, in the order they were given. None at all for a row that is born free, where it would cost something to
    /// tell: nobody needs it.
    pub seqs: Vec<i64>,
    /// The database has told, with them, that they are inside of a transaction: it has not ended it by itself before.
    pub inside: bool,
}

impl Inserted {
    /// For databases that run nothing outside of a transaction that was begun.
    pub(crate) fn inside(seqs: Vec<i64>) -> Self {
        Self { seqs, inside: true }
    }
}

impl NewRow<'_> {
    /// Most are. What a row does not say is left to the defaults of the table: each value that is worked out for it costs a
    /// producer a hundredth of its time.
    pub(crate) fn is_due_now(&self) -> bool {
        self.event.due() == Due::Now
    }

    pub(crate) fn occurred_at(&self) -> i64 {
        self.event.occurred_at().timestamp_micros()
    }

    /// The instant it is due, where the user named one.
    pub(crate) fn due_at(&self) -> Option<i64> {
        match self.event.due() {
            Due::At(at) => Some(at.timestamp_micros()),
            Due::Now | Due::After(_) => None,
        }
    }

    /// How long from now it is due, where no instant is named.
    pub(crate) fn due_after(&self) -> i64 {
        match self.event.due() {
            Due::After(delay) => micros(delay),
            Due::Now | Due::At(_) => 0,
        }
    }

    pub(crate) fn json(&self) -> Option<&str> {
        self.event.payload().as_json()
    }

    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match self.event.payload() {
            Payload::Json(_) => None,
            Payload::Bytes(bytes) => Some(bytes),
        }
    }

    pub(crate) fn owner(&self) -> Option<&str> {
        self.born.map(|born| born.owner)
    }

    pub(crate) fn lease(&self) -> Option<i64> {
        self.born.map(|born| micros(born.lease))
    }

    pub(crate) fn token(&self) -> i64 {
        self.born.map_or(0, |born| born.token)
    }
}

/// Binds the columns of an event, in the order that all three databases write them.
macro_rules! bind_event {
    ($query:expr, $row:expr) => {
        $query
            .bind($row.event.id().as_str())
            .bind($row.event.event_type().as_str())
            .bind($row.event.aggregate_type().as_str())
            .bind($row.event.aggregate_id())
            .bind($row.event.tenant_id())
            .bind($row.json())
            .bind($row.bytes())
            .bind($row.event.headers().to_json())
            .bind($row.occurred_at())
    };
}
pub(super) use bind_event;

/// Binds the event, and who has it.
macro_rules! bind_leased {
    ($query:expr, $row:expr) => {
        crate::store::row::bind_event!($query, $row)
            .bind($row.owner())
            .bind($row.lease())
            .bind($row.token())
    };
}
pub(super) use bind_leased;

/// Binds all that a row may say.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
macro_rules! bind_row {
    ($query:expr, $row:expr) => {
        crate::store::row::bind_event!($query, $row)
            .bind($row.due_at())
            .bind($row.due_after())
            .bind($row.owner())
            .bind($row.lease())
            .bind($row.token())
    };
}
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(super) use bind_row;

/// A duration as the databases take it.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.min(LONGEST_DELAY).as_micros()).expect("a hundred years are 3e15 microseconds")
}

pub(crate) fn from_micros(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// How many numbers of a row are read: seq, token, failed attempts; when it happened, when it is due, what time it is, and
/// until when it is leased.
pub(super) const NUMBERS: usize = 7;

/// What else is read, in the order of [`columns`]: from event_id to done_by.
const TEXTS: usize = 9;

/// How many columns [`columns`] are.
pub(super) const fn column_count<D: Driver>() -> usize {
    D::NUMBER_COLUMNS + TEXTS
}

/// The columns that [`read_claimed`] expects, in its order. `prefix` is the table's alias with its dot, or nothing.
pub(super) fn columns<D: Driver>(prefix: &str) -> String {
    let column = |name: &str| format!("{prefix}{name}");
    let numbers = D::numbers_together([
        column("seq"),
        column("token"),
        D::integer(&column("attempts")),
        D::read_instant(&column("occurred_at")),
        D::read_instant(&column("available_at")),
        D::read_instant(D::NOW),
        D::read_instant(&column("lease_until")),
    ]);
    let texts: [&str; TEXTS] = [
        "event_id",
        "event_type",
        "aggregate_type",
        "aggregate_id",
        "tenant_id",
        "payload",
        "payload_bytes",
        "headers",
        "done_by",
    ];
    format!("{numbers}, {}", texts.map(column).join(", "))
}

/// The numbers of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub(super) lease: Lease,
    pub(super) attempts: u32,
    pub(super) occurred_at: Option<i64>,
    pub(super) due_at: i64,
    pub(super) now: i64,
    pub(super) leased_until: Option<i64>,
}

impl Numbers {
    pub(super) fn read<D: Driver>(row: &D::Row) -> Result<Self, sqlx::Error> {
        let [seq, token, attempts, occurred_at, due_at, now, leased_until] = D::numbers(row)?;
        Ok(Self {
            lease: Lease {
                seq: required(seq)?,
                token: required(token)?,
            },
            attempts: u32::try_from(attempts.unwrap_or(0)).unwrap_or(0),
            occurred_at,
            due_at: due_at.unwrap_or(0),
            now: now.unwrap_or(0),
            leased_until,
        })
    }
}

/// Reads [`columns`]. Only what the library itself writes can fail it: a row that another program wrote badly is no
/// reason not to deliver the others.
pub(super) fn read_claimed<D: Driver>(row: &D::Row) -> Result<Claimed, sqlx::Error> {
    claimed_of::<D>(row, &Numbers::read::<D>(row)?)
}

/// The same, of a row whose numbers have been read.
pub(super) fn claimed_of<D: Driver>(row: &D::Row, numbers: &Numbers) -> Result<Claimed, sqlx::Error> {
    Ok(Claimed {
        lease: numbers.lease,
        event: read_event::<D>(row, numbers).map_err(|error| BadRow {
            event_id: read_id::<D>(row),
            error,
        }),
        attempts: numbers.attempts,
        done_by: read_done_by::<D>(row)?,
        due_at: numbers.due_at,
        lag: from_micros(numbers.now.saturating_sub(numbers.due_at)),
        recovered: false,
    })
}

pub(super) fn required<T>(value: Option<T>) -> Result<T, sqlx::Error> {
    value.ok_or_else(|| sqlx::Error::Decode("a column that is never null was null".into()))
}

pub(super) fn read_id<D: Driver>(row: &D::Row) -> String {
    D::text(row, D::NUMBER_COLUMNS)
        .ok()
        .flatten()
        .unwrap_or_else(|| "(unreadable)".to_owned())
}

/// The named listeners that have succeeded already.
pub(super) fn read_done_by<D: Driver>(row: &D::Row) -> Result<Vec<String>, sqlx::Error> {
    Ok(names(D::text(row, D::NUMBER_COLUMNS + 8)?.as_deref()))
}

/// The event of a row, or what is wrong with the row.
pub(super) fn read_event<D: Driver>(row: &D::Row, numbers: &Numbers) -> Result<Event, EventError> {
    fn readable<T>(column: &'static str, value: Result<T, sqlx::Error>) -> Result<T, EventError> {
        value.map_err(|error| EventError::Unreadable {
            column,
            reason: error.to_string(),
        })
    }
    let text = |at: usize| D::text(row, D::NUMBER_COLUMNS + at);
    let raw = RawEvent {
        id: readable("event_id", text(0).and_then(required))?,
        event_type: readable("event_type", text(1).and_then(required))?,
        aggregate_type: readable("aggregate_type", text(2).and_then(required))?,
        aggregate_id: readable("aggregate_id", text(3))?,
        tenant_id: readable("tenant_id", text(4))?,
        json: readable("payload", text(5))?,
        bytes: readable("payload_bytes", D::bytes(row, D::NUMBER_COLUMNS + 6))?,
        headers: readable("headers", text(7))?,
        occurred_at: readable("occurred_at", required(numbers.occurred_at))?,
    };
    raw.judge()
}

/// A row as the database holds it, before anybody has judged it.
struct RawEvent {
    id: String,
    event_type: String,
    aggregate_type: String,
    aggregate_id: Option<String>,
    tenant_id: Option<String>,
    json: Option<String>,
    bytes: Option<Vec<u8>>,
    headers: Option<String>,
    occurred_at: i64,
}

impl RawEvent {
    fn judge(self) -> Result<Event, EventError> {
        let payload = match (self.json, self.bytes) {
            // The column's type has checked that it is JSON.
            (Some(json), None) => Payload::Json(Bytes::from(json)),
            (None, Some(bytes)) => Payload::Bytes(Bytes::from(bytes)),
            (None, None) => return Err(EventError::NoPayload),
            (Some(_), Some(_)) => return Err(EventError::TwoPayloads),
        };
        let headers = match self.headers.as_deref() {
            None => Headers::default(),
            Some(json) => Headers::from_json(json)?,
        };
        Ok(Event::from_parts(Parts {
            id: EventId::new(self.id)?,
            event_type: self.event_type.into(),
            aggregate_type: self.aggregate_type.into(),
            aggregate_id: self.aggregate_id,
            tenant_id: self.tenant_id,
            occurred_at: instant(self.occurred_at),
            // It is due, or it would not have been claimed.
            due: Due::Now,
            headers,
            payload,
        }))
    }
}

pub(super) fn instant(micros: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_micros(micros).unwrap_or_default()
}

/// Listener names, as the column `done_by` holds them: one a line, nothing where there are none.
pub(super) fn join_names(names: &[String]) -> Option<String> {
    (!names.is_empty()).then(|| names.join("\n"))
}

pub(super) fn names(column: Option<&str>) -> Vec<String> {
    column
        .map(|names| names.lines().map(str::to_owned).collect())
        .unwrap_or_default()
}
