//! What the three databases have in common: statements with bound values, and the store on top of them.
//!
//! Each database answers the same questions, in the same order, in its own file: [`Dialect`] says how it spells things,
//! [`Driver`] runs the statements of the hot path, written by hand for it. All the rest (`admin.rs`, migrations) is
//! written once, with the dialect's spelling.
#![allow(
    missing_docs,
    reason = "public only because `Backend` is implemented for every `Driver`"
)]

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::DerefMut;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::pool::PoolOptions;
use sqlx::{Connection, Pool, Transaction};
use tracing::Instrument;

use super::batch::Batch;
use super::{Attempt, Claim, Claimed, Explain, Filter, Lease, NewRow, Page, Purge, Purged, Settled, Settlement, Stats};
use super::{BlockedKey, LaneRead, LaneRows, LaneSet, LaneShare, Ownership, Store, StoredEvent, Wakeups};
use super::{Wanted, admin, read, share};
use crate::error::{Error, database, is_conflict};
use crate::event::EventId;
use crate::migrate::Migration;
use crate::table::TableName;

/// How a database spells things.
pub trait Dialect: Send + Sync + 'static {
    /// Its name, for logs and metrics.
    const DATABASE: &'static str;
    /// Quotes an identifier.
    const QUOTE: char;
    /// The instant at which the statement started; the same throughout it, and fit for an index condition.
    const NOW: &'static str;
    /// Condition on a row that somebody may still have to deliver, exactly as the index of pending rows has it.
    const PENDING: &'static str;
    /// The column that index is sorted by: when a pending row is due.
    const DUE: &'static str;
    /// The type of a column that holds an instant.
    const INSTANT: &'static str;
    /// Condition on a pending row `t`, exactly as the index of pending rows in the order of writing has it.
    const PENDING_IN_ORDER: &'static str;
    /// How many nodes may own lanes at once.
    const LANE_HOLDERS: usize;
    /// Ends a select that keeps others from deleting the row until the transaction ends.
    const HOLD: &'static str;
    /// Ends a select that locks the row for a delete, unless somebody has it.
    const LOCK_IF_FREE: &'static str;
    /// Ends an insert of a blocked key, where it may be there already.
    const REPLACE_BLOCK: &'static str;

    /// The n-th placeholder, from one.
    fn placeholder(n: usize) -> String;
    /// `instant` as microseconds since 1970.
    fn micros(instant: &str) -> String;
    /// The instant that is `micros` microseconds after `instant`; before it, if negative.
    fn shift(instant: &str, micros: &str) -> String;
    /// The instant that is `micros` microseconds after 1970.
    fn at(micros: &str) -> String;
    /// `bits` shifted to the right.
    fn shift_right(bits: &str, by: &str) -> String {
        format!("({bits} >> {by})")
    }
    /// The event table as `t`, read by the index of pending rows in the order of writing.
    fn in_order_of_writing(table: &TableName) -> String;
    /// A number column as the 64 bits that the driver reads.
    fn integer(column: &str) -> String;
    /// An instant as [`Driver::instant`] reads it.
    fn read_instant(instant: &str) -> String {
        Self::micros(instant)
    }
}

/// A quoted identifier. The name must have been checked: see [`TableName`].
pub(crate) fn quote<D: Dialect>(name: &str) -> String {
    format!("{0}{name}{0}", D::QUOTE)
}

/// A value for a placeholder.
#[derive(Clone, Debug)]
pub(crate) enum Bind {
    Int(i64),
    Text(String),
}

/// SQL text and the values of its placeholders. The text is made of our own literals and checked identifiers; whatever
/// comes from outside is bound.
#[derive(Debug)]
pub struct Statement<D> {
    sql: String,
    binds: Vec<Bind>,
    /// Run again and again: worth a plan that is kept.
    prepared: bool,
    dialect: PhantomData<D>,
}

// Not derived: a dialect is only a name.
impl<D> Clone for Statement<D> {
    fn clone(&self) -> Self {
        Self {
            sql: self.sql.clone(),
            binds: self.binds.clone(),
            prepared: self.prepared,
            dialect: PhantomData,
        }
    }
}

impl<D: Dialect> Statement<D> {
    pub(crate) fn new(sql: impl Into<String>) -> Self {
        Self {
            sql: sql.into(),
            binds: Vec::new(),
            prepared: false,
            dialect: PhantomData,
        }
    }

    /// A statement without values, for tests.
    #[doc(hidden)]
    pub fn plain(sql: &str) -> Self {
        Self::new(sql)
    }

    /// Keeps the plan: for a statement with one text, however often it runs.
    pub(crate) fn prepared(&mut self) -> &mut Self {
        self.prepared = true;
        self
    }

    /// The text alone, for its plan.
    pub(crate) fn prefixed(mut self, prefix: &str) -> Self {
        self.sql.insert_str(0, prefix);
        self.prepared = false;
        self
    }

    pub(crate) fn push(&mut self, sql: &str) -> &mut Self {
        self.sql.push_str(sql);
        self
    }

    /// Appends a placeholder with its value.
    pub(crate) fn bind(&mut self, value: impl Into<Bind>) -> &mut Self {
        let placeholder = self.placeholder(value);
        self.sql.push_str(&placeholder);
        self
    }

    /// A placeholder with its value, to stand in the very next text that is pushed.
    pub(crate) fn placeholder(&mut self, value: impl Into<Bind>) -> String {
        self.binds.push(value.into());
        D::placeholder(self.binds.len())
    }

    pub(crate) fn into_parts(self) -> (sqlx::AssertSqlSafe<String>, Vec<Bind>, bool) {
        (sqlx::AssertSqlSafe(self.sql), self.binds, self.prepared)
    }
}

/// The query of a [`Statement`], with its values bound. A macro, because the types of a query differ by database.
macro_rules! query {
    ($statement:expr) => {{
        let (sql, binds, prepared) = $statement.into_parts();
        let mut query = sqlx::query(sql).persistent(prepared);
        for bind in binds {
            query = match bind {
                $crate::store::sql::Bind::Int(value) => query.bind(value),
                $crate::store::sql::Bind::Text(value) => query.bind(value),
            };
        }
        query
    }};
}
pub(super) use query;

impl From<i64> for Bind {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<&str> for Bind {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

/// What a database does for us, besides [`Dialect`].
pub trait Driver: sqlx::Database<Connection: Sync> + Dialect {
    /// All of them, in order.
    const MIGRATIONS: &'static [Migration];

    /// The statements of the hot path, made once per table.
    type Sql: fmt::Debug + Send + Sync + 'static;

    fn statements(table: &TableName) -> Self::Sql;

    /// Begins a transaction in which a write cannot fail for having read before (SQLite), and of which
    /// [`commit`](Self::commit) can tell the truth.
    fn begin(pool: &Pool<Self>) -> impl Future<Output = Result<Transaction<'static, Self>, sqlx::Error>> + Send;

    /// Commits a transaction of [`begin`](Self::begin). Unlike a bare COMMIT it is an error if the database has already
    /// rolled the transaction back because of a failed statement: what we dispatch after it must be there.
    fn commit(tx: Transaction<'static, Self>) -> impl Future<Output = Result<(), Error>> + Send;

    /// The same, of a transaction whose last statement succeeded.
    fn commit_sound(tx: Transaction<'static, Self>) -> impl Future<Output = Result<(), Error>> + Send {
        <Self as Driver>::commit(tx)
    }

    fn is_missing_table(error: &sqlx::Error) -> bool;

    /// How our own connections differ from the user's.
    fn own_options(
        options: PoolOptions<Self>,
        connect: <Self::Connection as Connection>::Options,
    ) -> (PoolOptions<Self>, <Self::Connection as Connection>::Options);

    /// The connections for what only reads, beside those of `own`.
    fn reading(own: &Pool<Self>) -> Pool<Self> {
        own.clone()
    }

    fn int(row: &Self::Row, column: usize) -> Result<Option<i64>, sqlx::Error>;
    fn text(row: &Self::Row, column: usize) -> Result<Option<String>, sqlx::Error>;
    fn bytes(row: &Self::Row, column: usize) -> Result<Option<Vec<u8>>, sqlx::Error>;
    /// [`Dialect::read_instant`], as microseconds since 1970.
    fn instant(row: &Self::Row, column: usize) -> Result<Option<i64>, sqlx::Error> {
        Self::int(row, column)
    }

    fn execute(
        connection: &mut Self::Connection,
        statement: Statement<Self>,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;
    fn fetch(
        connection: &mut Self::Connection,
        statement: Statement<Self>,
    ) -> impl Future<Output = Result<Vec<Self::Row>, sqlx::Error>> + Send;
    /// The same, each row read as it arrives: the database sends the next ones meanwhile.
    fn read<T: Send + Unpin>(
        connection: &mut Self::Connection,
        statement: Statement<Self>,
        read: impl FnMut(&Self::Row) -> Result<T, sqlx::Error> + Send,
    ) -> impl Future<Output = Result<Vec<T>, sqlx::Error>> + Send;
    /// Several statements without values, separated by semicolons.
    fn script(
        connection: &mut Self::Connection,
        script: String,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
    /// Runs `migrations`, which nobody else does meanwhile, as safely as the database can.
    fn serialized(
        pool: &Pool<Self>,
        table: &TableName,
    ) -> impl Future<Output = Result<Serialized<Self>, sqlx::Error>> + Send;

    /// Writes rows in the caller's transaction and returns the `seq` of each.
    fn insert(
        connection: &mut Self::Connection,
        sql: &Self::Sql,
        rows: &[NewRow<'_>],
    ) -> impl Future<Output = Result<Vec<i64>, sqlx::Error>> + Send;
    fn claim(
        pool: &Pool<Self>,
        reading: &Pool<Self>,
        sql: &Self::Sql,
        claim: &Claim<'_>,
    ) -> impl Future<Output = Result<Vec<Claimed>, sqlx::Error>> + Send;
    fn read_leased(
        pool: &Pool<Self>,
        sql: &Self::Sql,
        leases: &[Lease],
        at_least: Duration,
    ) -> impl Future<Output = Result<Vec<Claimed>, sqlx::Error>> + Send;
    /// Whether [`write`](Self::write) can write this in one statement, which then needs no transaction around it.
    fn is_one_statement(batch: &Batch, member: Option<&str>) -> bool;
    /// Writes outcomes, and returns how many were not stale. A batch that [is one statement](Self::is_one_statement)
    /// checks itself that the member, where there is one, still is one.
    fn write(
        connection: &mut Self::Connection,
        sql: &Self::Sql,
        owner: &str,
        batch: &Batch,
        member: Option<&str>,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;
    fn renew(
        pool: &Pool<Self>,
        sql: &Self::Sql,
        leases: &[Lease],
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<Lease>, sqlx::Error>> + Send;
    fn release(
        pool: &Pool<Self>,
        sql: &Self::Sql,
        leases: &[Lease],
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;
    /// Wakes pollers; does nothing where the database cannot.
    fn notify(_pool: &Pool<Self>, _table: &TableName) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        std::future::ready(Ok(()))
    }
    /// Hears of calls to wake up; `None` where the database cannot.
    fn wakeups(
        _pool: &Pool<Self>,
        _table: &TableName,
    ) -> impl Future<Output = Result<Option<Box<dyn Wakeups>>, sqlx::Error>> + Send {
        std::future::ready(Ok(None))
    }
    /// The plan of a reading statement.
    fn explain_read(
        pool: &Pool<Self>,
        statement: Statement<Self>,
    ) -> impl Future<Output = Result<String, sqlx::Error>> + Send;
    /// The text of the plan, and what it was asked for, with plausible values.
    fn explain(
        pool: &Pool<Self>,
        sql: &Self::Sql,
        statement: Explain,
    ) -> impl Future<Output = Result<String, sqlx::Error>> + Send;
}

/// A connection that alone may migrate, until it is finished.
pub struct Serialized<D: sqlx::Database> {
    pub(crate) held: Held<D>,
}

#[allow(
    dead_code,
    reason = "each database has one of them, and the features decide which databases there are"
)]
pub(crate) enum Held<D: sqlx::Database> {
    /// The database can roll DDL back: the lock is the transaction's.
    Transaction(Transaction<'static, D>),
    /// It cannot: the lock is the connection's, which is closed in the end.
    Connection(sqlx::pool::PoolConnection<D>),
}

impl<D: Driver> Serialized<D> {
    pub(crate) fn connection(&mut self) -> &mut D::Connection {
        match &mut self.held {
            Held::Transaction(tx) => tx.deref_mut(),
            Held::Connection(connection) => connection.deref_mut(),
        }
    }

    pub(crate) async fn finish(self) -> Result<(), sqlx::Error> {
        match self.held {
            Held::Transaction(tx) => tx.commit().await,
            Held::Connection(connection) => connection.close().await,
        }
    }
}

/// A small pool of our own to the database of the user's pool.
///
/// The application may use up all of its connections, and the delivery still goes on; and settings which our statements
/// want do not touch the application's.
pub(crate) fn own_pool<D: Driver>(theirs: &Pool<D>) -> Pool<D> {
    let connect = (*theirs.connect_options()).clone();
    let options = PoolOptions::new()
        .min_connections(0)
        .max_connections(4)
        .acquire_timeout(Duration::from_secs(10))
        .idle_timeout(Duration::from_secs(300))
        .test_before_acquire(false);
    let (options, connect) = D::own_options(options, connect);
    options.connect_lazy_with(connect)
}

/// How often a statement is tried that loses against another transaction.
const CONFLICT_TRIES: u32 = 10;

/// Runs `work` again after a deadlock or a busy database: both mean that nothing happened.
pub(crate) async fn retrying<T, F: Future<Output = Result<T, sqlx::Error>>>(
    operation: &'static str,
    mut work: impl FnMut() -> F,
) -> Result<T, Error> {
    let mut tried = 1;
    loop {
        match work().await {
            Err(error) if is_conflict(&error) && tried < CONFLICT_TRIES => {
                tracing::debug!(operation, tried, %error, "lost against another transaction, trying again");
                let longest = 2_u64 << tried;
                tokio::time::sleep(Duration::from_millis(rand::random_range(1..=longest))).await;
                tried += 1;
            }
            result => return result.map_err(database(operation)),
        }
    }
}

/// The store of a database that speaks SQL.
pub(crate) struct SqlStore<D: Driver> {
    /// For whatever writes.
    pub(super) pool: Pool<D>,
    /// For what only reads: the same, but where a writer would keep it waiting.
    pub(super) reading: Pool<D>,
    pub(super) table: TableName,
    sql: Arc<D::Sql>,
}

/// A statement on its way.
type Running<'a, T> = Pin<Box<dyn Future<Output = Result<T, sqlx::Error>> + Send + 'a>>;

impl<D: Driver> SqlStore<D> {
    /// On the given pool, which should be our own: see [`own_pool`].
    pub(crate) fn new(pool: Pool<D>, table: &TableName) -> Self {
        Self {
            reading: D::reading(&pool),
            pool,
            table: table.clone(),
            sql: Arc::new(D::statements(table)),
        }
    }

    /// Runs `work` to its end, even if the caller gives up on it: dropped half way, while a statement is being prepared,
    /// it would leave a connection of MySQL out of step with its server, and that would go back to the pool.
    async fn run<T: Send + 'static, A: Send + Sync + 'static>(
        &self,
        operation: &'static str,
        arguments: A,
        work: impl for<'a> Fn(&'a Self, &'a A) -> Running<'a, T> + Send + Sync + 'static,
    ) -> Result<T, Error> {
        let store = Self {
            pool: self.pool.clone(),
            reading: self.reading.clone(),
            table: self.table.clone(),
            sql: Arc::clone(&self.sql),
        };
        let task = async move { retrying(operation, || work(&store, &arguments)).await };
        match tokio::spawn(task.in_current_span()).await {
            Ok(result) => result,
            Err(stopped) => match stopped.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down.
                Err(_) => Err(database(operation)(sqlx::Error::WorkerCrashed)),
            },
        }
    }
}

impl<D: Driver> SqlStore<D> {
    async fn write(&self, owner: &str, by: Ownership, batch: &Batch) -> Result<u64, sqlx::Error> {
        let member = (by != Ownership::Rows).then_some(owner);
        let blocks = by == Ownership::Keys && batch.holds_keys_back();
        if D::is_one_statement(batch, member) && !blocks {
            return D::write(&mut *self.pool.acquire().await?, &self.sql, owner, batch, member).await;
        }
        let mut tx = D::begin(&self.pool).await?;
        if let Some(member) = member
            && !share::hold(self, &mut tx, member).await?
        {
            tx.rollback().await?;
            return Ok(0);
        }
        let applied = D::write(&mut tx, &self.sql, owner, batch, None).await?;
        if blocks {
            read::block(self, &mut tx, &batch.later(), false).await?;
            read::block(self, &mut tx, &batch.parked(), true).await?;
        }
        tx.commit().await?;
        Ok(applied)
    }
}

impl<D: Driver> fmt::Debug for SqlStore<D> {
    /// Without the pool, whose options hold the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlStore")
            .field("database", &D::DATABASE)
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl<D: Driver> Store for SqlStore<D> {
    fn name(&self) -> &'static str {
        D::DATABASE
    }

    fn table(&self) -> &str {
        self.table.as_str()
    }

    async fn schema_version(&self) -> Result<i64, Error> {
        crate::migrate::version(&self.pool, &self.table).await
    }

    async fn claim(&self, claim: &Claim<'_>) -> Result<Vec<Claimed>, Error> {
        let Claim {
            lease,
            limit,
            skip_recent,
            from,
            ..
        } = *claim;
        let mut claimed = self
            .run("claiming events", claim.owner.to_owned(), move |store, owner| {
                let claim = Claim {
                    owner,
                    lease,
                    limit,
                    skip_recent,
                    from,
                };
                Box::pin(async move { D::claim(&store.pool, &store.reading, &store.sql, &claim).await })
            })
            .await?;
        claimed.sort_unstable_by_key(|row| (row.due_at, row.lease.seq));
        Ok(claimed)
    }

    async fn read_leased(&self, leases: &[Lease], at_least: Duration) -> Result<Vec<Claimed>, Error> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        self.run("reading leased events", leases.to_vec(), move |store, leases| {
            Box::pin(D::read_leased(&store.reading, &store.sql, leases, at_least))
        })
        .await
    }

    async fn settle(&self, owner: &str, by: Ownership, settlements: &[Settlement]) -> Result<Settled, Error> {
        if settlements.is_empty() {
            return Ok(Settled::default());
        }
        let arguments = (owner.to_owned(), Batch::of(settlements));
        let applied = self
            .run("settling events", arguments, move |store, (owner, batch)| {
                Box::pin(store.write(owner, by, batch))
            })
            .await?;
        Ok(Settled {
            applied,
            stale: (settlements.len() as u64).saturating_sub(applied),
        })
    }

    async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Lease>, Error> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        self.run("renewing leases", leases.to_vec(), move |store, leases| {
            Box::pin(D::renew(&store.pool, &store.sql, leases, lease))
        })
        .await
    }

    async fn release(&self, leases: &[Lease]) -> Result<u64, Error> {
        if leases.is_empty() {
            return Ok(0);
        }
        self.run("releasing leases", leases.to_vec(), |store, leases| {
            Box::pin(D::release(&store.pool, &store.sql, leases))
        })
        .await
    }

    async fn release_all(&self) -> Result<u64, Error> {
        self.run("releasing all leases", (), |store, ()| {
            Box::pin(admin::release_all(store))
        })
        .await
    }

    async fn purge(&self, purge: &Purge, after: i64) -> Result<Purged, Error> {
        self.run("purging events", purge.clone(), move |store, purge| {
            Box::pin(admin::purge(store, purge, after))
        })
        .await
    }

    async fn lead(&self, name: &str, owner: &str, lease: Duration) -> Result<bool, Error> {
        let arguments = (name.to_owned(), owner.to_owned());
        self.run("taking a named lease", arguments, move |store, (name, owner)| {
            Box::pin(admin::lead(store, name, owner, lease))
        })
        .await
    }

    async fn resign(&self, name: &str, owner: &str) -> Result<(), Error> {
        let arguments = (name.to_owned(), owner.to_owned());
        self.run("giving up a named lease", arguments, |store, (name, owner)| {
            Box::pin(admin::resign(store, name, owner))
        })
        .await
    }

    async fn share_lanes(
        &self,
        member: &str,
        joining: bool,
        lease: Duration,
        take: bool,
    ) -> Result<Option<LaneShare>, Error> {
        self.run("sharing lanes", member.to_owned(), move |store, member| {
            Box::pin(share::share(store, member, joining, lease, take))
        })
        .await
    }

    async fn give_up_lanes(&self, member: &str, lanes: LaneSet) -> Result<(), Error> {
        self.run("giving up lanes", member.to_owned(), move |store, member| {
            Box::pin(share::give_up(store, member, lanes))
        })
        .await
    }

    async fn leave(&self, member: &str) -> Result<(), Error> {
        self.run("leaving", member.to_owned(), |store, member| {
            Box::pin(share::leave(store, member))
        })
        .await
    }

    async fn read_lanes(&self, read: &LaneRead<'_>) -> Result<LaneRows, Error> {
        if read.lanes.is_empty() || read.limit == 0 {
            return Ok(LaneRows::default());
        }
        let (statement, begins) = (read::statement(self, read), read::begins(read));
        self.run("reading lanes", statement, move |store, statement| {
            Box::pin(read::read(store, statement.clone(), begins))
        })
        .await
    }

    async fn blocked_keys(&self, page: Page) -> Result<Vec<BlockedKey>, Error> {
        self.run("reading blocked keys", (), move |store, ()| {
            Box::pin(read::blocked(store, page))
        })
        .await
    }

    async fn unblock_key(&self, aggregate_type: &str, aggregate_id: &str) -> Result<bool, Error> {
        let key = (aggregate_type.to_owned(), aggregate_id.to_owned());
        self.run("unblocking a key", key, |store, (aggregate_type, aggregate_id)| {
            Box::pin(read::unblock(store, aggregate_type, aggregate_id))
        })
        .await
    }

    async fn fetch(&self, id: &EventId) -> Result<Option<StoredEvent>, Error> {
        let found = self.find(&Filter::id(id), Page { after: 0, limit: 1 }).await?;
        Ok(found.into_iter().next())
    }

    async fn attempts(&self, id: &EventId) -> Result<Vec<Attempt>, Error> {
        self.run("reading failed attempts", id.clone(), |store, id| {
            Box::pin(admin::attempts(store, id))
        })
        .await
    }

    async fn find(&self, filter: &Filter, page: Page) -> Result<Vec<StoredEvent>, Error> {
        self.run("finding events", filter.clone(), move |store, filter| {
            Box::pin(admin::find(store, filter, page))
        })
        .await
    }

    async fn count(&self, filter: &Filter, at_most: u64) -> Result<u64, Error> {
        self.run("counting events", filter.clone(), move |store, filter| {
            Box::pin(admin::count(store, filter, at_most))
        })
        .await
    }

    async fn replay(&self, filter: &Filter, limit: usize) -> Result<u64, Error> {
        self.run("replaying events", filter.clone(), move |store, filter| {
            Box::pin(admin::replay(store, filter, limit))
        })
        .await
    }

    async fn discard(&self, filter: &Filter, limit: usize) -> Result<u64, Error> {
        self.run("discarding events", filter.clone(), move |store, filter| {
            Box::pin(admin::discard(store, filter, limit))
        })
        .await
    }

    async fn stats(&self, at_most: u64) -> Result<Stats, Error> {
        self.run("reading the state of the outbox", (), move |store, ()| {
            Box::pin(admin::stats(store, at_most))
        })
        .await
    }

    async fn notify(&self) -> Result<(), Error> {
        D::notify(&self.pool, &self.table).await.map_err(database("notifying"))
    }

    async fn wakeups(&self) -> Result<Option<Box<dyn Wakeups>>, Error> {
        D::wakeups(&self.pool, &self.table).await.map_err(database("listening"))
    }

    async fn explain(&self, statement: Explain) -> Result<String, Error> {
        let failed = database("explaining a statement");
        let wanted = match statement {
            Explain::ReadLanes => Wanted::Deliverable {
                skip_recent: Duration::ZERO,
            },
            Explain::ReadInOrder => Wanted::InOrder {
                since: None,
                up_to: None,
                keys: None,
                without: &[],
            },
            _ => return D::explain(&self.pool, &self.sql, statement).await.map_err(failed),
        };
        let read = LaneRead {
            lanes: LaneSet::ALL,
            after: 0,
            limit: 100,
            wanted,
        };
        let statement = read::statement(self, &read);
        D::explain_read(&self.pool, statement).await.map_err(failed)
    }
}
