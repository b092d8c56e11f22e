//! The event: what a service says happened, built once, immutable, and the same bytes everywhere.

mod builder;
mod domain;
mod headers;
mod id;
mod names;
mod payload;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

pub use builder::EventBuilder;
pub use domain::{DomainEvent, IntoEvent, Undecodable};
pub use headers::{Headers, RESERVED_PREFIX};
pub use id::EventId;
pub use names::{AggregateType, EventType, GLOBAL_AGGREGATE};
pub use payload::Payload;

/// An event: an envelope of names, ids, headers and time around a payload.
///
/// Immutable and cheap to clone: clones share everything. The payload is serialized once, and the very same bytes
/// reach the table, the listener and the broker.
///
/// ```
/// use outbox::Event;
///
/// let event = Event::builder("OrderPlaced")
///     .aggregate("Order", "4711")
///     .header("source", "web")
///     .json(r#"{"total": 42}"#)
///     .build()?;
/// assert_eq!(event.aggregate_id(), Some("4711"));
/// # Ok::<(), outbox::EventError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Event(Arc<Parts>);

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) id: EventId,
    pub(crate) event_type: EventType,
    pub(crate) aggregate_type: AggregateType,
    pub(crate) aggregate_id: Option<String>,
    pub(crate) tenant_id: Option<String>,
    pub(crate) occurred_at: DateTime<Utc>,
    pub(crate) due: Due,
    pub(crate) headers: Headers,
    pub(crate) payload: Payload,
}

/// When an event may be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Due {
    /// As soon as it is committed.
    Now,
    /// Not before this instant, by the database's clock.
    At(DateTime<Utc>),
    /// Not before this long after it was written, by the database's clock.
    After(Duration),
}

impl Event {
    /// The longest aggregate id, in characters.
    pub const MAX_AGGREGATE_ID_CHARS: usize = 128;
    /// The longest tenant id, in characters.
    pub const MAX_TENANT_ID_CHARS: usize = 64;

    /// Starts an event of the given type.
    pub fn builder(event_type: impl Into<EventType>) -> EventBuilder {
        EventBuilder::new(event_type.into())
    }

    /// An event with nothing but a type and JSON text.
    ///
    /// # Errors
    /// As [`EventBuilder::build`].
    pub fn json(event_type: impl Into<EventType>, json: impl Into<String>) -> Result<Self, EventError> {
        Self::builder(event_type).json(json).build()
    }

    pub(crate) fn from_parts(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    /// What identifies it.
    pub fn id(&self) -> &EventId {
        &self.0.id
    }

    /// What happened.
    pub fn event_type(&self) -> &EventType {
        &self.0.event_type
    }

    /// What it happened to: [`GLOBAL_AGGREGATE`] unless said otherwise.
    pub fn aggregate_type(&self) -> &AggregateType {
        &self.0.aggregate_type
    }

    /// Which one it happened to: the ordering key together with the aggregate type.
    pub fn aggregate_id(&self) -> Option<&str> {
        self.0.aggregate_id.as_deref()
    }

    /// The tenant, passed through and never interpreted.
    pub fn tenant_id(&self) -> Option<&str> {
        self.0.tenant_id.as_deref()
    }

    /// When it happened, by the clock of the service that wrote it; to the microsecond.
    pub fn occurred_at(&self) -> DateTime<Utc> {
        self.0.occurred_at
    }

    /// When it may be delivered.
    pub fn due(&self) -> Due {
        self.0.due
    }

    /// The headers.
    pub fn headers(&self) -> &Headers {
        &self.0.headers
    }

    /// The payload.
    pub fn payload(&self) -> &Payload {
        &self.0.payload
    }

    /// The version of a typed event's payload; 1 for an event that does not say.
    pub fn version(&self) -> u32 {
        self.headers()
            .get(headers::VERSION_HEADER)
            .and_then(|version| version.parse().ok())
            .unwrap_or(1)
    }

    /// Decodes the payload of a typed event.
    ///
    /// # Errors
    /// [`Undecodable`] if the event is of another type, or its payload does not fit.
    pub fn decode<T: DomainEvent>(&self) -> Result<T, Undecodable> {
        domain::decode(self)
    }

    /// A builder that starts as this event, for a writer hook that changes one.
    pub fn to_builder(&self) -> EventBuilder {
        EventBuilder::from_parts(Parts::clone(&self.0))
    }
}

impl fmt::Debug for Event {
    /// Everything but what the payload and the headers say: those may hold what no log should.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Event");
        out.field("id", &self.id().as_str())
            .field("event_type", self.event_type())
            .field("aggregate_type", self.aggregate_type())
            .field("aggregate_id", &self.aggregate_id())
            .field("tenant_id", &self.tenant_id())
            .field("occurred_at", &self.occurred_at())
            .field("due", &self.due())
            .field("headers", &self.headers().len())
            .field("payload", self.payload());
        out.finish()
    }
}

/// Why an event cannot be. Every one is found before any SQL runs, and nothing is written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// A name or id without a character in it.
    #[error("the {what} is empty: give it at least one character, or leave it out")]
    Empty {
        /// Which one.
        what: &'static str,
    },
    /// A name or id that the table has no room for.
    #[error("the {what} has {chars} characters; at most {max} are allowed: shorten it")]
    TooLong {
        /// Which one.
        what: &'static str,
        /// How long it is.
        chars: usize,
        /// How long it may be.
        max: usize,
    },
    /// A name or id with a character that cannot be stored or logged faithfully.
    #[error("the {what} contains a control character: remove it")]
    ControlCharacter {
        /// Which one.
        what: &'static str,
    },
    /// A payload that is too large.
    #[error(
        "the payload has {bytes} bytes; at most {max} are allowed: store it elsewhere and send a reference",
        max = Payload::MAX_BYTES
    )]
    PayloadTooLarge {
        /// How large it is.
        bytes: usize,
    },
    /// Neither a JSON nor a binary payload.
    #[error("the event has no payload: call json(), serialize() or bytes()")]
    NoPayload,
    /// More than one payload.
    #[error("the event has two payloads: call only one of json(), serialize() and bytes()")]
    TwoPayloads,
    /// Text that is not JSON.
    #[error("the payload is not JSON: {source}; use bytes() for anything else")]
    PayloadNotJson {
        /// What is wrong with it, and where.
        source: serde_json::Error,
    },
    /// A value that serde could not turn into JSON.
    #[error("the payload cannot be serialized: {source}")]
    Unserializable {
        /// Why.
        source: serde_json::Error,
    },
    /// Both delays.
    #[error("the event has two delays: call either available_at() or deliver_after()")]
    TwoDelays,
    /// A delay that is none.
    #[error("deliver_after() must be longer than zero: leave it out to deliver at once")]
    NoDelay,
    /// A delay beyond any use, which a database's calendar cannot hold.
    #[error("the event is due more than {max} days from now: bring it closer", max = builder::MAX_DELAY_DAYS)]
    DelayTooLong,
    /// Due before it happened.
    #[error("available_at lies before occurred_at: leave it out to deliver at once")]
    DueBeforeItHappened,
    /// A header that only the library may write.
    #[error("the header {name:?} starts with \"outbox-\", which is reserved: rename it")]
    ReservedHeader {
        /// The header.
        name: String,
    },
    /// A header that would forge a line of a protocol.
    #[error("the header {name:?} contains CR, LF or NUL in its name or value: remove it")]
    HeaderLineBreak {
        /// The header, escaped.
        name: String,
    },
    /// JSON that some databases would refuse.
    #[error("the payload is nested {depth} levels deep; at most {max} are allowed: flatten it, or use bytes()", max = Payload::MAX_DEPTH)]
    PayloadTooDeep {
        /// How deep it is.
        depth: usize,
    },
    /// A column in the table that cannot be read: another program wrote it.
    #[error("the column {column} cannot be read: {reason}")]
    Unreadable {
        /// The column.
        column: &'static str,
        /// What the driver says about it.
        reason: String,
    },
    /// Headers in the table that are not a JSON object of strings.
    #[error("the headers are not a JSON object of strings: {source}")]
    HeadersNotJson {
        /// What is wrong with them, and where.
        source: serde_json::Error,
    },
}

/// The rule for every name and id: something, not too much of it, and nothing a database or a log would mangle.
fn check_text(what: &'static str, text: &str, max: usize) -> Result<(), EventError> {
    if text.is_empty() {
        return Err(EventError::Empty { what });
    }
    // Bytes are never fewer than characters, so only a suspect is counted.
    if text.len() > max {
        let chars = text.chars().count();
        if chars > max {
            return Err(EventError::TooLong { what, chars, max });
        }
    }
    if text.chars().any(char::is_control) {
        return Err(EventError::ControlCharacter { what });
    }
    Ok(())
}
