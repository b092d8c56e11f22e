use chrono::{DateTime, Utc};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::headers::VERSION_HEADER;
use super::{Event, EventBuilder, EventError, GLOBAL_AGGREGATE};

/// A type of yours that is an event. Derive it: `#[derive(Event)]`.
///
/// ```
/// use outbox::{DomainEvent, Event};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Event)]
/// #[event(type = "OrderPlaced", aggregate = "Order", version = 2)]
/// struct OrderPlaced {
///     #[event(key)]
///     order_id: u64,
///     total: u64,
/// }
///
/// let event = OrderPlaced { order_id: 4711, total: 42 }.to_event()?;
/// assert_eq!(event.aggregate_id(), Some("4711"));
/// assert_eq!(event.version(), 2);
/// # Ok::<(), outbox::EventError>(())
/// ```
pub trait DomainEvent: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// What happened. At most 128 characters.
    const EVENT_TYPE: &'static str;
    /// What it happened to. At most 64 characters.
    const AGGREGATE_TYPE: &'static str = GLOBAL_AGGREGATE;
    /// The version of the payload's shape. Travels as a header; raise it when old payloads no longer fit.
    const VERSION: u32 = 1;

    /// Which one it happened to: the ordering key together with the aggregate type.
    fn aggregate_id(&self) -> Option<String> {
        None
    }

    /// Reads an event back. The default takes the payload as JSON; override it to accept older
    /// [versions](Event::version).
    ///
    /// # Errors
    /// Whatever makes the payload unreadable; the event is then dead at once, since no retry can mend it.
    fn decode(event: &Event) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        Ok(serde_json::from_slice(event.payload().as_bytes())?)
    }

    /// The envelope of this event, to add headers, a tenant or a delay to. A builder can be published as it is.
    fn to_builder(&self) -> EventBuilder {
        let mut builder = Event::builder(Self::EVENT_TYPE)
            .aggregate_type(Self::AGGREGATE_TYPE)
            .serialize(self);
        if let Some(id) = self.aggregate_id() {
            builder = builder.aggregate_id(id);
        }
        if Self::VERSION != 1 {
            builder = builder.own_header(VERSION_HEADER, Self::VERSION.to_string());
        }
        builder
    }

    /// The envelope of this event.
    ///
    /// # Errors
    /// As [`EventBuilder::build`].
    fn to_event(&self) -> Result<Event, EventError> {
        self.to_builder().build()
    }
}

/// An event that cannot be read as the type it was asked for.
#[derive(Debug, thiserror::Error)]
#[error("{event_type} (version {version}) cannot be decoded: {source}")]
pub struct Undecodable {
    event_type: String,
    version: u32,
    source: Box<dyn std::error::Error + Send + Sync>,
}

pub(super) fn decode<T: DomainEvent>(event: &Event) -> Result<T, Undecodable> {
    let undecodable = |source| Undecodable {
        event_type: event.event_type().to_string(),
        version: event.version(),
        source,
    };
    if event.event_type().as_str() != T::EVENT_TYPE {
        return Err(undecodable(format!("it is no {}", T::EVENT_TYPE).into()));
    }
    T::decode(event).map_err(undecodable)
}

/// What can be published: an [`Event`], an [`EventBuilder`], or a [`DomainEvent`] by reference.
pub trait IntoEvent: Send {
    /// The envelope; `now` is when it happened, unless it says otherwise.
    ///
    /// # Errors
    /// As [`EventBuilder::build`].
    fn into_event(self, now: DateTime<Utc>) -> Result<Event, EventError>;
}

impl IntoEvent for Event {
    fn into_event(self, _now: DateTime<Utc>) -> Result<Event, EventError> {
        Ok(self)
    }
}

impl IntoEvent for &Event {
    fn into_event(self, _now: DateTime<Utc>) -> Result<Event, EventError> {
        Ok(self.clone())
    }
}

impl IntoEvent for EventBuilder {
    fn into_event(self, now: DateTime<Utc>) -> Result<Event, EventError> {
        self.build_at(now)
    }
}

impl<T: DomainEvent> IntoEvent for &T {
    fn into_event(self, now: DateTime<Utc>) -> Result<Event, EventError> {
        self.to_builder().build_at(now)
    }
}
