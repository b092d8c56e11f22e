//! PostgreSQL whose settlements go wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use outbox::store::{
    Attempt, BlockedKey, Claim, Claimed, Explain, Filter, Inserted, LaneRead, LaneRows, LaneSet, LaneShare, Lease,
    NewRow, Ownership, Page, Purge, Purged, Settled, Settlement, Stats, Store, StoredEvent, Unsettled, Writers,
};
use outbox::{Backend, Error, EventId, PoolOf, TableName};
use sqlx::Postgres;

/// What goes wrong.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// Every settlement is written at once, and answered later.
    LateAnswers,
    /// The first settlement is written, and its answer lost.
    LostAnswerOnce,
    /// The first settlement panics.
    PanicOnce,
    /// Nothing can be written about an event until its lease has ended and it is claimed again; and the claim is answered
    /// long after it has happened.
    Outage,
    /// The first release of leases fails.
    ReleaseFailsOnce,
}

#[derive(Clone, Debug)]
pub(super) struct Pool {
    pool: sqlx::PgPool,
    fault: Fault,
    settlements: Arc<AtomicUsize>,
    claimed: Arc<AtomicBool>,
    released: Arc<AtomicBool>,
}

impl Pool {
    pub(super) fn new(pool: &sqlx::PgPool, fault: Fault) -> Self {
        Self {
            pool: pool.clone(),
            fault,
            settlements: Arc::default(),
            claimed: Arc::default(),
            released: Arc::default(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Slow;

impl PoolOf<Slow> for Pool {
    fn pool(&self) -> &Pool {
        self
    }
}

impl Backend for Slow {
    type Pool = Pool;
    type Connection = sqlx::PgConnection;
    type Transaction = sqlx::Transaction<'static, Postgres>;
    type Statements = <Postgres as Backend>::Statements;

    fn statements(table: &TableName) -> Self::Statements {
        <Postgres as Backend>::statements(table)
    }

    async fn begin(pool: &Self::Pool, statements: &Self::Statements) -> Result<Self::Transaction, Error> {
        <Postgres as Backend>::begin(&pool.pool, statements).await
    }

    async fn commit(tx: Self::Transaction) -> Result<(), Error> {
        <Postgres as Backend>::commit(tx).await
    }

    async fn rollback(tx: Self::Transaction) -> Result<(), Error> {
        <Postgres as Backend>::rollback(tx).await
    }

    async fn set_savepoint(connection: &mut Self::Connection) -> Result<(), Error> {
        <Postgres as Backend>::set_savepoint(connection).await
    }

    async fn release_savepoint(connection: &mut Self::Connection) -> Result<(), Error> {
        <Postgres as Backend>::release_savepoint(connection).await
    }

    async fn rollback_savepoint(connection: &mut Self::Connection) -> Result<(), Error> {
        <Postgres as Backend>::rollback_savepoint(connection).await
    }

    fn abandon_savepoint(connection: &mut Self::Connection) {
        <Postgres as Backend>::abandon_savepoint(connection);
    }

    async fn insert(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        chunks: &[&[NewRow<'_>]],
    ) -> Result<Inserted, sqlx::Error> {
        <Postgres as Backend>::insert(connection, statements, chunks).await
    }

    fn is_missing_table(error: &sqlx::Error) -> bool {
        <Postgres as Backend>::is_missing_table(error)
    }

    fn store(pool: &Self::Pool, table: &TableName) -> Arc<dyn Store> {
        Arc::new(SlowStore(<Postgres as Backend>::store(&pool.pool, table), pool.clone()))
    }

    async fn migrate(pool: &Self::Pool, table: &TableName) -> Result<(), Error> {
        <Postgres as Backend>::migrate(&pool.pool, table).await
    }
}

#[derive(Debug)]
struct SlowStore(Arc<dyn Store>, Pool);

#[outbox::async_trait]
impl Store for SlowStore {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn table(&self) -> &str {
        self.0.table()
    }

    async fn schema_version(&self) -> Result<i64, Error> {
        self.0.schema_version().await
    }

    async fn claim(&self, claim: &Claim<'_>) -> Result<Vec<Claimed>, Error> {
        let rows = self.0.claim(claim).await?;
        if matches!(self.1.fault, Fault::Outage) && !rows.is_empty() {
            self.1.claimed.store(true, Ordering::SeqCst);
            // Longer than the settler waits between two tries.
            tokio::time::sleep(Duration::from_millis(2500)).await;
        }
        Ok(rows)
    }

    async fn read_leased(&self, leases: &[Lease], at_least: Duration) -> Result<Vec<Claimed>, Error> {
        self.0.read_leased(leases, at_least).await
    }

    async fn settle(&self, owner: &str, by: Ownership, settlements: &[Settlement]) -> Result<Settled, Error> {
        let first = self.1.settlements.fetch_add(1, Ordering::SeqCst) == 0;
        match self.1.fault {
            Fault::PanicOnce if first => panic!("the store panicked on purpose"),
            Fault::LostAnswerOnce if first => {
                self.0.settle(owner, by, settlements).await?;
                Err(lost_connection())
            }
            Fault::Outage if !self.1.claimed.load(Ordering::SeqCst) => Err(lost_connection()),
            Fault::LateAnswers => {
                let settled = self.0.settle(owner, by, settlements).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
                settled
            }
            Fault::PanicOnce | Fault::LostAnswerOnce | Fault::Outage | Fault::ReleaseFailsOnce => {
                self.0.settle(owner, by, settlements).await
            }
        }
    }

    async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Lease>, Error> {
        match self.1.fault {
            Fault::Outage => Err(lost_connection()),
            _ => self.0.renew(leases, lease).await,
        }
    }

    async fn release(&self, leases: &[Lease]) -> Result<u64, Error> {
        let first = !self.1.released.swap(true, Ordering::SeqCst);
        match self.1.fault {
            Fault::ReleaseFailsOnce if first => Err(lost_connection()),
            _ => self.0.release(leases).await,
        }
    }

    async fn release_all(&self) -> Result<u64, Error> {
        self.0.release_all().await
    }

    async fn purge(&self, purge: &Purge, after: i64) -> Result<Purged, Error> {
        self.0.purge(purge, after).await
    }

    async fn share_lanes(
        &self,
        member: &str,
        joining: bool,
        lease: Duration,
        take: bool,
    ) -> Result<Option<LaneShare>, Error> {
        self.0.share_lanes(member, joining, lease, take).await
    }

    async fn give_up_lanes(&self, member: &str, lanes: LaneSet) -> Result<(), Error> {
        self.0.give_up_lanes(member, lanes).await
    }

    async fn leave(&self, member: &str) -> Result<(), Error> {
        self.0.leave(member).await
    }

    async fn unsettled(&self, after: i64) -> Result<Unsettled, Error> {
        self.0.unsettled(after).await
    }

    async fn writers(&self) -> Result<Option<Writers>, Error> {
        self.0.writers().await
    }

    async fn read_lanes(&self, read: &LaneRead<'_>) -> Result<LaneRows, Error> {
        self.0.read_lanes(read).await
    }

    async fn blocked_keys(&self, page: Page) -> Result<Vec<BlockedKey>, Error> {
        self.0.blocked_keys(page).await
    }

    async fn unblock_key(&self, aggregate_type: &str, aggregate_id: &str) -> Result<bool, Error> {
        self.0.unblock_key(aggregate_type, aggregate_id).await
    }

    async fn lead(&self, name: &str, owner: &str, lease: Duration) -> Result<bool, Error> {
        self.0.lead(name, owner, lease).await
    }

    async fn resign(&self, name: &str, owner: &str) -> Result<(), Error> {
        self.0.resign(name, owner).await
    }

    async fn fetch(&self, id: &EventId) -> Result<Option<StoredEvent>, Error> {
        self.0.fetch(id).await
    }

    async fn attempts(&self, id: &EventId) -> Result<Vec<Attempt>, Error> {
        self.0.attempts(id).await
    }

    async fn find(&self, filter: &Filter, page: Page) -> Result<Vec<StoredEvent>, Error> {
        self.0.find(filter, page).await
    }

    async fn count(&self, filter: &Filter, at_most: u64) -> Result<u64, Error> {
        self.0.count(filter, at_most).await
    }

    async fn replay(&self, filter: &Filter, limit: usize) -> Result<u64, Error> {
        self.0.replay(filter, limit).await
    }

    async fn discard(&self, filter: &Filter, limit: usize) -> Result<u64, Error> {
        self.0.discard(filter, limit).await
    }

    async fn stats(&self, at_most: u64) -> Result<Stats, Error> {
        self.0.stats(at_most).await
    }

    async fn explain(&self, statement: Explain) -> Result<String, Error> {
        self.0.explain(statement).await
    }
}

fn lost_connection() -> Error {
    Error::Database {
        operation: "talking to the database",
        source: sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into()),
    }
}
