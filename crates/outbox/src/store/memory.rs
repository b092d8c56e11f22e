//! The outbox in memory, for unit tests of services: no server, no file, the same contract.

mod lanes;
mod rows;
mod store;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

use super::row::micros;
use super::{Inserted, Instant, NewRow, News, Store};
use crate::error::Error;
use crate::event::EventId;
use crate::table::TableName;
use crate::write::{Backend, PoolOf, Receipt, Staged, TxHandle};
use rows::{Row, Rows};
use store::MemoryStore;

/// The database of unit tests: [`Outbox<Memory>`](crate::Outbox) over a [`MemoryPool`].
///
/// ```
/// # async fn example() -> Result<(), outbox::Error> {
/// use outbox::testing::MemoryPool;
/// use outbox::{Event, Outbox};
///
/// let pool = MemoryPool::new();
/// let outbox = Outbox::writer_only(&pool).build().await?;
/// let mut tx = outbox.begin(&pool).await?;
/// outbox.publish(&mut tx, Event::json("OrderPlaced", "{}")?).await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Memory {}

/// A database in memory. Clones are the same database; it is gone with the last of them.
///
/// It has the tables of every outbox that is asked for, always up to date, and a clock of its own, which tests can
/// [move](Self::advance) instead of sleeping.
#[derive(Clone)]
pub struct MemoryPool {
    shared: Arc<Mutex<Shared>>,
    calls: watch::Sender<Calls>,
}

/// How often was told of what.
#[derive(Debug, Default)]
struct Calls {
    events: u64,
    lanes: u64,
}

struct Shared {
    /// The clock at the start, which then only ever goes forward, whatever the machine's calendar does.
    epoch: Duration,
    started: std::time::Instant,
    advanced: Duration,
    /// By the name of the event table.
    tables: HashMap<String, Rows>,
}

impl Shared {
    fn now(&self) -> Instant {
        micros(self.epoch + self.started.elapsed() + self.advanced)
    }

    fn rows(&mut self, table: &TableName) -> &mut Rows {
        self.tables.entry(table.as_str().to_owned()).or_default()
    }
}

impl MemoryPool {
    /// An empty database.
    pub fn new() -> Self {
        Self {
            shared: Arc::new(Mutex::new(Shared {
                epoch: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
                started: std::time::Instant::now(),
                advanced: Duration::ZERO,
                tables: HashMap::new(),
            })),
            calls: watch::Sender::default(),
        }
    }

    /// Moves the database's clock forward: what was due in an hour is due after `advance` of an hour, leases end, rows
    /// grow old. Pollers are woken by it.
    pub fn advance(&self, by: Duration) {
        self.with(|shared| shared.advanced += by);
        self.call(News::Events);
    }

    fn call(&self, news: News) {
        self.calls.send_modify(|calls| match news {
            News::Events => calls.events += 1,
            News::Lanes => calls.lanes += 1,
        });
    }

    /// Begins a transaction of the caller's own, whose events come with a [`Receipt`].
    pub fn begin(&self) -> MemoryTransaction {
        MemoryTransaction {
            connection: MemoryConnection {
                pool: self.clone(),
                staged: Vec::new(),
                savepoints: Vec::new(),
            },
        }
    }

    /// Writes headers as another program might, which need not be a JSON object of strings. False if there is no such
    /// event.
    pub fn overwrite_headers(&self, table: &TableName, id: &EventId, headers: &str) -> bool {
        self.with(|shared| shared.rows(table).overwrite_headers(id.as_str(), headers))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Shared) -> T) -> T {
        // A panic of a test that held the lock has left no row half written.
        work(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Default for MemoryPool {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryPool").finish_non_exhaustive()
    }
}

impl PoolOf<Memory> for MemoryPool {
    fn pool(&self) -> &MemoryPool {
        self
    }
}

/// What was written in a transaction, which nobody else sees before the commit.
pub struct MemoryConnection {
    pool: MemoryPool,
    staged: Vec<(TableName, Row)>,
    /// How much was staged before each savepoint of an outbox's transaction, the innermost last.
    savepoints: Vec<usize>,
}

impl MemoryConnection {
    fn insert(&mut self, table: &TableName, chunks: &[&[NewRow<'_>]]) -> Result<Vec<i64>, DuplicateKey> {
        let own = self.staged.iter().filter(|(other, _)| other == table);
        let own: HashSet<&str> = own.map(|(_, row)| row.id()).collect();
        let new = self.pool.with(|shared| {
            let now = shared.now();
            let rows = shared.rows(table);
            let new: Vec<Row> = chunks
                .iter()
                .flat_map(|chunk| chunk.iter())
                .map(|row| Row::new(rows.next_seq(), row, now))
                .collect();
            match new.iter().any(|row| rows.has(row.id()) || own.contains(row.id())) {
                true => Err(DuplicateKey),
                false => Ok(new),
            }
        })?;
        let seqs = new.iter().map(Row::seq).collect();
        self.staged.extend(new.into_iter().map(|row| (table.clone(), row)));
        Ok(seqs)
    }

    fn commit(&mut self) -> Result<(), DuplicateKey> {
        let staged = std::mem::take(&mut self.staged);
        self.pool.with(|shared| {
            // Another transaction may have been faster with an id of ours. A server would have made it wait.
            if staged.iter().any(|(table, row)| shared.rows(table).has(row.id())) {
                return Err(DuplicateKey);
            }
            for (table, row) in staged {
                shared.rows(&table).publish(row);
            }
            Ok(())
        })
    }

    fn savepoint(&mut self) -> MemorySavepoint<'_> {
        MemorySavepoint {
            mark: self.staged.len(),
            connection: self,
        }
    }
}

impl fmt::Debug for MemoryConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryConnection")
            .field("staged", &self.staged.len())
            .finish_non_exhaustive()
    }
}

/// A transaction: its rows are there for others once it is committed. Dropped, they are forgotten.
#[derive(Debug)]
pub struct MemoryTransaction {
    connection: MemoryConnection,
}

impl MemoryTransaction {
    /// Publishes the rows.
    ///
    /// # Errors
    /// [`Error::NotCommitted`] if another transaction has committed an event of the same id meanwhile.
    pub fn commit(mut self) -> Result<(), Error> {
        self.connection
            .commit()
            .map_err(|error| Error::NotCommitted { source: error.into() })
    }

    /// Forgets the rows, as a drop does.
    pub fn rollback(self) {}

    /// A savepoint inside of this transaction.
    pub fn savepoint(&mut self) -> MemorySavepoint<'_> {
        self.connection.savepoint()
    }
}

impl Deref for MemoryTransaction {
    type Target = MemoryConnection;

    fn deref(&self) -> &MemoryConnection {
        &self.connection
    }
}

impl DerefMut for MemoryTransaction {
    fn deref_mut(&mut self) -> &mut MemoryConnection {
        &mut self.connection
    }
}

/// A savepoint. Dropped, what was written since is forgotten.
#[derive(Debug)]
pub struct MemorySavepoint<'a> {
    connection: &'a mut MemoryConnection,
    /// What was staged before it, and stays.
    mark: usize,
}

impl MemorySavepoint<'_> {
    /// Keeps what was written since; it shares the fate of what is around it.
    pub fn release(mut self) {
        self.mark = self.connection.staged.len();
    }

    /// Forgets what was written since, as a drop does.
    pub fn rollback(self) {}

    /// A savepoint inside of this one.
    pub fn savepoint(&mut self) -> MemorySavepoint<'_> {
        self.connection.savepoint()
    }
}

impl Drop for MemorySavepoint<'_> {
    fn drop(&mut self) {
        self.connection.staged.truncate(self.mark);
    }
}

impl Deref for MemorySavepoint<'_> {
    type Target = MemoryConnection;

    fn deref(&self) -> &MemoryConnection {
        self.connection
    }
}

impl DerefMut for MemorySavepoint<'_> {
    fn deref_mut(&mut self) -> &mut MemoryConnection {
        self.connection
    }
}

macro_rules! handle {
    ($($transaction:ty),*) => {$(
        impl TxHandle<Memory> for $transaction {
            type Receipt = Receipt;

            fn connection(&mut self) -> Result<&mut MemoryConnection, Error> {
                Ok(self)
            }

            fn stage(&mut self, staged: Staged) -> Receipt {
                Receipt::new(staged)
            }
        }
    )*};
}

// A connection, too: there is none outside of a transaction.
handle!(MemoryTransaction, MemorySavepoint<'_>, MemoryConnection);

/// What a server answers to an event id that is taken.
#[derive(Debug, thiserror::Error)]
#[error("duplicate key value of event_id")]
struct DuplicateKey;

impl sqlx::error::DatabaseError for DuplicateKey {
    fn message(&self) -> &str {
        "duplicate key value of event_id"
    }

    fn code(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed("23505"))
    }

    fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        self
    }

    fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
        self
    }

    fn into_error(self: Box<Self>) -> Box<dyn std::error::Error + Send + Sync + 'static> {
        self
    }

    fn kind(&self) -> sqlx::error::ErrorKind {
        sqlx::error::ErrorKind::UniqueViolation
    }
}

impl Backend for Memory {
    type Pool = MemoryPool;
    type Connection = MemoryConnection;
    type Transaction = MemoryTransaction;
    type Statements = TableName;

    fn statements(table: &TableName) -> TableName {
        table.clone()
    }

    async fn begin(pool: &MemoryPool, _statements: &Self::Statements) -> Result<MemoryTransaction, Error> {
        Ok(pool.begin())
    }

    async fn commit(tx: MemoryTransaction) -> Result<(), Error> {
        tx.commit()
    }

    async fn rollback(tx: MemoryTransaction) -> Result<(), Error> {
        tx.rollback();
        Ok(())
    }

    async fn set_savepoint(connection: &mut MemoryConnection) -> Result<(), Error> {
        connection.savepoints.push(connection.staged.len());
        Ok(())
    }

    async fn release_savepoint(connection: &mut MemoryConnection) -> Result<(), Error> {
        connection.savepoints.pop();
        Ok(())
    }

    async fn rollback_savepoint(connection: &mut MemoryConnection) -> Result<(), Error> {
        Self::abandon_savepoint(connection);
        Ok(())
    }

    fn abandon_savepoint(connection: &mut MemoryConnection) {
        if let Some(mark) = connection.savepoints.pop() {
            connection.staged.truncate(mark);
        }
    }

    async fn insert(
        connection: &mut MemoryConnection,
        table: &TableName,
        chunks: &[&[NewRow<'_>]],
    ) -> Result<Inserted, sqlx::Error> {
        Ok(Inserted::inside(connection.insert(table, chunks)?))
    }

    fn is_missing_table(_error: &sqlx::Error) -> bool {
        false
    }

    fn store(pool: &MemoryPool, table: &TableName) -> Arc<dyn Store> {
        Arc::new(MemoryStore::new(pool.clone(), table.clone()))
    }

    async fn migrate(_pool: &MemoryPool, _table: &TableName) -> Result<(), Error> {
        Ok(())
    }
}
