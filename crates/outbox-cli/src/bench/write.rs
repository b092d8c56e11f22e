//! `write` and `hot`: producers, each with a business row and an event in one transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use outbox::{Delivery, Outbox};
use sqlx::Pool;

use super::bare::write::{BareWrite, mark_all, pending_seqs};
use super::bare::{self, AGGREGATE_TYPE, BareDatabase, EVENT_TYPE};
use super::node::SETTLE_LINGER;
use super::place::Tables;
use super::produce::{connections, produce, warm, warming};
use super::report::Rates;
use super::stand::{PATIENCE, Stand, rate};
use crate::failure::Failure;

const PRODUCERS: [usize; 3] = [1, 4, 16];

fn name(producers: usize) -> String {
    let plural = if producers == 1 { "" } else { "s" };
    format!("{producers} producer{plural}")
}

/// Business insert and publish, beside the same two inserts by hand.
pub(crate) async fn write<D: BareDatabase>(stand: &mut Stand<'_, D>) -> Result<(), Failure> {
    let events = stand.settings.events.unwrap_or(3_000);
    for producers in PRODUCERS {
        let mut rates = Rates::default();
        for _ in 0..stand.settings.rounds_of_producers() {
            let took = by_hand(stand, "write", producers, events).await?.took;
            rates.limit.push(rate(events, took));
            let took = with_the_framework(stand, producers, events).await?;
            rates.framework.push(rate(events, took));
        }
        let finding = stand.finding("write", name(producers), events).rates(&rates);
        stand.report(finding)?;
    }
    Ok(())
}

/// The same, until all are delivered from memory and marked; beside the two inserts and a batched update by hand.
pub(crate) async fn hot<D: BareDatabase>(stand: &mut Stand<'_, D>) -> Result<(), Failure> {
    let events = stand.settings.events.unwrap_or(3_000);
    for producers in PRODUCERS {
        let mut rates = Rates::default();
        for _ in 0..stand.settings.rounds_of_producers() {
            let written = by_hand(stand, "hot", producers, events).await?;
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

async fn producers_pool<D: BareDatabase>(
    stand: &Stand<'_, D>,
    tables: &Tables,
    producers: usize,
) -> Result<Pool<D>, Failure> {
    stand.empty(tables).await?;
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
    scenario: &str,
    producers: usize,
    events: u64,
) -> Result<Written<D>, Failure> {
    let tables = &stand.place.tables;
    let pool = producers_pool(stand, tables, producers).await?;
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
    let label = format!("{scenario}, {}, by hand", name(producers));
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

async fn with_the_framework<D: BareDatabase>(
    stand: &mut Stand<'_, D>,
    producers: usize,
    events: u64,
) -> Result<Duration, Failure> {
    let tables = &stand.place.tables;
    let pool = producers_pool(stand, tables, producers).await?;
    let outbox = Outbox::writer_only(&pool).table(tables.events.as_str()).build().await?;
    let writer = stand.writer(&outbox, pool, tables);
    let one = move |number| Arc::clone(&writer).one(number);
    let warm_up = warming::<D>(producers);
    produce(producers, 1, warm_up, &Arc::default(), one.clone()).await?;
    let done = Arc::new(AtomicU64::new(0));
    let label = format!("write, {}", name(producers));
    let started = Instant::now();
    let work = produce(producers, warm_up.cast_signed() + 1, events, &done, one);
    stand
        .watch(&label, events, || done.load(Ordering::Relaxed), work)
        .await?;
    let took = started.elapsed();
    outbox.shutdown().await?;
    let (written, all) = (stand.count(tables, "status = 0").await?, warm_up + events);
    if written != all {
        let complaint = format!("of {all} events {written} are in the table");
        return Err(Failure::BenchFailed {
            scenario: "write",
            complaint,
        });
    }
    Ok(took)
}

async fn through_the_hot_path<D: BareDatabase>(
    stand: &mut Stand<'_, D>,
    producers: usize,
    events: u64,
) -> Result<Duration, Failure> {
    let tables = &stand.place.tables;
    let pool = producers_pool(stand, tables, producers).await?;
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
