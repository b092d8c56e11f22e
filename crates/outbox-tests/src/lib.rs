//! What the tests of the library share: each database behind one face.

use std::future::Future;
use std::sync::Arc;

use outbox::store::{Driver, Store};
use outbox::testing::conformance::Harness;
use outbox::testing::{Memory, MemoryPool};
use outbox::{Backend, EventId, PoolOf, TableName};
use outbox_testbed::{Server, TestDatabase};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{MySql, MySqlPool, PgPool, Pool, Postgres, Sqlite};

/// A database that tests run on.
pub trait Database: Backend<Pool: PoolOf<Self>> {
    /// What keeps it alive.
    type Guard: Send + Sync + 'static;

    /// An empty database, without the library's tables.
    fn create(test: &str) -> impl Future<Output = (Self::Pool, Self::Guard)> + Send;

    /// For another process to open the same database.
    fn url(guard: &Self::Guard) -> String;

    /// How many lanes each node has that has any.
    fn lane_owners(pool: &Self::Pool) -> impl Future<Output = Vec<i64>> + Send;

    /// How many attempts have failed in all.
    fn failed_attempts(pool: &Self::Pool) -> impl Future<Output = usize> + Send;

    /// Writes headers past the library.
    fn overwrite_headers(pool: &Self::Pool, id: &EventId, headers: &str) -> impl Future<Output = ()> + Send;
}

/// A database with the tables in it.
#[derive(Debug)]
pub struct On<D: Database> {
    /// The user's pool.
    pub pool: D::Pool,
    guard: D::Guard,
}

impl<D: Database> On<D> {
    /// A transaction of the user's own.
    pub async fn begin(&self) -> D::Transaction {
        let statements = D::statements(&TableName::default());
        D::begin(&self.pool, &statements)
            .await
            .expect("an idle database lets us begin")
    }

    /// With the default table.
    pub async fn open(test: &str) -> Self {
        let (pool, guard) = D::create(test).await;
        D::migrate(&pool, &TableName::default())
            .await
            .expect("the tables of an empty database can be created");
        Self { pool, guard }
    }

    /// For another process to open the same database.
    pub fn url(&self) -> String {
        D::url(&self.guard)
    }

    /// A store on the default table.
    pub fn store(&self) -> Arc<dyn Store> {
        D::store(&self.pool, &TableName::default())
    }
}

impl<D: Database> Harness for On<D> {
    type Database = D;

    async fn open(case: &str) -> Self {
        On::open(case).await
    }

    fn pool(&self) -> &D::Pool {
        &self.pool
    }

    async fn overwrite_headers(&self, id: &EventId, headers: &str) {
        D::overwrite_headers(&self.pool, id, headers).await;
    }
}

impl Database for Memory {
    type Guard = ();

    async fn create(_test: &str) -> (MemoryPool, ()) {
        (MemoryPool::new(), ())
    }

    fn url(_: &()) -> String {
        unreachable!("no other process sees this one's memory")
    }

    async fn lane_owners(_: &MemoryPool) -> Vec<i64> {
        unreachable!("no other process sees this one's memory")
    }

    async fn failed_attempts(_: &MemoryPool) -> usize {
        unreachable!("no other process sees this one's memory")
    }

    async fn overwrite_headers(pool: &MemoryPool, id: &EventId, headers: &str) {
        assert!(pool.overwrite_headers(&TableName::default(), id, headers));
    }
}

impl Database for Postgres {
    type Guard = TestDatabase;

    async fn create(test: &str) -> (PgPool, TestDatabase) {
        let database = Server::Postgres.database(test).await;
        let pool = PgPool::connect(database.url()).await.expect("PostgreSQL answers");
        (pool, database)
    }

    fn url(guard: &TestDatabase) -> String {
        guard.url().to_owned()
    }

    async fn lane_owners(pool: &PgPool) -> Vec<i64> {
        lane_owners(pool).await
    }

    async fn failed_attempts(pool: &PgPool) -> usize {
        failed_attempts(pool).await
    }

    async fn overwrite_headers(pool: &PgPool, id: &EventId, headers: &str) {
        let query = sqlx::query("update outbox_event set headers = $2::json where event_id = $1");
        let result = query.bind(id.as_str()).bind(headers).execute(pool).await;
        assert_eq!(result.expect("the row is written").rows_affected(), 1);
    }
}

impl Database for MySql {
    type Guard = TestDatabase;

    async fn create(test: &str) -> (MySqlPool, TestDatabase) {
        let database = Server::MariaDb.database(test).await;
        let pool = MySqlPool::connect(database.url()).await.expect("MariaDB answers");
        (pool, database)
    }

    fn url(guard: &TestDatabase) -> String {
        guard.url().to_owned()
    }

    async fn lane_owners(pool: &MySqlPool) -> Vec<i64> {
        lane_owners(pool).await
    }

    async fn failed_attempts(pool: &MySqlPool) -> usize {
        failed_attempts(pool).await
    }

    async fn overwrite_headers(pool: &MySqlPool, id: &EventId, headers: &str) {
        let query = sqlx::query("update outbox_event set headers = ? where event_id = ?");
        let result = query.bind(headers).bind(id.as_str()).execute(pool).await;
        assert_eq!(result.expect("the row is written").rows_affected(), 1);
    }
}

impl Database for Sqlite {
    type Guard = TestDatabase;

    async fn create(test: &str) -> (Pool<Sqlite>, TestDatabase) {
        let database = Server::Sqlite.database(test).await;
        let options: SqliteConnectOptions = database.url().parse().expect("the URL is one of SQLite");
        let options = options.journal_mode(SqliteJournalMode::Wal);
        let pool = SqlitePoolOptions::new().connect_with(options).await;
        (pool.expect("SQLite opens the file"), database)
    }

    fn url(guard: &TestDatabase) -> String {
        guard.url().to_owned()
    }

    async fn lane_owners(pool: &Pool<Sqlite>) -> Vec<i64> {
        lane_owners(pool).await
    }

    async fn failed_attempts(pool: &Pool<Sqlite>) -> usize {
        failed_attempts(pool).await
    }

    async fn overwrite_headers(pool: &Pool<Sqlite>, id: &EventId, headers: &str) {
        let query = sqlx::query("update outbox_event set headers = ? where event_id = ?");
        let result = query.bind(headers).bind(id.as_str()).execute(pool).await;
        assert_eq!(result.expect("the row is written").rows_affected(), 1);
    }
}

/// A database that speaks SQL.
pub trait SqlDatabase:
    Database + Driver + Backend<Pool = Pool<Self>, Connection = <Self as sqlx::Database>::Connection>
{
}

impl SqlDatabase for Postgres {}
impl SqlDatabase for MySql {}
impl SqlDatabase for Sqlite {}

/// Runs statements that the test is made of.
pub async fn script<D: SqlDatabase>(pool: &Pool<D>, sql: &str) {
    let mut connection = pool.acquire().await.expect("the database answers");
    D::script(&mut connection, sql.to_owned())
        .await
        .unwrap_or_else(|error| panic!("{error}: {sql}"));
}

async fn lane_owners<D: Driver>(pool: &Pool<D>) -> Vec<i64> {
    counts(
        pool,
        "select count(*) from outbox_event_lane where owner is not null group by owner",
    )
    .await
}

async fn failed_attempts<D: Driver>(pool: &Pool<D>) -> usize {
    let count = counts(pool, "select count(*) from outbox_event_attempt").await;
    usize::try_from(count[0]).expect("a count is not negative")
}

async fn counts<D: Driver>(pool: &Pool<D>, sql: &str) -> Vec<i64> {
    let mut connection = pool.acquire().await.expect("the database answers");
    let rows = D::fetch(&mut connection, outbox::store::Statement::plain(sql)).await;
    let rows = rows.unwrap_or_else(|error| panic!("{error}: {sql}"));
    rows.iter()
        .map(|row| D::int(row, 0).expect("a number").unwrap_or(0))
        .collect()
}
