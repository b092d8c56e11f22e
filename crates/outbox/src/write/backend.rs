use std::fmt;
use std::future::Future;
use std::ops::DerefMut;
use std::sync::Arc;

use sqlx::Pool;
use sqlx_core::transaction::TransactionManager;

use crate::error::{Error, database};
use crate::store::{Driver, Inserted, NewRow, SqlStore, Store, own_pool};
use crate::table::TableName;

/// A database that an outbox can live in: `sqlx::Sqlite`, `sqlx::Postgres`, `sqlx::MySql`, and
/// [`Memory`](crate::testing::Memory) for unit tests.
pub trait Backend: Send + Sync + Sized + 'static {
    /// What connections come from.
    type Pool: Clone + Send + Sync + 'static;
    /// What statements run on.
    type Connection: Send;
    /// A transaction that owns its connection.
    type Transaction: DerefMut<Target = Self::Connection> + Send;
    /// The statements of the hot path.
    #[doc(hidden)]
    type Statements: fmt::Debug + Send + Sync;

    #[doc(hidden)]
    fn statements(table: &TableName) -> Self::Statements;
    #[doc(hidden)]
    fn begin(
        pool: &Self::Pool,
        statements: &Self::Statements,
    ) -> impl Future<Output = Result<Self::Transaction, Error>> + Send;
    /// Commits a transaction that is known to stand.
    #[doc(hidden)]
    fn commit(tx: Self::Transaction) -> impl Future<Output = Result<(), Error>> + Send;
    /// Commits one that the database may have ended by itself: then it is an error. `written` has a row of each insert in it.
    #[doc(hidden)]
    fn commit_checked(
        tx: Self::Transaction,
        _written: &[(TableName, i64)],
    ) -> impl Future<Output = Result<(), Error>> + Send {
        Self::commit(tx)
    }
    #[doc(hidden)]
    fn rollback(tx: Self::Transaction) -> impl Future<Output = Result<(), Error>> + Send;
    /// Sets a savepoint. This and what follows is about the innermost one: a type that borrowed the connection would keep
    /// its user out of spawned tasks (rust-lang/rust#100013).
    #[doc(hidden)]
    fn set_savepoint(connection: &mut Self::Connection) -> impl Future<Output = Result<(), Error>> + Send;
    #[doc(hidden)]
    fn release_savepoint(connection: &mut Self::Connection) -> impl Future<Output = Result<(), Error>> + Send;
    #[doc(hidden)]
    fn rollback_savepoint(connection: &mut Self::Connection) -> impl Future<Output = Result<(), Error>> + Send;
    /// Rolls back before the connection is used next: for a drop.
    #[doc(hidden)]
    fn abandon_savepoint(connection: &mut Self::Connection);
    /// Inserts chunk by chunk, all of them or none.
    #[doc(hidden)]
    fn insert(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        chunks: &[&[NewRow<'_>]],
    ) -> impl Future<Output = Result<Inserted, sqlx::Error>> + Send;
    #[doc(hidden)]
    fn is_missing_table(error: &sqlx::Error) -> bool;
    /// The delivery's side of the same tables, on connections of its own.
    #[doc(hidden)]
    fn store(pool: &Self::Pool, table: &TableName) -> Arc<dyn Store>;
    /// Brings the tables up to date.
    #[doc(hidden)]
    fn migrate(pool: &Self::Pool, table: &TableName) -> impl Future<Output = Result<(), Error>> + Send;
}

/// What an [`Outbox`](crate::Outbox) is made from; it decides the outbox's database.
pub trait PoolOf<D: Backend> {
    /// The pool.
    fn pool(&self) -> &D::Pool;
}

impl<D: Driver> PoolOf<D> for Pool<D> {
    fn pool(&self) -> &Pool<D> {
        self
    }
}

impl<D: Driver> Backend for D {
    type Pool = Pool<D>;
    type Connection = D::Connection;
    type Transaction = sqlx::Transaction<'static, D>;
    type Statements = D::Sql;

    fn statements(table: &TableName) -> D::Sql {
        <D as Driver>::statements(table)
    }

    async fn begin(pool: &Pool<D>, statements: &D::Sql) -> Result<Self::Transaction, Error> {
        // The future of a pool has kilobytes: on the heap, it is not copied from caller to caller.
        Box::pin(<D as Driver>::begin(pool, statements))
            .await
            .map_err(database("beginning a transaction"))
    }

    async fn commit(tx: Self::Transaction) -> Result<(), Error> {
        tx.commit().await.map_err(commit_failed)
    }

    async fn commit_checked(tx: Self::Transaction, written: &[(TableName, i64)]) -> Result<(), Error> {
        <D as Driver>::commit_checked(tx, written).await
    }

    async fn rollback(tx: Self::Transaction) -> Result<(), Error> {
        tx.rollback().await.map_err(database("rolling back"))
    }

    async fn set_savepoint(connection: &mut D::Connection) -> Result<(), Error> {
        D::TransactionManager::begin(connection, None)
            .await
            .map_err(database("setting a savepoint"))
    }

    async fn release_savepoint(connection: &mut D::Connection) -> Result<(), Error> {
        D::TransactionManager::commit(connection)
            .await
            .map_err(database("releasing a savepoint"))
    }

    async fn rollback_savepoint(connection: &mut D::Connection) -> Result<(), Error> {
        D::TransactionManager::rollback(connection)
            .await
            .map_err(database("rolling back to a savepoint"))
    }

    fn abandon_savepoint(connection: &mut D::Connection) {
        D::TransactionManager::start_rollback(connection);
    }

    async fn insert(
        connection: &mut D::Connection,
        statements: &D::Sql,
        chunks: &[&[NewRow<'_>]],
    ) -> Result<Inserted, sqlx::Error> {
        if let [chunk] = chunks {
            return <D as Driver>::insert(connection, statements, chunk).await;
        }
        if D::FAILS_WHOLE {
            return insert_all::<D>(connection, statements, chunks).await;
        }
        // One statement is atomic by itself; several are by a savepoint.
        let savepoint = BatchSavepoint::<D>::set(connection).await?;
        let all = insert_all::<D>(savepoint.connection, statements, chunks).await?;
        savepoint.release().await?;
        Ok(all)
    }

    fn is_missing_table(error: &sqlx::Error) -> bool {
        <D as Driver>::is_missing_table(error)
    }

    fn store(pool: &Pool<D>, table: &TableName) -> Arc<dyn Store> {
        Arc::new(SqlStore::<D>::new(own_pool(pool), table))
    }

    async fn migrate(pool: &Pool<D>, table: &TableName) -> Result<(), Error> {
        crate::migrate::up(pool, table).await.map(drop)
    }
}

async fn insert_all<D: Driver>(
    connection: &mut D::Connection,
    statements: &D::Sql,
    chunks: &[&[NewRow<'_>]],
) -> Result<Inserted, sqlx::Error> {
    let mut all = Inserted::inside(Vec::new());
    for chunk in chunks {
        let inserted = <D as Driver>::insert(&mut *connection, statements, chunk).await?;
        all.seqs.extend(inserted.seqs);
        all.inside &= inserted.inside;
    }
    Ok(all)
}

/// Rolled back to when it is dropped. Not the driver's: that one, dropped while it is being set, rolls back the transaction
/// around it, whose commit then says that all is well.
struct BatchSavepoint<'c, D: Driver> {
    connection: &'c mut D::Connection,
    released: bool,
}

impl<'c, D: Driver> BatchSavepoint<'c, D> {
    async fn set(connection: &'c mut D::Connection) -> Result<Self, sqlx::Error> {
        D::TransactionManager::begin(connection, None).await?;
        Ok(Self {
            connection,
            released: false,
        })
    }

    async fn release(mut self) -> Result<(), sqlx::Error> {
        D::TransactionManager::commit(self.connection).await?;
        self.released = true;
        Ok(())
    }
}

impl<D: Driver> Drop for BatchSavepoint<'_, D> {
    fn drop(&mut self) {
        if !self.released {
            D::TransactionManager::start_rollback(self.connection);
        }
    }
}

/// What a failed COMMIT means. What the database itself says, it knows; a lost connection leaves the outcome open.
pub(crate) fn commit_failed(source: sqlx::Error) -> Error {
    let told = source.as_database_error().is_some_and(|error| {
        // A server that is going down (57P..) or a broken connection (08..) may have committed before.
        !error
            .code()
            .is_some_and(|code| code.starts_with("57P") || code.starts_with("08"))
    });
    if told {
        Error::NotCommitted { source }
    } else {
        Error::CommitOutcomeUnknown { source }
    }
}
