use std::sync::Arc;

use chrono::{DateTime, Utc};

use crate::error::Error;
use crate::event::IntoEvent;
use crate::store::Store;
use crate::table::{TableName, TableNameError};
use crate::write::{Backend, Context, Hooks, PoolOf, Transaction, TxHandle, Writer, WriterHook, WriterOnly};

/// The outbox of one database: publishes in the caller's transaction. Cheap to clone; clones are the same outbox.
///
/// ```
/// # async fn example() -> Result<(), outbox::Error> {
/// # let pool = sqlx::SqlitePool::connect_lazy("sqlite::memory:").unwrap();
/// use outbox::{Event, Outbox};
///
/// let outbox = Outbox::writer_only(&pool).migrate().build().await?;
///
/// let mut tx = outbox.begin(&pool).await?;
/// // ... your own statements on &mut *tx ...
/// outbox.publish(&mut tx, Event::json("OrderPlaced", r#"{"total": 42}"#)?).await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
/// ```
#[derive(Debug)]
pub struct Outbox<D: Backend> {
    writer: Arc<Writer<D>>,
    store: Arc<dyn Store>,
}

impl<D: Backend> Clone for Outbox<D> {
    fn clone(&self) -> Self {
        Self {
            writer: Arc::clone(&self.writer),
            store: Arc::clone(&self.store),
        }
    }
}

impl<D: Backend> Outbox<D> {
    /// An outbox that only writes: something else delivers, another process, the relay, or a tool that reads the
    /// database's log.
    pub fn writer_only(pool: &impl PoolOf<D>) -> Builder<D> {
        Builder::new(pool.pool().clone())
    }

    /// Begins a transaction whose commit hands its events over.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn begin(&self, pool: &D::Pool) -> Result<Transaction<D>, Error> {
        Ok(Transaction::new(D::begin(pool).await?))
    }

    /// Runs `work` in a transaction, and commits it if the result is `Ok`.
    ///
    /// # Errors
    /// Those of `work`, after a rollback; and those of [`begin`](Self::begin) and [`Transaction::commit`].
    pub async fn transaction<T, E, F>(&self, pool: &D::Pool, work: F) -> Result<T, E>
    where
        F: AsyncFnOnce(&mut Transaction<D>) -> Result<T, E>,
        E: From<Error>,
    {
        let mut tx = self.begin(pool).await?;
        let value = work(&mut tx).await?;
        tx.commit().await?;
        Ok(value)
    }

    /// Writes an event in the caller's transaction. It is delivered after the commit, and never without one.
    ///
    /// # Errors
    /// [`Error::Event`], [`Error::NotInTransaction`] before anything is sent to the database;
    /// [`Error::DuplicateEventId`], [`Error::SchemaMissing`], [`Error::Database`] from it. Nothing is written then; on
    /// PostgreSQL a statement that failed leaves the transaction fit for a rollback only.
    pub async fn publish<T: TxHandle<D>>(&self, tx: &mut T, event: impl IntoEvent) -> Result<T::Receipt, Error> {
        self.writer.publish(tx, [event]).await
    }

    /// Writes events in the caller's transaction, in their order, with one insert per 500: all of them or none.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub async fn publish_all<T: TxHandle<D>>(
        &self,
        tx: &mut T,
        events: impl IntoIterator<Item = impl IntoEvent> + Send,
    ) -> Result<T::Receipt, Error> {
        self.writer.publish(tx, events).await
    }

    /// The tables, as the delivery and the operator see them.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }
}

/// Makes an [`Outbox`].
#[must_use = "a builder does nothing until build() is called"]
pub struct Builder<D: Backend> {
    pool: D::Pool,
    table: Result<TableName, TableNameError>,
    hooks: Hooks,
    migrate: bool,
    clock: fn() -> DateTime<Utc>,
}

impl<D: Backend> std::fmt::Debug for Builder<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

impl<D: Backend> Builder<D> {
    fn new(pool: D::Pool) -> Self {
        Self {
            pool,
            table: Ok(TableName::default()),
            hooks: Hooks::default(),
            migrate: false,
            clock: Utc::now,
        }
    }

    /// The event table. Default: `outbox_event`.
    pub fn table(mut self, name: impl Into<String>) -> Self {
        self.table = TableName::new(name);
        self
    }

    /// Adds a hook; they run in the order they were added.
    pub fn hook(mut self, hook: impl WriterHook) -> Self {
        self.hooks.push(Arc::new(hook));
        self
    }

    /// Creates the tables, or brings them up to date, when the outbox is built. Safe from many processes at once.
    pub fn migrate(mut self) -> Self {
        self.migrate = true;
        self
    }

    /// What typed events take for the time they happened at. Default: this machine's clock.
    pub fn clock(mut self, clock: fn() -> DateTime<Utc>) -> Self {
        self.clock = clock;
        self
    }

    /// The outbox.
    ///
    /// # Errors
    /// [`Error::TableName`]; [`Error::SchemaMissing`] and [`Error::SchemaOutdated`] if the tables are not what this
    /// library needs; [`Error::Database`].
    pub async fn build(self) -> Result<Outbox<D>, Error> {
        let table = self.table?;
        if self.migrate {
            D::migrate(&self.pool, &table).await?;
        }
        let store = D::store(&self.pool, &table);
        crate::migrate::check(&*store, &table).await?;
        let writer = Writer {
            statements: D::statements(&table),
            table,
            context: Arc::new(Context {
                hooks: self.hooks,
                handoff: Arc::new(WriterOnly),
                clock: self.clock,
            }),
        };
        Ok(Outbox {
            writer: Arc::new(writer),
            store,
        })
    }
}
