use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;
use tokio::sync::Semaphore;

use super::handler::{OneByOne, Typed};
use super::{Handler, Listener, Route, TypedHandler};
use crate::event::{AggregateType, DomainEvent, Event, EventType};
use crate::telemetry::Telemetry;

/// The name of a listener that was given none.
const UNNAMED: &str = "listener";

/// A listener and what it is for.
///
/// An unnamed one is the only one for its events. Named ones share theirs, with each other and with those for all events;
/// they run in the order they were added, and after a failure only those run again that have not succeeded.
#[must_use = "give it to Builder::subscribe"]
pub struct Subscription {
    route: Route,
    name: Option<String>,
    timeout: Option<Duration>,
    at_once: Option<usize>,
    listener: Arc<dyn Listener>,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("route", &self.route)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Subscription {
    fn new(route: Route, listener: Arc<dyn Listener>) -> Self {
        Self {
            route,
            name: None,
            timeout: None,
            at_once: None,
            listener,
        }
    }

    /// For a typed event, decoded for you.
    pub fn on<T: DomainEvent>(handler: impl TypedHandler<T>) -> Self {
        let route = Route::Of(T::AGGREGATE_TYPE.into(), T::EVENT_TYPE.into());
        Self::new(route, Arc::new(Typed(handler, PhantomData)))
    }

    /// For an event type of an aggregate type.
    pub fn to(aggregate: impl Into<AggregateType>, event: impl Into<EventType>, handler: impl Handler) -> Self {
        Self::new(Route::Of(aggregate.into(), event.into()), Arc::new(OneByOne(handler)))
    }

    /// For all events. It needs a name.
    pub fn all(name: impl Into<String>, handler: impl Handler) -> Self {
        Self::new(Route::All, Arc::new(OneByOne(handler))).named(name)
    }

    /// For an event type of an aggregate type, with a listener that takes several at once.
    pub fn batches(aggregate: impl Into<AggregateType>, event: impl Into<EventType>, listener: impl Listener) -> Self {
        Self::new(Route::Of(aggregate.into(), event.into()), Arc::new(listener))
    }

    /// For all events, with a listener that takes several at once: what a sink does.
    pub fn all_batches(name: impl Into<String>, listener: impl Listener) -> Self {
        Self::new(Route::All, Arc::new(listener)).named(name)
    }

    /// Gives it a name, so that it can share its events with others. The name is stored with an event that is to be tried
    /// again: keep it from release to release.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        // The table has one name a line.
        let name: String = name
            .into()
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        self.name = Some(name.trim().to_owned()).filter(|name| !name.is_empty());
        self
    }

    /// How long it may take; longer is a failed attempt. Default: that of the outbox.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How many of its calls may run at once. Default: as many as there are workers.
    pub fn at_once(mut self, calls: usize) -> Self {
        self.at_once = Some(calls.max(1));
        self
    }
}

/// A listener as the workers see it.
pub(crate) struct Listening {
    pub(crate) name: String,
    pub(crate) timeout: Duration,
    pub(crate) at_once: Option<Semaphore>,
    pub(crate) listener: Arc<dyn Listener>,
    pub(crate) duration: metrics::Histogram,
}

/// Those who are to hear of an event, in the order they were added.
type Listeners = Arc<[Arc<Listening>]>;

/// Who is to hear of an event.
#[derive(Default)]
pub(crate) struct Router {
    /// By aggregate type, then by event type.
    of: HashMap<String, HashMap<String, Listeners>>,
    all: Listeners,
    /// There is one that takes several events at once.
    batches: bool,
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("aggregates", &self.of.len())
            .field("all", &self.all.len())
            .finish()
    }
}

/// Two listeners that cannot both be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there are two listeners{name} for {route}: give each a name of its own (Subscription::named), or remove one",
    name = name.as_ref().map(|name| format!(" named {name:?}")).unwrap_or_default()
)]
pub struct DuplicateListener {
    route: String,
    name: Option<String>,
}

impl Router {
    pub(crate) fn new(
        subscriptions: Vec<Subscription>,
        timeout: Duration,
        telemetry: &Telemetry,
    ) -> Result<Self, DuplicateListener> {
        let entries: Vec<(Route, Option<String>, Arc<Listening>)> = subscriptions
            .into_iter()
            .map(|subscription| {
                let name = subscription.name.clone().unwrap_or_else(|| UNNAMED.to_owned());
                let listening = Arc::new(Listening {
                    duration: telemetry.listener_duration(&name),
                    name,
                    timeout: subscription.timeout.unwrap_or(timeout),
                    at_once: subscription.at_once.map(Semaphore::new),
                    listener: subscription.listener,
                });
                (subscription.route, subscription.name, listening)
            })
            .collect();
        let mut router = Self::default();
        for (route, name, _) in &entries {
            // Those that hear of the same events must differ by name: it is by the name that a retry knows who is done.
            let share = |other: &Route| other == route || *other == Route::All || *route == Route::All;
            let called = |name: &Option<String>| name.clone().unwrap_or_else(|| UNNAMED.to_owned());
            let twins = entries
                .iter()
                .filter(|(other, rival, _)| share(other) && called(rival) == called(name))
                .count();
            let rivals = entries.iter().filter(|(other, ..)| other == route).count();
            if twins > 1 || (name.is_none() && rivals > 1) {
                let route = match route {
                    Route::Of(aggregate, event) => format!("{aggregate} {event}"),
                    Route::All => "all events".to_owned(),
                };
                return Err(DuplicateListener {
                    route,
                    name: name.clone(),
                });
            }
            if let Route::Of(aggregate, event) = route {
                let listeners = entries
                    .iter()
                    .filter(|(other, ..)| other == route || *other == Route::All)
                    .map(|(.., listening)| Arc::clone(listening))
                    .collect();
                router
                    .of
                    .entry(aggregate.to_string())
                    .or_default()
                    .insert(event.to_string(), listeners);
            }
        }
        router.all = entries
            .iter()
            .filter(|(route, ..)| *route == Route::All)
            .map(|(.., one)| Arc::clone(one))
            .collect();
        router.batches = entries.iter().any(|(.., one)| one.listener.max_batch() > 1);
        Ok(router)
    }

    /// In the order they were added; none if nobody listens.
    pub(crate) fn route(&self, event: &Event) -> &Listeners {
        self.of
            .get(event.aggregate_type().as_str())
            .and_then(|events| events.get(event.event_type().as_str()))
            .unwrap_or(&self.all)
    }

    /// The listener that alone hears of the event and takes several at once: such events go together.
    pub(crate) fn batcher(&self, event: &Event) -> Option<&Arc<Listening>> {
        // Most have none, and are asked for every event.
        if !self.batches {
            return None;
        }
        match &**self.route(event) {
            [one] if one.listener.max_batch() > 1 => Some(one),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::Delivery;

    fn nothing(_: Delivery) -> std::future::Ready<super::super::Handled> {
        std::future::ready(Ok(()))
    }

    fn names(router: &Router, aggregate: &'static str, event: &'static str) -> Vec<String> {
        let event = Event::builder(event)
            .aggregate_type(aggregate)
            .json("{}")
            .build()
            .unwrap();
        router.route(&event).iter().map(|one| one.name.clone()).collect()
    }

    #[test]
    fn one_listener_by_default_and_a_second_is_an_error() {
        let error = Router::new(
            vec![
                Subscription::to("Order", "Placed", nothing),
                Subscription::to("Order", "Placed", nothing),
            ],
            Duration::from_secs(1),
            &Telemetry::new("test"),
        )
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "there are two listeners for Order Placed: give each a name of its own (Subscription::named), or remove one"
        );
    }

    #[test]
    fn a_name_is_unique_among_those_that_share() {
        let error = Router::new(
            vec![
                Subscription::to("Order", "Placed", nothing).named("mail"),
                Subscription::to("Order", "Placed", nothing).named("mail"),
            ],
            Duration::from_secs(1),
            &Telemetry::new("test"),
        )
        .unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("there are two listeners named \"mail\" for Order Placed")
        );
    }

    #[test]
    fn a_name_is_unique_among_all_that_hear_of_an_event() {
        for name in ["audit", "listener"] {
            let mine = Subscription::to("Order", "Placed", nothing);
            let mine = if name == "audit" { mine.named(name) } else { mine };
            let all = Subscription::all(name, nothing);
            let telemetry = Telemetry::new("test");
            assert!(
                Router::new(vec![mine, all], Duration::from_secs(1), &telemetry).is_err(),
                "{name}"
            );
        }
    }

    #[test]
    fn named_listeners_and_those_for_all_run_in_the_order_they_were_added() {
        let router = Router::new(
            vec![
                Subscription::to("Order", "Placed", nothing).named("first"),
                Subscription::all("audit", nothing),
                Subscription::to("Order", "Placed", nothing).named("last"),
            ],
            Duration::from_secs(1),
            &Telemetry::new("test"),
        )
        .unwrap();
        assert_eq!(names(&router, "Order", "Placed"), ["first", "audit", "last"]);
        assert_eq!(names(&router, "Order", "Paid"), ["audit"]);
    }
}
