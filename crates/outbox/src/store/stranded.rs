//! Stranded connections. After some errors, a full disk among them, SQLite has rolled the transaction back by itself. The
//! driver does not learn of it: its own rollback fails, it believes to be in a transaction forever, and refuses every `begin`
//! on that connection. Such a connection is good for nothing but to be closed; found by the fault harness (`disk-full`).

use sqlx::pool::PoolOptions;
use sqlx::sqlite::{SqliteConnection, SqlitePool};
use sqlx::{Connection, SqlSafeStr, Sqlite, Transaction};
use sqlx_core::transaction::TransactionManager;

type Manager = <Sqlite as sqlx::Database>::TransactionManager;

/// Whether nobody has a transaction on this connection, and it believes to be in one.
async fn is_stranded(connection: &mut SqliteConnection) -> Result<bool, sqlx::Error> {
    if Manager::get_transaction_depth(connection) == 0 {
        return Ok(false);
    }
    // A rollback that is only on its way, because a transaction was dropped, comes before this.
    connection.ping().await?;
    Ok(Manager::get_transaction_depth(connection) > 0)
}

/// A pool of our own keeps none.
pub(super) fn keep_none(options: PoolOptions<Sqlite>) -> PoolOptions<Sqlite> {
    options.after_release(|connection, _| Box::pin(async move { Ok(!is_stranded(connection).await?) }))
}

/// Begins a transaction on a pool of the application's, which may hold some: those are closed on the way.
pub(super) async fn begin(
    pool: &SqlitePool,
    statement: &'static str,
) -> Result<Transaction<'static, Sqlite>, sqlx::Error> {
    loop {
        let mut connection = pool.acquire().await?;
        if !is_stranded(&mut connection).await? {
            return Transaction::begin(connection, Some(statement.into_sql_str())).await;
        }
        tracing::warn!("a connection whose transaction SQLite has rolled back is closed");
        connection.detach().close_hard().await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pool with one connection, on which SQLite has rolled a transaction back by itself.
    async fn stranded(options: PoolOptions<Sqlite>) -> SqlitePool {
        let pool = options.max_connections(1).connect("sqlite::memory:").await.unwrap();
        let mut tx = pool.begin().await.unwrap();
        let twice = "create temp table t (n integer primary key); insert into t values (1); insert or rollback into t values (1)";
        sqlx::raw_sql(twice).execute(&mut *tx).await.unwrap_err();
        drop(tx);
        pool
    }

    #[tokio::test]
    async fn a_pool_of_the_application_gets_over_a_transaction_that_sqlite_rolled_back() {
        let pool = stranded(PoolOptions::new()).await;
        let refused = pool.begin_with("begin immediate").await;
        assert!(
            matches!(refused, Err(sqlx::Error::InvalidSavePointStatement)),
            "the driver has learnt to get over it: this module can go"
        );
        begin(&pool, "begin immediate").await.unwrap().commit().await.unwrap();
    }

    #[tokio::test]
    async fn a_pool_of_our_own_keeps_no_connection_that_is_stranded() {
        let pool = stranded(keep_none(PoolOptions::new())).await;
        pool.begin_with("begin immediate")
            .await
            .unwrap()
            .commit()
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn a_transaction_that_is_dropped_strands_nothing() {
        let pool = keep_none(PoolOptions::new())
            .max_connections(1)
            .connect("sqlite::memory:")
            .await
            .unwrap();
        // A table in memory is gone with its connection.
        sqlx::query("create table t (n integer)").execute(&pool).await.unwrap();
        drop(pool.begin_with("begin immediate").await.unwrap());
        sqlx::query("insert into t values (1)").execute(&pool).await.unwrap();
    }
}
