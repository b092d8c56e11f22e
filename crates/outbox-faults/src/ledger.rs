//! The workload's own tables, on each database: what the application believes, against which the outbox is checked.
//!
//! `faults_key` has a row for each key: producers serialise per key by its lock, and it counts the key's events.
//! `faults_ledger` has a row for each event, written in the same transaction: it is there if and only if the transaction
//! was committed, and it stays when the outbox purges.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::time::Duration;

use outbox::store::{Driver, Status};
use outbox::testing::checker::Tables;
use sqlx::pool::PoolOptions;
use sqlx::{AssertSqlSafe, Connection, MySql, Pool, Postgres, Row, Sqlite};

/// How long a producer waits for a connection: short, so that a fault does not outlast its run.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(2);
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

type Options<D> = <<D as sqlx::Database>::Connection as Connection>::Options;

/// A database that the workload can be on.
pub(crate) trait Ledger: Driver {
    /// How to connect to a URL.
    fn options(url: &str) -> Result<Options<Self>, sqlx::Error>;

    /// Takes the key's lock until the transaction ends, and the next place of the key.
    fn next_place(connection: &mut Self::Connection, key: i64)
    -> impl Future<Output = Result<i64, sqlx::Error>> + Send;

    /// Writes the business row of an event.
    fn record(
        connection: &mut Self::Connection,
        event_id: &str,
        key: i64,
        place: i64,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Everything both sides hold.
    fn tables(pool: &Pool<Self>) -> impl Future<Output = Result<Tables, sqlx::Error>> + Send;

    /// A number that a query of ours gives.
    fn number(pool: &Pool<Self>, sql: String) -> impl Future<Output = Result<i64, sqlx::Error>> + Send;
}

/// A pool for an application.
pub(crate) async fn connect<D: Ledger>(url: &str, connections: u32) -> Result<Pool<D>, sqlx::Error> {
    PoolOptions::<D>::new()
        .max_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .connect_with(D::options(url)?)
        .await
}

/// Runs statements of ours.
pub(crate) async fn script<D: Ledger>(pool: &Pool<D>, sql: String) -> Result<(), sqlx::Error> {
    let mut connection = pool.acquire().await?;
    D::script(&mut connection, sql).await
}

/// Creates the workload's tables, with so many keys.
pub(crate) async fn create<D: Ledger>(pool: &Pool<D>, keys: i64) -> Result<(), sqlx::Error> {
    let rows: Vec<String> = (0..keys).map(|key| format!("({key}, 0)")).collect();
    script(
        pool,
        "create table faults_key (id bigint not null primary key, n bigint not null)".to_owned(),
    )
    .await?;
    script(
        pool,
        "create table faults_ledger (event_id varchar(36) not null primary key, k bigint not null, n bigint not null)"
            .to_owned(),
    )
    .await?;
    script(
        pool,
        format!("insert into faults_key (id, n) values {}", rows.join(", ")),
    )
    .await
}

/// How many events wait, or are being delivered.
pub(crate) async fn pending<D: Ledger>(pool: &Pool<D>) -> Result<i64, sqlx::Error> {
    D::number(
        pool,
        "select count(*) from outbox_event where status in (0, 2)".to_owned(),
    )
    .await
}

/// How many rows of one side have none on the other, in one snapshot. Zero at every moment, as long as nothing is purged.
pub(crate) async fn unbalanced<D: Ledger>(pool: &Pool<D>) -> Result<i64, sqlx::Error> {
    D::number(
        pool,
        "select (select count(*) from faults_ledger) - (select count(*) from outbox_event)".to_owned(),
    )
    .await
}

macro_rules! ledger {
    ($database:ty, $first:literal, $second:literal, $third:literal) => {
        async fn next_place(connection: &mut Self::Connection, key: i64) -> Result<i64, sqlx::Error> {
            sqlx::query(concat!("update faults_key set n = n + 1 where id = ", $first))
                .bind(key)
                .execute(&mut *connection)
                .await?;
            sqlx::query_scalar(concat!("select n from faults_key where id = ", $first))
                .bind(key)
                .fetch_one(connection)
                .await
        }

        async fn record(
            connection: &mut Self::Connection,
            event_id: &str,
            key: i64,
            place: i64,
        ) -> Result<(), sqlx::Error> {
            let sql = concat!(
                "insert into faults_ledger (event_id, k, n) values (",
                $first,
                ", ",
                $second,
                ", ",
                $third,
                ")"
            );
            let query = sqlx::query(sql).bind(event_id).bind(key).bind(place);
            query.execute(connection).await.map(drop)
        }

        async fn tables(pool: &Pool<Self>) -> Result<Tables, sqlx::Error> {
            let business = sqlx::query("select event_id from faults_ledger")
                .fetch_all(pool)
                .await?;
            let business: Result<HashSet<String>, _> = business.iter().map(|row| row.try_get(0)).collect();
            let rows = sqlx::query("select event_id, cast(status as char(1)) from outbox_event")
                .fetch_all(pool)
                .await?;
            let rows: Result<HashMap<String, Status>, sqlx::Error> = rows
                .iter()
                .map(|row| {
                    let status: String = row.try_get(1)?;
                    Ok((row.try_get(0)?, status_of(&status)))
                })
                .collect();
            let mut tables = Tables::default();
            tables.business = Some(business?);
            tables.rows = rows?;
            Ok(tables)
        }

        async fn number(pool: &Pool<Self>, sql: String) -> Result<i64, sqlx::Error> {
            sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(pool).await
        }
    };
}

fn status_of(number: &str) -> Status {
    match number {
        "0" => Status::New,
        "1" => Status::Done,
        "2" => Status::Retry,
        _ => Status::Dead,
    }
}

impl Ledger for Sqlite {
    fn options(url: &str) -> Result<Options<Self>, sqlx::Error> {
        let options: sqlx::sqlite::SqliteConnectOptions = url.parse()?;
        Ok(options
            .create_if_missing(true)
            .busy_timeout(BUSY_TIMEOUT)
            .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal))
    }

    ledger!(Sqlite, "?", "?", "?");
}

impl Ledger for Postgres {
    fn options(url: &str) -> Result<Options<Self>, sqlx::Error> {
        url.parse()
    }

    ledger!(Postgres, "$1", "$2", "$3");
}

impl Ledger for MySql {
    fn options(url: &str) -> Result<Options<Self>, sqlx::Error> {
        url.parse()
    }

    ledger!(MySql, "?", "?", "?");
}

/// Runs `$body` with `$database` as the type of a kind of database.
macro_rules! with_kind {
    ($kind:expr, $database:ident => $body:expr) => {
        match $kind {
            $crate::fault::Kind::Sqlite => {
                type $database = sqlx::Sqlite;
                $body
            }
            $crate::fault::Kind::Postgres => {
                type $database = sqlx::Postgres;
                $body
            }
            $crate::fault::Kind::MariaDb => {
                type $database = sqlx::MySql;
                $body
            }
        }
    };
}
pub(crate) use with_kind;
