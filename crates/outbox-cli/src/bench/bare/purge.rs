//! Purging by hand: finished rows go, a range of the primary key at a time.

use sqlx::Pool;

use super::{BareDatabase, Statements};
use crate::failure::Failure;

/// Removes what is finished, up to a seq. Returns how many rows went.
pub(crate) async fn purge<D: BareDatabase>(
    pool: &Pool<D>,
    sql: &Statements,
    up_to: i64,
    batch: i64,
    mut progress: impl FnMut(u64),
) -> Result<u64, Failure> {
    let mut connection = pool.acquire().await?;
    let mut removed = 0;
    let mut after = 0;
    while after < up_to {
        removed += D::remove_range(&mut connection, sql, after, after + batch).await?;
        after += batch;
        progress(removed);
    }
    Ok(removed)
}
