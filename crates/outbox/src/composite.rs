//! The composite: writer, dispatcher, poller and the rest, wired with the right defaults into one value.

mod builder;
mod writer_builder;

use std::sync::Arc;

use crate::admin::Admin;
use crate::engine::{Engine, Shutdown};
use crate::error::Error;
use crate::event::IntoEvent;
use crate::service::Health;
use crate::store::Store;
use crate::write::{Backend, PoolOf, Transaction, TxHandle, Writer};

pub use builder::{Builder, Ordered, Unordered};
pub use writer_builder::WriterBuilder;

/// The outbox of one database: publishes in the caller's transaction and delivers after the commit. Cheap to clone;
/// clones are the same outbox.
///
/// ```
/// use outbox::{Delivery, Event, Outbox};
///
/// # async fn example() -> Result<(), outbox::Error> {
/// # let pool = sqlx::SqlitePool::connect_lazy("sqlite::memory:").unwrap();
/// let outbox = Outbox::single_node(&pool)
///     .migrate()
///     .listen("OrderPlaced", |delivery: Delivery| async move {
///         println!("{}", delivery.payload().as_json().unwrap_or_default());
///         Ok(())
///     })
///     .build()
///     .await?;
///
/// let mut tx = outbox.begin(&pool).await?;
/// // ... your own statements on &mut *tx ...
/// outbox.publish(&mut tx, Event::json("OrderPlaced", r#"{"total": 42}"#)?).await?;
/// tx.commit().await?;
///
/// outbox.shutdown().await?;
/// # Ok(())
/// # }
/// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
/// ```
///
/// When the last clone is dropped without a [`shutdown`](Self::shutdown), delivery ends at once; whatever was under way is
/// delivered again when its lease ends.
#[derive(Debug)]
pub struct Outbox<D: Backend> {
    writer: Arc<Writer<D>>,
    store: Arc<dyn Store>,
    engine: Arc<Engine>,
}

impl<D: Backend> Clone for Outbox<D> {
    fn clone(&self) -> Self {
        Self {
            writer: Arc::clone(&self.writer),
            store: Arc::clone(&self.store),
            engine: Arc::clone(&self.engine),
        }
    }
}

impl<D: Backend> Outbox<D> {
    /// An outbox whose only node this is. At its start it takes over at once what an earlier run has left.
    pub fn single_node(pool: &impl PoolOf<D>) -> Builder<D> {
        Builder::new(pool.pool().clone(), true)
    }

    /// An outbox that several nodes deliver from. What a node leaves behind is taken over when its leases end.
    pub fn multi_node(pool: &impl PoolOf<D>) -> Builder<D> {
        Builder::new(pool.pool().clone(), false)
    }

    /// An outbox that delivers the events of each aggregate in the order they were written, one at a time, from any number of
    /// nodes; those of different aggregates at once, as many as there are workers. A failed event holds back only its own
    /// aggregate. See [the page on order](crate::order).
    pub fn ordered(pool: &impl PoolOf<D>) -> Builder<D, Ordered> {
        Builder::ordered(pool.pool().clone())
    }

    /// An outbox that only writes: something else delivers, another process, or a tool that reads the database's log.
    pub fn writer_only(pool: &impl PoolOf<D>) -> WriterBuilder<D> {
        WriterBuilder::new(pool.pool().clone())
    }

    /// Begins a transaction whose commit hands its events over.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn begin(&self, pool: &D::Pool) -> Result<Transaction<D>, Error> {
        Ok(Transaction::new(D::begin(pool, &self.writer.statements).await?))
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

    /// The operator's side: find, count, replay, discard, purge.
    pub fn admin(&self) -> Admin {
        Admin::new(Arc::clone(&self.store))
    }

    /// The tables, as the delivery sees them.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// How the background tasks are. `ready` observes their loops: a poll that keeps failing makes it false.
    pub fn health(&self) -> Health {
        self.engine.health()
    }

    /// Returns when a background task has died of a panic; never otherwise. Delivery may have ended then: restart the
    /// process.
    pub async fn died(&self) {
        self.engine.services.died().await;
    }

    /// Ends the delivery, for all clones: no more intake, what is queued is delivered within the drain timeout, and what is
    /// left is given back, for another node to take at once. Publishing still works afterwards; the events wait.
    ///
    /// # Errors
    /// [`Error::Database`], [`Error::Timeout`] if events could not be given back; their leases end by themselves.
    ///
    /// # Cancellation
    /// The shutdown goes on if its future is dropped.
    pub async fn shutdown(&self) -> Result<Shutdown, Error> {
        let engine = Arc::clone(&self.engine);
        let stopping = tokio::spawn(async move { engine.shutdown().await });
        stopping.await.unwrap_or(Err(Error::Stopped))
    }
}
