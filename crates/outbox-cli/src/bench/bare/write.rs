//! Writing by hand: a business row and an event in one transaction; and the marks that a hot path writes afterwards.

use std::sync::Arc;

use sqlx::Pool;

use super::{BareDatabase, Statements};
use crate::bench::produce::NOTE;
use crate::failure::Failure;

/// A producer's transaction.
#[derive(Debug)]
pub(crate) struct BareWrite<D: BareDatabase> {
    pub(crate) pool: Pool<D>,
    pub(crate) sql: Arc<Statements>,
    pub(crate) payload: Arc<str>,
}

impl<D: BareDatabase> BareWrite<D> {
    pub(crate) async fn one(self: Arc<Self>, number: i64) -> Result<(), Failure> {
        let mut tx = D::open_transaction(&self.pool).await?;
        D::insert_order(&mut tx, &self.sql, number, NOTE).await?;
        // Later ids are greater, as an engineer would have it, who knows what random ones do to an index.
        let event_id = format!("{number:016x}{:016x}", rand::random::<u64>());
        D::insert_event(&mut tx, &self.sql, &event_id, &number.to_string(), &self.payload).await?;
        tx.commit().await?;
        Ok(())
    }
}

/// Marks events done, batch by batch, on one connection.
pub(crate) async fn mark_all<D: BareDatabase>(
    pool: &Pool<D>,
    sql: &Statements,
    seqs: &[i64],
    batch: usize,
) -> Result<(), Failure> {
    let mut connection = pool.acquire().await?;
    for seqs in seqs.chunks(batch) {
        D::mark_done(&mut connection, sql, seqs).await?;
    }
    Ok(())
}

/// The seqs of all pending events beyond one, in their order.
pub(crate) async fn pending_seqs<D: BareDatabase>(
    pool: &Pool<D>,
    sql: &Statements,
    beyond: i64,
    batch: i64,
) -> Result<Vec<i64>, Failure> {
    let mut connection = pool.acquire().await?;
    let mut seqs: Vec<i64> = Vec::new();
    loop {
        let after = seqs.last().copied().unwrap_or(beyond);
        let rows = D::read_after(&mut connection, sql, after, batch).await?;
        if rows.is_empty() {
            return Ok(seqs);
        }
        seqs.extend(rows.iter().map(|row| row.0));
    }
}
