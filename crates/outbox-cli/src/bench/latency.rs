//! `latency`: from the return of COMMIT to the first line of the listener, on an outbox that has little to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use outbox::{Delivery, Event, Outbox, telemetry};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tracing::instrument::WithSubscriber;
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};

use super::bare::{self, AGGREGATE_TYPE, BareDatabase, EVENT_TYPE};
use super::crew::{Crew, Task};
use super::node::{Message, since_1970};
use super::produce::{FrameworkWrite, connections, warm};
use super::stand::{PATIENCE, Stand, how_far};
use super::variant::Variant;
use crate::failure::Failure;

/// Between two events: fifty a second.
const PACE: Duration = Duration::from_millis(20);
/// At that pace, ten seconds.
const AT_MOST: u64 = 500;
/// The first ones connect, prepare and fill caches.
const WARM_UP: u64 = 10;

pub(crate) async fn latency<D: BareDatabase>(stand: &mut Stand<'_, D>) -> Result<(), Failure> {
    let events = stand.settings.events.unwrap_or(AT_MOST).min(AT_MOST);
    let latencies = through_the_hot_path(stand, events).await?;
    let finding = stand.finding("latency", "hot path", events).latencies(latencies);
    stand.report(finding)?;
    if D::NOTIFIES {
        let latencies = by_notification(stand, events).await?;
        let finding = stand
            .finding("latency", "notification, two processes", events)
            .latencies(latencies);
        stand.report(finding)?;
    }
    Ok(())
}

/// When things happened, by number: microseconds since some instant; zero if they have not.
#[derive(Clone, Debug)]
struct Times(Arc<[AtomicU64]>);

impl Times {
    fn new(events: u64) -> Self {
        Self((0..events).map(|_| AtomicU64::new(0)).collect())
    }

    fn note(&self, number: i64, at: u64) {
        // From one. What is not among them is no concern of ours.
        let place = usize::try_from(number - 1).ok();
        if let Some(time) = place.and_then(|place| self.0.get(place)) {
            time.store(at, Ordering::Relaxed);
        }
    }

    /// How many have happened.
    fn count(&self) -> u64 {
        self.0.iter().filter(|time| time.load(Ordering::Relaxed) > 0).count() as u64
    }

    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// From these to those.
    ///
    /// # Errors
    /// Something has not happened, or in another order.
    fn until(&self, later: &Self) -> Result<Vec<u64>, Failure> {
        let load = |time: &AtomicU64| Some(time.load(Ordering::Relaxed)).filter(|at| *at > 0);
        let pairs = self.0.iter().zip(&*later.0).skip(WARM_UP as usize);
        let spans = pairs.map(|(earlier, later)| load(later)?.checked_sub(load(earlier)?));
        spans.collect::<Option<_>>().ok_or_else(|| Failure::BenchFailed {
            scenario: "latency",
            complaint: "an event was heard of before it was committed".to_owned(),
        })
    }
}

fn number(event: &Event) -> i64 {
    event.aggregate_id().and_then(|key| key.parse().ok()).unwrap_or(0)
}

/// The clock at the last COMMIT that the database has answered, read before anything was handed over. To be the subscriber of
/// one task that commits.
struct CommitClock<C> {
    last: Arc<AtomicU64>,
    clock: C,
}

impl<C: Fn() -> u64 + Send + Sync + 'static> Subscriber for CommitClock<C> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == telemetry::COMMITTED
    }

    fn event(&self, _: &tracing::Event<'_>) {
        self.last.store((self.clock)(), Ordering::Relaxed);
    }

    // None is enabled.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Commits an event at every tick, and notes when the database answered. In a task of its own, as a service would.
async fn commit_at_a_pace<D: BareDatabase>(
    writer: Arc<FrameworkWrite<D>>,
    committed: Times,
    clock: impl Fn() -> u64 + Send + Sync + 'static,
) -> Result<(), Failure> {
    let last = Arc::new(AtomicU64::new(0));
    let answered = Arc::clone(&last);
    let commits = async move {
        let mut ticks = tokio::time::interval(PACE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for number in 1..=committed.len().cast_signed() {
            ticks.tick().await;
            Arc::clone(&writer).one(number).await?;
            committed.note(number, answered.swap(0, Ordering::Relaxed));
        }
        Ok(())
    };
    let mut task = JoinSet::new();
    task.spawn(commits.with_subscriber(CommitClock { last, clock }));
    match task.join_next().await {
        Some(ended) => ended.map_err(std::io::Error::other)?,
        None => Ok(()),
    }
}

async fn through_the_hot_path<D: BareDatabase>(stand: &mut Stand<'_, D>, events: u64) -> Result<Vec<u64>, Failure> {
    let tables = &stand.place.tables;
    stand.empty(tables).await?;
    let events = events + WARM_UP;
    let (committed, heard) = (Times::new(events), Times::new(events));
    let start = Instant::now();
    let clock = move || u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    let pool = bare::pool(&stand.pool, connections::<D>(1));
    warm(&pool).await?;
    let noted = heard.clone();
    let outbox = Outbox::single_node(&pool)
        .table(tables.events.as_str())
        .workers(stand.settings.workers)
        .without_purge()
        .listen_to(AGGREGATE_TYPE, EVENT_TYPE, move |delivery: Delivery| {
            let at = clock();
            noted.note(number(&delivery), at);
            std::future::ready(Ok(()))
        })
        .build()
        .await?;
    let writer = stand.writer(&outbox, pool, tables);
    let work = async {
        commit_at_a_pace(writer, committed.clone(), clock).await?;
        wait_for_all(&heard, events).await
    };
    stand.watch("latency, hot path", events, || heard.count(), work).await?;
    outbox.shutdown().await?;
    stand.check("latency", tables, events).await?;
    committed.until(&heard)
}

async fn wait_for_all(heard: &Times, events: u64) -> Result<(), Failure> {
    let patience = Instant::now() + PATIENCE;
    while heard.count() < events {
        if Instant::now() > patience {
            return Err(Failure::BenchStuck {
                scenario: "latency",
                done: heard.count(),
                events,
            });
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Writes here, and delivers in another process, which hears of it from the database.
async fn by_notification<D: BareDatabase>(stand: &mut Stand<'_, D>, events: u64) -> Result<Vec<u64>, Failure> {
    let tables = &stand.place.tables;
    stand.empty(tables).await?;
    let events = events + WARM_UP;
    let (committed, heard) = (Times::new(events), Times::new(events));
    let pool = bare::pool(&stand.pool, connections::<D>(1));
    warm(&pool).await?;
    let outbox = Outbox::writer_only(&pool).table(tables.events.as_str()).build().await?;
    let writer = stand.writer(&outbox, pool, tables);
    let task = Task {
        place: stand.place,
        tables,
        variant: Variant::LANES,
        workers: stand.settings.workers,
        batch: stand.settings.batch,
        alone: true,
        hear: true,
    };
    let mut crew = Crew::start(&task, 1).await?;
    crew.go().await?;
    let write = commit_at_a_pace(writer, committed.clone(), since_1970);
    let progress = &mut stand.progress;
    let hear = async {
        while heard.count() < events {
            match crew.next(PATIENCE).await? {
                Some(Message::Heard { number, at }) => heard.note(number, at),
                Some(_) => {}
                None => {
                    return Err(Failure::BenchStuck {
                        scenario: "latency",
                        done: heard.count(),
                        events,
                    });
                }
            }
            progress.show(how_far("latency, notification", heard.count(), events));
        }
        Ok(())
    };
    tokio::try_join!(write, hear)?;
    let sql = stand.statements(tables);
    stand.settled("latency", tables, &sql, events.cast_signed()).await?;
    crew.stop().await?;
    outbox.shutdown().await?;
    stand.check("latency", tables, events).await?;
    committed.until(&heard)
}
