use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::Notify;

use super::Outbox;
use super::writer_builder::{WriterParts, writer_options};
use crate::alarm::Alarm;
use crate::dispatch::{Dispatcher, InFlight, Lines, Queues};
use crate::engine::{DeliveryParts, Engine, Stops, workers};
use crate::error::Error;
use crate::event::{AggregateType, DomainEvent, EventType};
use crate::gauge::Gauges;
use crate::hot::HotPath;
use crate::intercept::Interceptor;
use crate::lane::LaneKeeper;
use crate::lease::Keeper;
use crate::listen::{Handler, Router, Subscription, TypedHandler};
use crate::node;
use crate::notify::{Bell, Notifier, Wakener};
use crate::poll::claim::Claims;
use crate::poll::floor::Floor;
use crate::poll::lane::LaneReader;
use crate::poll::order::OrderReader;
use crate::poll::{self, Poller, Reader};
use crate::purge::{PurgePolicy, Purger};
use crate::retry::{Exponential, RetryPolicy};
use crate::service::{Services, in_time};
use crate::settle::{self, Outcomes, Settler};
use crate::store::{Ownership, Verdict};
use crate::table::TableName;
use crate::telemetry::Telemetry;
use crate::write::{Backend, WriterHook};

/// No interval is longer.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Delivers in no order: what [`Outbox::single_node`] and [`Outbox::multi_node`] make.
#[derive(Debug)]
pub enum Unordered {}

/// Delivers the events of each aggregate in their order: what [`Outbox::ordered`] makes.
#[derive(Debug)]
pub enum Ordered {}

/// Connections that a node opens before it delivers are waited for this long.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Makes an [`Outbox`] that delivers.
#[must_use = "a builder does nothing until build() is called"]
pub struct Builder<D: Backend, O = Unordered> {
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
    ownership: Ownership,
    /// A dead event keeps its key from going on.
    parks: bool,
    poll: poll::Config,
    settle: settle::Config,
    order: PhantomData<O>,
}

impl<D: Backend, O> std::fmt::Debug for Builder<D, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("table", &self.writer.table)
            .field("subscriptions", &self.subscriptions)
            .finish_non_exhaustive()
    }
}

impl<D: Backend> Builder<D, Unordered> {
    /// Owns what is read from the table by lanes: a node has some of them to itself and claims no rows, which costs the
    /// database one write for each event instead of two. The other nodes take over when its lease ends. This is the default.
    ///
    /// All nodes of a table must do the same.
    pub fn lanes(mut self) -> Self {
        self.ownership = Ownership::Lanes;
        self
    }

    /// Owns what is read from the table row by row: nodes help each other with every single event, which suits slow and
    /// uneven listeners, and costs the database two writes for each.
    ///
    /// All nodes of a table must do the same.
    pub fn row_claims(mut self) -> Self {
        self.ownership = Ownership::Rows;
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

    /// Lets go of an event that has been in flight longer than this, so that it can be taken again. Default: never;
    /// listeners end by their timeout.
    pub fn in_flight_ttl(mut self, ttl: Duration) -> Self {
        self.in_flight_ttl = Some(ttl);
        self
    }

    /// Leaves rows alone that were written less than this ago. Default: zero, since rows are born leased.
    pub fn skip_recent(mut self, age: Duration) -> Self {
        self.poll.skip_recent = age;
        self
    }
}

impl<D: Backend> Builder<D, Ordered> {
    pub(super) fn ordered(pool: D::Pool) -> Self {
        let mut builder = Self::new(pool, false);
        builder.ownership = Ownership::Keys;
        // The hot path only wakes the reader: what it brought could overtake what waits in the table.
        builder.hot_path = false;
        builder.lease = Duration::from_secs(10);
        builder
    }

    /// When an event is dead, the later events of its aggregate wait until an operator has resolved it (`outbox keys`).
    /// Default: they go on.
    pub fn park_on_death(mut self) -> Self {
        self.parks = true;
        self
    }
}

impl<D: Backend, O> Builder<D, O> {
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
            ownership: Ownership::Lanes,
            parks: false,
            poll: poll::Config::default(),
            settle: settle::Config::default(),
            order: PhantomData,
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

    /// How many events the cold queue holds; more are not read. Default: 1000.
    pub fn cold_capacity(mut self, events: usize) -> Self {
        self.cold_capacity = events.max(1);
        self
    }

    /// How long a node that has died keeps its events, and its lanes, from the others. Renewed while it lives. From 100 ms to
    /// a day. Default: 30 s; 10 s where events are delivered in order.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.clamp(Duration::from_millis(100), DAY);
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

    /// How many outcomes are written at once, and how long one waits for others, unless the next event of its key waits for
    /// it. Default: 500, and 10 ms. What waits is delivered again if the process dies meanwhile.
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
        let dispatcher = Arc::new(Dispatcher {
            // The first of every line must find room beside events that have no order.
            queues: Queues::new(
                self.hot_capacity,
                match self.ownership {
                    Ownership::Keys => self.cold_capacity * 2 + 1,
                    _ => self.cold_capacity,
                },
                self.workers,
            ),
            in_flight: InFlight::default(),
            lines: Lines::new(self.cold_capacity),
            ownership: self.ownership,
            parks: self.parks,
            router: Router::new(self.subscriptions, self.listener_timeout, &telemetry)?,
            interceptors: self.interceptors,
            retry: self.retry,
            retry_by_type: self.retry_by_type,
            // Room for two batches, while two more are being written: so much comes again, at the most, after a crash.
            outcomes: Outcomes::new(self.settle.batch),
            telemetry: Arc::clone(&telemetry),
            lease: self.lease,
            claiming: tokio::sync::Mutex::default(),
            done: self.done,
        });
        if self.alone {
            let recovered = in_time("releasing all leases", store.release_all()).await?;
            telemetry.recovered.increment(recovered);
        }

        // A server that is full is no reason not to start, nor to start late: what is missing is opened when it is needed.
        match tokio::time::timeout(CONNECT_TIMEOUT, store.connect()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "not all connections could be opened at the start"),
            Err(_) => {
                tracing::warn!(limit = ?CONNECT_TIMEOUT, "not all connections could be opened at the start in time")
            }
        }

        let stops = Stops::default();
        let services = Services::new(stops.clone());
        let alarm = Arc::new(Alarm::default());
        let minute = Duration::from_secs(60);
        let settler = Settler {
            config: self.settle,
            writer: settle::Writer {
                owner: owner.clone(),
                store: Arc::clone(&store),
                dispatcher: Arc::clone(&dispatcher),
                alarm: Arc::clone(&alarm),
            },
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
        let bell = Arc::new(Bell::default());
        if self.poller {
            let patience = self.poll.interval * 2 + Duration::from_secs(10);
            let (store, alarm) = (Arc::clone(&store), Arc::clone(&alarm));
            let dispatcher = Arc::clone(&dispatcher);
            let reader = match self.ownership {
                Ownership::Rows => Reader::Claims(Claims {
                    owner: owner.clone(),
                    store: Arc::clone(&store),
                    dispatcher: Arc::clone(&dispatcher),
                    skip_recent: self.poll.skip_recent,
                    sweep: Default::default(),
                }),
                Ownership::Lanes => Reader::Lanes(LaneReader {
                    store: Arc::clone(&store),
                    dispatcher: Arc::clone(&dispatcher),
                    alarm: Arc::clone(&alarm),
                    skip_recent: self.poll.skip_recent,
                    mark: Default::default(),
                    pass: None,
                    gains: 0,
                }),
                Ownership::Keys => Reader::Order(OrderReader {
                    store: Arc::clone(&store),
                    dispatcher: Arc::clone(&dispatcher),
                    alarm: Arc::clone(&alarm),
                    pass: None,
                    bound: None,
                    floor: Floor::default(),
                    gains: 0,
                }),
            };
            let lanes = Arc::<Notify>::default();
            if self.ownership != Ownership::Rows {
                let keeper = LaneKeeper {
                    store: Arc::clone(&store),
                    dispatcher: Arc::clone(&dispatcher),
                    alarm: Arc::clone(&alarm),
                    called: Arc::clone(&lanes),
                    node: owner.clone(),
                    joined: 0,
                    counted: None,
                    members: (0, tokio::time::Instant::now()),
                };
                services.start("lane keeper", minute, |pulse| {
                    keeper.run(stops.intake.clone(), stops.lanes.clone(), pulse)
                });
                let notifier = Notifier {
                    bell: Arc::clone(&bell),
                    store: Arc::clone(&store),
                };
                services.start("notifier", minute, |pulse| notifier.run(stops.intake.clone(), pulse));
            }
            let poller = Poller {
                config: self.poll,
                store: Arc::clone(&store),
                dispatcher,
                alarm: Arc::clone(&alarm),
                reader,
                ahead: None,
            };
            services.start("poller", patience, |pulse| poller.run(stops.intake.clone(), pulse));
            let wakener = Wakener { store, alarm, lanes };
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
            bell: (self.ownership != Ownership::Rows).then_some(bell),
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
