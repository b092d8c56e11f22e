use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, SubsecRound, Utc};
use serde::Serialize;

use super::{AggregateType, Due, Event, EventError, EventId, EventType, Headers, Parts, Payload, check_text};

/// A hundred years: beyond it, calendars of databases end.
pub(super) const MAX_DELAY_DAYS: u64 = 36_500;

/// Builds an [`Event`]. Nothing is checked before [`build`](Self::build), which reports the first violated rule.
#[derive(Debug)]
#[must_use = "a builder does nothing until build() is called"]
pub struct EventBuilder {
    id: Option<Result<EventId, EventError>>,
    event_type: EventType,
    aggregate_type: AggregateType,
    aggregate_id: Option<String>,
    tenant_id: Option<String>,
    occurred_at: Option<DateTime<Utc>>,
    available_at: Option<DateTime<Utc>>,
    deliver_after: Option<Duration>,
    headers: Headers,
    /// The first header that was refused: reported by `build`, so that the chain stays a chain.
    refused_header: Option<EventError>,
    payload: PayloadSlot,
}

#[derive(Debug)]
enum PayloadSlot {
    Empty,
    One(Result<Payload, EventError>),
    Several,
}

impl EventBuilder {
    pub(super) fn new(event_type: EventType) -> Self {
        Self {
            id: None,
            event_type,
            aggregate_type: AggregateType::GLOBAL,
            aggregate_id: None,
            tenant_id: None,
            occurred_at: None,
            available_at: None,
            deliver_after: None,
            headers: Headers::default(),
            refused_header: None,
            payload: PayloadSlot::Empty,
        }
    }

    pub(super) fn from_parts(parts: Parts) -> Self {
        let (available_at, deliver_after) = match parts.due {
            Due::Now => (None, None),
            Due::At(at) => (Some(at), None),
            Due::After(delay) => (None, Some(delay)),
        };
        Self {
            id: Some(Ok(parts.id)),
            event_type: parts.event_type,
            aggregate_type: parts.aggregate_type,
            aggregate_id: parts.aggregate_id,
            tenant_id: parts.tenant_id,
            occurred_at: Some(parts.occurred_at),
            available_at,
            deliver_after,
            headers: parts.headers,
            refused_header: None,
            payload: PayloadSlot::One(Ok(parts.payload)),
        }
    }

    /// An id of your own. Default: a new ULID.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(EventId::new(id));
        self
    }

    /// What it happened to, and which one: the key that order is kept by.
    pub fn aggregate(self, aggregate_type: impl Into<AggregateType>, id: impl Into<String>) -> Self {
        self.aggregate_type(aggregate_type).aggregate_id(id)
    }

    /// What it happened to. Default: [`GLOBAL_AGGREGATE`](super::GLOBAL_AGGREGATE).
    pub fn aggregate_type(mut self, aggregate_type: impl Into<AggregateType>) -> Self {
        self.aggregate_type = aggregate_type.into();
        self
    }

    /// Which one it happened to. Default: none, and then the event has no order.
    pub fn aggregate_id(mut self, id: impl Into<String>) -> Self {
        self.aggregate_id = Some(id.into());
        self
    }

    /// The tenant. Default: none.
    pub fn tenant(mut self, id: impl Into<String>) -> Self {
        self.tenant_id = Some(id.into());
        self
    }

    /// When it happened. Default: when it is built, by this machine's clock. Kept to the microsecond.
    pub fn occurred_at(mut self, at: DateTime<Utc>) -> Self {
        self.occurred_at = Some(at);
        self
    }

    /// Do not deliver before this instant. Such an event never takes the hot path.
    pub fn available_at(mut self, at: DateTime<Utc>) -> Self {
        self.available_at = Some(at);
        self
    }

    /// Do not deliver before this long after the write, by the database's clock. Longer than zero; such an event
    /// never takes the hot path.
    pub fn deliver_after(mut self, delay: Duration) -> Self {
        self.deliver_after = Some(delay);
        self
    }

    /// Adds a header; the last one of a name wins.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        if let Err(error) = self.headers.insert(name.into(), value.into()) {
            self.refused_header.get_or_insert(error);
        }
        self
    }

    /// A header of the library's own.
    pub(crate) fn own_header(mut self, name: &str, value: impl Into<String>) -> Self {
        if let Err(error) = self.headers.insert_own(name.to_owned(), value.into()) {
            self.refused_header.get_or_insert(error);
        }
        self
    }

    /// JSON text, kept as it is.
    pub fn json(self, text: impl Into<String>) -> Self {
        self.payload(Payload::from_json_text(text.into()))
    }

    /// A value as JSON.
    pub fn serialize<T: Serialize + ?Sized>(self, value: &T) -> Self {
        let json = serde_json::to_vec(value);
        self.payload(match json {
            Ok(json) => Ok(Payload::Json(Bytes::from(json))),
            Err(source) => Err(EventError::Unserializable { source }),
        })
    }

    /// Bytes, kept as they are.
    pub fn bytes(self, bytes: impl Into<Bytes>) -> Self {
        self.payload(Ok(Payload::Bytes(bytes.into())))
    }

    /// Forgets the payload, so that another can be given: for a hook that changes an event.
    pub fn without_payload(mut self) -> Self {
        self.payload = PayloadSlot::Empty;
        self
    }

    fn payload(mut self, payload: Result<Payload, EventError>) -> Self {
        self.payload = match self.payload {
            PayloadSlot::Empty => PayloadSlot::One(payload),
            PayloadSlot::One(_) | PayloadSlot::Several => PayloadSlot::Several,
        };
        self
    }

    /// The event.
    ///
    /// # Errors
    /// The first rule of [`EventError`] that it violates.
    pub fn build(self) -> Result<Event, EventError> {
        self.build_at(Utc::now())
    }

    /// The event, by a clock of the caller's: `now` is when it happened unless it says otherwise.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_at(self, now: DateTime<Utc>) -> Result<Event, EventError> {
        if let Some(error) = self.refused_header {
            return Err(error);
        }
        self.event_type.check()?;
        self.aggregate_type.check()?;
        if let Some(id) = &self.aggregate_id {
            check_text("aggregate id", id, Event::MAX_AGGREGATE_ID_CHARS)?;
        }
        if let Some(id) = &self.tenant_id {
            check_text("tenant id", id, Event::MAX_TENANT_ID_CHARS)?;
        }
        let payload = match self.payload {
            PayloadSlot::Empty => return Err(EventError::NoPayload),
            PayloadSlot::Several => return Err(EventError::TwoPayloads),
            PayloadSlot::One(payload) => payload?,
        };
        payload.check_size()?;
        payload.check_depth()?;
        let occurred_at = self.occurred_at.unwrap_or(now).trunc_subsecs(6);
        let due = due(self.available_at, self.deliver_after, occurred_at, now)?;
        Ok(Event::from_parts(Parts {
            id: match self.id {
                Some(id) => id?,
                None => EventId::generate(),
            },
            event_type: self.event_type,
            aggregate_type: self.aggregate_type,
            aggregate_id: self.aggregate_id,
            tenant_id: self.tenant_id,
            occurred_at,
            due,
            headers: self.headers,
            payload,
        }))
    }
}

fn due(
    available_at: Option<DateTime<Utc>>,
    deliver_after: Option<Duration>,
    occurred_at: DateTime<Utc>,
    now: DateTime<Utc>,
) -> Result<Due, EventError> {
    let longest = Duration::from_secs(MAX_DELAY_DAYS * 24 * 60 * 60);
    match (available_at, deliver_after) {
        (None, None) => Ok(Due::Now),
        (Some(_), Some(_)) => Err(EventError::TwoDelays),
        (Some(at), None) if at < occurred_at => Err(EventError::DueBeforeItHappened),
        (Some(at), None) if at > now + longest => Err(EventError::DelayTooLong),
        (Some(at), None) => Ok(Due::At(at.trunc_subsecs(6))),
        (None, Some(Duration::ZERO)) => Err(EventError::NoDelay),
        (None, Some(delay)) if delay > longest => Err(EventError::DelayTooLong),
        (None, Some(delay)) => Ok(Due::After(delay)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(builder: EventBuilder) -> String {
        builder.build().unwrap_err().to_string()
    }

    fn any() -> EventBuilder {
        Event::builder("OrderPlaced").json("{}")
    }

    #[test]
    fn defaults_are_those_of_the_contract() {
        let event = any().build().unwrap();
        assert_eq!(event.id().as_str().len(), 26);
        assert_eq!(event.aggregate_type().as_str(), "__GLOBAL__");
        assert_eq!(event.aggregate_id(), None);
        assert_eq!(event.tenant_id(), None);
        assert_eq!(event.due(), Due::Now);
        assert!(event.headers().is_empty());
    }

    #[test]
    fn every_violated_limit_says_what_to_do() {
        assert_eq!(
            refused(Event::builder("x".repeat(129)).json("{}")),
            "the event type has 129 characters; at most 128 are allowed: shorten it"
        );
        assert_eq!(
            refused(Event::builder("").json("{}")),
            "the event type is empty: give it at least one character, or leave it out"
        );
        assert_eq!(
            refused(any().aggregate_type("x".repeat(65))),
            "the aggregate type has 65 characters; at most 64 are allowed: shorten it"
        );
        assert_eq!(
            refused(any().aggregate_id("x".repeat(129))),
            "the aggregate id has 129 characters; at most 128 are allowed: shorten it"
        );
        assert_eq!(
            refused(any().tenant("x".repeat(65))),
            "the tenant id has 65 characters; at most 64 are allowed: shorten it"
        );
        assert_eq!(
            refused(any().id("x".repeat(37))),
            "the event id has 37 characters; at most 36 are allowed: shorten it"
        );
        assert_eq!(
            refused(any().tenant("a\0b")),
            "the tenant id contains a control character: remove it"
        );
        assert_eq!(
            refused(Event::builder("x").bytes(vec![0; Payload::MAX_BYTES + 1])),
            "the payload has 1048577 bytes; at most 1048576 are allowed: store it elsewhere and send a reference"
        );
        assert!(Event::builder("x").bytes(vec![0; Payload::MAX_BYTES]).build().is_ok());
    }

    #[test]
    fn exactly_one_payload() {
        assert_eq!(
            refused(Event::builder("x")),
            "the event has no payload: call json(), serialize() or bytes()"
        );
        assert_eq!(
            refused(any().bytes("x")),
            "the event has two payloads: call only one of json(), serialize() and bytes()"
        );
        assert!(refused(Event::builder("x").json("{")).starts_with("the payload is not JSON: EOF"));
        assert!(
            any()
                .build()
                .unwrap()
                .to_builder()
                .without_payload()
                .bytes("x")
                .build()
                .is_ok()
        );
    }

    #[test]
    fn one_delay_at_most_and_longer_than_zero() {
        let soon = Utc::now() + Duration::from_secs(60);
        assert_eq!(
            refused(any().available_at(soon).deliver_after(Duration::from_secs(1))),
            "the event has two delays: call either available_at() or deliver_after()"
        );
        assert_eq!(
            refused(any().deliver_after(Duration::ZERO)),
            "deliver_after() must be longer than zero: leave it out to deliver at once"
        );
        assert_eq!(
            refused(any().available_at(Utc::now() - Duration::from_secs(60))),
            "available_at lies before occurred_at: leave it out to deliver at once"
        );
        assert_eq!(
            refused(any().deliver_after(Duration::MAX)),
            "the event is due more than 36500 days from now: bring it closer"
        );
    }

    #[test]
    fn headers_cannot_forge_lines_or_pose_as_ours() {
        for value in ["a\r", "a\nb", "a\0"] {
            assert_eq!(
                refused(any().header("h", value)),
                "the header \"h\" contains CR, LF or NUL in its name or value: remove it"
            );
        }
        assert_eq!(
            refused(any().header("a\nb", "v")),
            "the header \"a\\\\nb\" contains CR, LF or NUL in its name or value: remove it"
        );
        assert_eq!(
            refused(any().header("Outbox-Event-Id", "v")),
            "the header \"Outbox-Event-Id\" starts with \"outbox-\", which is reserved: rename it"
        );
        assert_eq!(
            refused(any().header("", "v")),
            "the header name is empty: give it at least one character, or leave it out"
        );
    }

    #[test]
    fn debug_shows_no_payload_and_no_header_value() {
        let event = Event::builder("x")
            .json(r#"{"iban":"secret"}"#)
            .header("auth", "secret")
            .build()
            .unwrap();
        assert!(!format!("{event:?}").contains("secret"), "{event:?}");
    }
}
