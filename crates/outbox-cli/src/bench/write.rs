//! `write` and `hot`: producers, each with a business row and an event in one transaction.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use outbox::{Delivery, Outbox};
use sqlx::Pool;

use super::bare::write::{BareWrite, mark_all, pending_seqs};
use super::bare::{self, AGGREGATE_TYPE, BareDatabase, EVENT_TYPE};
use super::node::SETTLE_LINGER;
use super::produce::{connections, produce, warm, warming};
use super::report::Rates;
use super::stand::{PATIENCE, Stand, rate};
use crate::failure::Failure;

const PRODUCERS: [usize; 3] = [1, 4, 16];

fn name(producers: usize) -> String {
    let plural = if producers == 1 { "" } else { "s" };
    format!("{producers} producer{plural}")
}

/// Business insert and publish, beside the same two inserts by hand. A machine whose speed changes from second to second is
/// the same for both only if their turns are short; so both stay connected, each with tables of its own.
pub(crate) async fn write<D: BareDatabase>(stand: &mut Stand<'_, D>) -> Result<(), Failure> {
    let events = stand.settings.events.unwrap_or(3_000);
    let (tables, others) = (&stand.place.tables, &stand.place.others);
    for producers in PRODUCERS {
        stand.empty(tables).await?;
        stand.empty(others).await?;
        let mut rates = Rates::default();
        let by_hand = Arc::new(BareWrite {
            pool: producers_pool(stand, producers).await?,
            sql: stand.statements(others),
            payload: Arc::clone(&stand.settings.payload),
        });
        let pool = producers_pool(stand, producers).await?;
        let outbox = Outbox::writer_only(&pool).table(tables.events.as_str()).build().await?;
        let framework = stand.writer(&outbox, pool, tables);
        let turns = usize::from(stand.settings.rounds_of_producers()) * TURNS;
        let (warm_up, of_a_turn) = (warming::<D>(producers), events.div_ceil(TURNS as u64));
        let mut turn = Turn {
            producers,
            next: 1,
            all: 2 * (warm_up + turns as u64 * of_a_turn),
        };
        let by_hand = move |number| Arc::clone(&by_hand).one(number);
        let framework = move |number| Arc::clone(&framework).one(number);
        turn.take(stand, warm_up, by_hand.clone()).await?;
        turn.take(stand, warm_up, framework.clone()).await?;
        // What one leaves behind, the other one meets: they take turns at being first, too.
        for framework_first in [false, true].into_iter().cycle().take(turns) {
            for with_the_framework in [framework_first, !framework_first] {
                if with_the_framework {
                    let rate = turn.take(stand, of_a_turn, framework.clone()).await?;
                    rates.framework.push(rate);
                } else {
                    let rate = turn.take(stand, of_a_turn, by_hand.clone()).await?;
                    rates.limit.push(rate);
                }
            }
        }
        outbox.shutdown().await?;
        let written = stand.count(tables, "status = 0").await? + stand.count(others, "status = 0").await?;
        if written != turn.all {
            let complaint = format!("of {} events {written} are in the table", turn.all);
            return Err(Failure::BenchFailed {
                scenario: "write",
                complaint,
            });
        }
        let finding = stand.finding("write", name(producers), events).rates(&rates);
        stand.report(finding)?;
    }
    Ok(())
}

/// Into how many turns a round of `write` is cut.
const TURNS: usize = 10;

/// Producers, one side after the other.
struct Turn {
    producers: usize,
    /// The number of the next event.
    next: i64,
    /// How many there will be, of both sides.
    all: u64,
}

impl Turn {
    /// Returns the rate.
    async fn take<D: BareDatabase, F>(
        &mut self,
        stand: &mut Stand<'_, D>,
        events: u64,
        one: impl Fn(i64) -> F + Clone + Send + 'static,
    ) -> Result<f64, Failure>
    where
        F: Future<Output = Result<(), Failure>> + Send,
    {
        let before = self.next.cast_unsigned() - 1;
        let done = Arc::new(AtomicU64::new(0));
        let so_far = || before + done.load(Ordering::Relaxed);
        let label = format!("write, {}", name(self.producers));
        let started = Instant::now();
        let work = produce(self.producers, self.next, events, &done, one);
        stand.watch(&label, self.all, so_far, work).await?;
        self.next = self.next.saturating_add_unsigned(events);
        Ok(rate(events, started.elapsed()))
    }
}

/// The same, until all are delivered from memory and marked; beside the two inserts and a batched update by hand.
pub(crate) async fn hot<D: BareDatabase>(stand: &mut Stand<'_, D>) -> Result<(), Failure> {
    let events = stand.settings.events.unwrap_or(3_000);
    for producers in PRODUCERS {
        let mut rates = Rates::default();
        for _ in 0..stand.settings.rounds_of_producers() {
            let written = by_hand(stand, producers, events).await?;
            let marking = mark_by_hand(stand, &written).await?;
            rates.limit.push(rate(events, written.took + marking));
            let took = through_the_hot_path(stand, producers, events).await?;
            rates.framework.push(rate(events, took));
        }
        let finding = stand.finding("hot", name(producers), events).rates(&rates);
        stand.report(finding)?;
    }
    Ok(())
}

async fn producers_pool<D: BareDatabase>(stand: &Stand<'_, D>, producers: usize) -> Result<Pool<D>, Failure> {
    let pool = bare::pool(&stand.pool, connections::<D>(producers));
    warm(&pool).await?;
    Ok(pool)
}

/// What was written by hand.
struct Written<D: BareDatabase> {
    took: Duration,
    pool: Pool<D>,
    /// The last one that was written to warm up.
    beyond: i64,
}

async fn by_hand<D: BareDatabase>(
    stand: &mut Stand<'_, D>,
    producers: usize,
    events: u64,
) -> Result<Written<D>, Failure> {
    let tables = &stand.place.tables;
    stand.empty(tables).await?;
    let pool = producers_pool(stand, producers).await?;
    let writer = Arc::new(BareWrite {
        pool: pool.clone(),
        sql: stand.statements(tables),
        payload: Arc::clone(&stand.settings.payload),
    });
    let one = move |number| Arc::clone(&writer).one(number);
    let warm_up = warming::<D>(producers);
    produce(producers, 1, warm_up, &Arc::default(), one.clone()).await?;
    let beyond = stand.last_seq(tables).await?;
    let done = Arc::new(AtomicU64::new(0));
    let label = format!("hot, {}, by hand", name(producers));
    let started = Instant::now();
    let work = produce(producers, warm_up.cast_signed() + 1, events, &done, one);
    stand
        .watch(&label, events, || done.load(Ordering::Relaxed), work)
        .await?;
    Ok(Written {
        took: started.elapsed(),
        pool,
        beyond,
    })
}

async fn mark_by_hand<D: BareDatabase>(stand: &Stand<'_, D>, written: &Written<D>) -> Result<Duration, Failure> {
    let Written { pool, beyond, .. } = written;
    let sql = stand.statements(&stand.place.tables);
    let batch = stand.settings.batch;
    let seqs = pending_seqs(pool, &sql, *beyond, batch as i64).await?;
    let started = Instant::now();
    mark_all(pool, &sql, &seqs, batch).await?;
    Ok(started.elapsed())
}

async fn through_the_hot_path<D: BareDatabase>(
    stand: &mut Stand<'_, D>,
    producers: usize,
    events: u64,
) -> Result<Duration, Failure> {
    let tables = &stand.place.tables;
    stand.empty(tables).await?;
    let pool = producers_pool(stand, producers).await?;
    let delivered = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&delivered);
    let outbox = Outbox::single_node(&pool)
        .table(tables.events.as_str())
        .workers(stand.settings.workers)
        .poll_batch(stand.settings.batch)
        .settle_batch(stand.settings.batch, SETTLE_LINGER)
        .without_purge()
        .listen_to(AGGREGATE_TYPE, EVENT_TYPE, move |_: Delivery| {
            count.fetch_add(1, Ordering::Relaxed);
            std::future::ready(Ok(()))
        })
        .build()
        .await?;
    let writer = stand.writer(&outbox, pool, tables);
    let one = move |number| Arc::clone(&writer).one(number);
    let warm_up = warming::<D>(producers);
    produce(producers, 1, warm_up, &Arc::default(), one.clone()).await?;
    let sql = stand.statements(tables);
    let beyond = stand.last_seq(tables).await?;
    stand.settled("hot", tables, &sql, beyond).await?;
    let label = format!("hot, {}", name(producers));
    let started = Instant::now();
    let work = async {
        produce(producers, warm_up.cast_signed() + 1, events, &Arc::default(), one).await?;
        let mut last = (Instant::now(), 0);
        loop {
            let so_far = delivered.load(Ordering::Relaxed);
            if so_far >= warm_up + events {
                return Ok(());
            }
            if so_far > last.1 {
                last = (Instant::now(), so_far);
            } else if last.0.elapsed() > PATIENCE {
                return Err(Failure::BenchStuck {
                    scenario: "hot",
                    done: so_far,
                    events,
                });
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    stand
        .watch(
            &label,
            events,
            || delivered.load(Ordering::Relaxed).saturating_sub(warm_up),
            work,
        )
        .await?;
    let last = beyond.saturating_add_unsigned(events);
    let settled = stand.settled("hot", tables, &sql, last).await?;
    outbox.shutdown().await?;
    stand.check("hot", tables, warm_up + events).await?;
    Ok(settled - started)
}
