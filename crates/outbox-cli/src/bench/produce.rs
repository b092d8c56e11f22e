//! Producers, the same for the framework and for the limit: each does one transaction after the other.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use outbox::{Event, Outbox};
use sqlx::Pool;
use tokio::task::JoinSet;

use super::bare::{AGGREGATE_TYPE, BareDatabase, EVENT_TYPE, Statements};
use crate::failure::Failure;

/// What stands in a business row, besides its number.
pub(crate) const NOTE: &str = "two of the large ones, please, and a receipt; leave them at the door if nobody is there";

/// Runs `one` for so many numbers, from `first` on, by so many producers at once.
pub(crate) async fn produce<F>(
    producers: usize,
    first: i64,
    events: u64,
    done: &Arc<AtomicU64>,
    one: impl Fn(i64) -> F + Clone + Send + 'static,
) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>> + Send,
{
    let next = Arc::new(AtomicI64::new(first));
    let last = first.saturating_add_unsigned(events) - 1;
    let mut tasks = JoinSet::new();
    for _ in 0..producers {
        let (next, done, one) = (Arc::clone(&next), Arc::clone(done), one.clone());
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number > last {
                    return Ok::<(), Failure>(());
                }
                one(number).await?;
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(std::io::Error::other)??;
    }
    Ok(())
}

/// Opens all connections of a pool, so that the measurement need not.
pub(crate) async fn warm<D: BareDatabase>(pool: &Pool<D>) -> Result<(), sqlx::Error> {
    let mut connections = Vec::new();
    for _ in 0..pool.options().get_max_connections() {
        connections.push(pool.acquire().await?);
    }
    Ok(())
}

/// How many transactions warm the connections up: a database plans the first few of each for themselves.
pub(crate) fn warming<D: BareDatabase>(producers: usize) -> u64 {
    20 * u64::from(connections::<D>(producers))
}

/// How many connections producers share. More than they are: one that is given back is not there again at once.
pub(crate) fn connections<D: BareDatabase>(producers: usize) -> u32 {
    if D::ONE_WRITER {
        return 1;
    }
    u32::try_from(producers * 2).unwrap_or(u32::MAX)
}

/// A producer's transaction with the framework.
#[derive(Debug)]
pub(crate) struct FrameworkWrite<D: BareDatabase> {
    pub(crate) outbox: Outbox<D>,
    pub(crate) pool: Pool<D>,
    /// For the business row.
    pub(crate) sql: Arc<Statements>,
    pub(crate) payload: Arc<str>,
}

impl<D: BareDatabase> FrameworkWrite<D> {
    pub(crate) async fn one(self: Arc<Self>, number: i64) -> Result<(), Failure> {
        let mut tx = self.outbox.begin(&self.pool).await?;
        D::insert_order(&mut tx, &self.sql, number, NOTE).await?;
        let event = Event::builder(EVENT_TYPE)
            .aggregate(AGGREGATE_TYPE, number.to_string())
            .json(&*self.payload)
            .build()
            .map_err(outbox::Error::from)?;
        self.outbox.publish(&mut tx, event).await?;
        tx.commit().await?;
        Ok(())
    }
}
