use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::mpsc;

use super::Outbox;
use super::writer_builder::{WriterParts, writer_options};
use crate::dispatch::{Dispatcher, InFlight, Queues};
use crate::engine::{DeliveryParts, Engine, Stops, workers};
use crate::error::Error;
use crate::event::{AggregateType, DomainEvent, EventType};
use crate::gauge::Gauges;
use crate::hot::HotPath;
use crate::intercept::Interceptor;
use crate::lease::Keeper;
use crate::listen::{Handler, Router, Subscription, TypedHandler};
use crate::node;
use crate::notify::Wakener;
use crate::poll::{self, Alarm, Poller};
use crate::purge::{PurgePolicy, Purger};
use crate::retry::{Exponential, RetryPolicy};
use crate::service::{Services, in_time};
use crate::settle::{self, Settler};
use crate::store::Verdict;
use crate::table::TableName;
use crate::telemetry::Telemetry;
use crate::write::{Backend, WriterHook};

/// No interval is longer.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Makes an [`Outbox`] that delivers.
#[must_use = "a builder does nothing until build() is called"]
pub struct Builder<D: Backend> {
    writer: WriterParts<D>,
    /// Nobody else delivers: whatever is leased at the start was left by an earlier run.
    alone: bool,
    subscriptions: Vec<Subscription>,
    interceptors: Vec<Arc<dyn Interceptor>>,
    retry: Arc<dyn RetryPolicy>,
    retry_by_type: HashMap<String, Arc<dyn RetryPolicy>>,
    purge: Option<PurgePolicy>,
    gauges: Option<Duration>,
    node: Option<String>,
    workers: usize,
    hot_path: bool,
    poller: bool,
    hot_capacity: usize,
    cold_capacity: usize,
    lease: Duration,
    in_flight_ttl: Option<Duration>,
    listener_timeout: Duration,
    drain_timeout: Duration,
    done: Verdict,
    poll: poll::Config,
    settle: settle::Config,
}

impl<D: Backend> std::fmt::Debug for Builder<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("table", &self.writer.table)
            .field("subscriptions", &self.subscriptions)
            .finish_non_exhaustive()
    }
}

impl<D: Backend> Builder<D> {
    pub(super) fn new(pool: D::Pool, alone: bool) -> Self {
        Self {
            writer: WriterParts::new(pool),
            alone,
            subscriptions: Vec::new(),
            interceptors: Vec::new(),
            retry: Arc::new(Exponential::default()),
            retry_by_type: HashMap::new(),
            purge: Some(PurgePolicy::default()),
            gauges: None,
            node: None,
            workers: 4,
            hot_path: true,
            poller: true,
            hot_capacity: 1000,
            cold_capacity: 1000,
            lease: Duration::from_secs(30),
            in_flight_ttl: None,
            listener_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(5),
            done: Verdict::Done,
            poll: poll::Config::default(),
            settle: settle::Config::default(),
        }
    }

    writer_options!();

    /// Listens to a typed event, decoded for you. What cannot be decoded is dead at once.
    pub fn on<T: DomainEvent>(self, handler: impl TypedHandler<T>) -> Self {
        self.subscribe(Subscription::on::<T>(handler))
    }

    /// Listens to an event type that has no aggregate type of its own; [`listen_to`](Self::listen_to) is for those that do.
    ///
    /// An event that nobody on this node listens to is dead as soon as this node takes it: give all nodes of a table the
    /// same listeners.
    pub fn listen(self, event: impl Into<EventType>, handler: impl Handler) -> Self {
        self.listen_to(AggregateType::GLOBAL, event, handler)
    }

    /// Listens to an event type of an aggregate type.
    pub fn listen_to(
        self,
        aggregate: impl Into<AggregateType>,
        event: impl Into<EventType>,
        handler: impl Handler,
    ) -> Self {
        self.subscribe(Subscription::to(aggregate, event, handler))
    }

    /// Adds a listener with a name, a timeout or a limit of its own.
    pub fn subscribe(mut self, subscription: Subscription) -> Self {
        self.subscriptions.push(subscription);
        self
    }

    /// Runs around every delivery, after those added before.
    pub fn interceptor(mut self, interceptor: impl Interceptor) -> Self {
        self.interceptors.push(Arc::new(interceptor));
        self
    }

    /// When failed events are tried again. Default: [`Exponential::default`].
    pub fn retry(mut self, policy: impl RetryPolicy) -> Self {
        self.retry = Arc::new(policy);
        self
    }

    /// The same, for one event type.
    pub fn retry_for(mut self, event: impl Into<EventType>, policy: impl RetryPolicy) -> Self {
        self.retry_by_type.insert(event.into().to_string(), Arc::new(policy));
        self
    }

    /// Keeps finished events forever. Default: [`PurgePolicy::default`], seven days.
    pub fn without_purge(mut self) -> Self {
        self.purge = None;
        self
    }

    /// Deletes an event when it is delivered, instead of marking it: the fastest way, without a history.
    pub fn delete_when_done(mut self) -> Self {
        self.done = Verdict::DoneAndDeleted;
        self
    }

    /// Counts events by status and type this often, for the gauges. At least 100 ms. Default: never.
    pub fn gauges(mut self, every: Duration) -> Self {
        self.gauges = Some(every.clamp(Duration::from_millis(100), DAY));
        self
    }

    /// This node's name, as the table shows it; a suffix makes it unique. Default: host and process id.
    pub fn node(mut self, name: impl Into<String>) -> Self {
        self.node = Some(name.into());
        self
    }

    /// How many listeners may run at once. Default: 4.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// Delivers from the table only, never from memory.
    pub fn without_hot_path(mut self) -> Self {
        self.hot_path = false;
        self
    }

    /// Delivers from memory only. What that misses stays in the table, for other nodes or for a start with a poller.
    pub fn without_poller(mut self) -> Self {
        self.poller = false;
        self
    }

    /// How many events the hot queue holds; more are left to the poller. Default: 1000.
    pub fn hot_capacity(mut self, events: usize) -> Self {
        self.hot_capacity = events.max(1);
        self
    }

    /// How many events the cold queue holds; more are not read. Default: 1000.
    pub fn cold_capacity(mut self, events: usize) -> Self {
        self.cold_capacity = events.max(1);
        self
    }

    /// How long a node that has died keeps its events from the others. Renewed while it lives. From 100 ms to a day.
    /// Default: 30 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.clamp(Duration::from_millis(100), DAY);
        self
    }

    /// Lets go of an event that has been in flight longer than this, so that it can be taken again. Default: never;
    /// listeners end by their timeout.
    pub fn in_flight_ttl(mut self, ttl: Duration) -> Self {
        self.in_flight_ttl = Some(ttl);
        self
    }

    /// How long a listener may take; longer is a failed attempt. Default: 60 s.
    pub fn listener_timeout(mut self, timeout: Duration) -> Self {
        self.listener_timeout = timeout.min(DAY);
        self
    }

    /// How long a shutdown may take. Default: 5 s.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout.min(DAY);
        self
    }

    /// The longest rest between polls, when there is nothing to do. Default: 5 s.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll.interval = interval.clamp(Duration::from_millis(1), DAY);
        self.poll.min_interval = self.poll.min_interval.min(self.poll.interval);
        self
    }

    /// How many rows are read at once. Default: 200.
    pub fn poll_batch(mut self, rows: usize) -> Self {
        self.poll.batch = rows.max(1);
        self
    }

    /// Leaves rows alone that were written less than this ago. Default: zero, since rows are born leased.
    pub fn skip_recent(mut self, age: Duration) -> Self {
        self.poll.skip_recent = age;
        self
    }

    /// How many outcomes are written at once, and how long one waits for others. Default: 500, and 1 ms.
    pub fn settle_batch(mut self, outcomes: usize, linger: Duration) -> Self {
        self.settle = settle::Config {
            batch: outcomes.clamp(1, 10_000),
            linger,
        };
        self
    }

    /// The outbox, delivering.
    ///
    /// # Errors
    /// [`Error::TableName`]; [`Error::DuplicateListener`]; [`Error::SchemaMissing`] and [`Error::SchemaOutdated`] if the
    /// tables are not what this library needs; [`Error::Database`].
    pub async fn build(self) -> Result<Outbox<D>, Error> {
        let (table, store) = self.writer.open().await?;
        let telemetry = Arc::new(Telemetry::new(table.as_str()));
        let owner = match self.node {
            Some(name) => format!(
                "{}:{:08x}",
                name.chars().take(100).collect::<String>(),
                rand::random::<u32>()
            ),
            None => node::name(),
        };
        // Room for what the workers produce while a batch is being written.
        let (outcomes, settled) = mpsc::channel(self.settle.batch * 2);
        let dispatcher = Arc::new(Dispatcher {
            queues: Queues::new(self.hot_capacity, self.cold_capacity),
            in_flight: InFlight::default(),
            router: Router::new(self.subscriptions, self.listener_timeout, &telemetry)?,
            interceptors: self.interceptors,
            retry: self.retry,
            retry_by_type: self.retry_by_type,
            outcomes,
            telemetry: Arc::clone(&telemetry),
            lease: self.lease,
            claiming: tokio::sync::Mutex::default(),
            done: self.done,
        });
        if self.alone {
            let recovered = in_time("releasing all leases", store.release_all()).await?;
            telemetry.recovered.increment(recovered);
        }

        let stops = Stops::default();
        let services = Services::new(stops.clone());
        let alarm = Arc::new(Alarm::default());
        let minute = Duration::from_secs(60);
        let settler = Settler {
            config: self.settle,
            owner: owner.clone(),
            store: Arc::clone(&store),
            dispatcher: Arc::clone(&dispatcher),
            alarm: Arc::clone(&alarm),
            outcomes: settled,
        };
        services.start("settler", minute, |pulse| {
            settler.run(stops.settler.clone(), stops.hard.clone(), pulse)
        });
        let (crew, count) = (Arc::clone(&dispatcher), self.workers);
        services.start("workers", minute, |pulse| {
            workers(crew, count, stops.workers.clone(), pulse)
        });
        let keeper = Keeper {
            store: Arc::clone(&store),
            dispatcher: Arc::clone(&dispatcher),
            ttl: self.in_flight_ttl,
        };
        services.start("lease keeper", minute, |pulse| keeper.run(stops.hard.clone(), pulse));
        if self.poller {
            let patience = self.poll.interval * 2 + Duration::from_secs(10);
            let poller = Poller {
                config: self.poll,
                owner: owner.clone(),
                store: Arc::clone(&store),
                dispatcher: Arc::clone(&dispatcher),
                alarm: Arc::clone(&alarm),
                sweep: poll::Sweep::default(),
            };
            services.start("poller", patience, |pulse| poller.run(stops.intake.clone(), pulse));
            let wakener = Wakener {
                store: Arc::clone(&store),
                alarm: Arc::clone(&alarm),
            };
            services.start("wakener", Duration::MAX, |pulse| {
                wakener.run(stops.intake.clone(), pulse)
            });
        }
        if let Some(policy) = self.purge {
            let (owner, store, telemetry) = (owner.clone(), Arc::clone(&store), Arc::clone(&telemetry));
            let purger = Purger {
                policy,
                owner,
                store,
                telemetry,
            };
            services.start("purger", minute * 10, |pulse| purger.run(stops.intake.clone(), pulse));
        }
        if let Some(every) = self.gauges {
            let gauges = Gauges {
                every,
                store: Arc::clone(&store),
                telemetry,
            };
            services.start("gauges", every * 3 + minute, |pulse| {
                gauges.run(stops.intake.clone(), pulse)
            });
        }

        let hot = Arc::new(HotPath {
            owner,
            lease: self.lease,
            dispatcher: Arc::clone(&dispatcher),
            alarm: Arc::clone(&alarm),
            enabled: self.hot_path,
            stop: stops.intake.clone(),
        });
        let writer = self.writer.writer(table, hot);
        let engine = Engine {
            services,
            stops,
            store: Arc::clone(&store),
            delivery: Some(DeliveryParts { dispatcher, alarm }),
            drain_timeout: self.drain_timeout,
        };
        Ok(Outbox {
            writer,
            store,
            engine: Arc::new(engine),
        })
    }
}
