//! The limit: what a competent engineer would write by hand, with the same driver, on the same tables. No fence, no retry,
//! no telemetry, no shutdown: just the statements, prepared once, in batches, on connections that are kept.
//!
//! Each database answers the same questions in a file of its own; the loops are written once on top of them.

mod mysql;
mod postgres;
mod sqlite;

pub(crate) mod drain;
pub(crate) mod purge;
pub(crate) mod write;

use std::future::Future;
use std::sync::Arc;

use outbox::store::Driver;
use sqlx::pool::PoolOptions;
use sqlx::{AssertSqlSafe, Connection, Pool, SqlSafeStr, SqlStr, Transaction};

use super::place::Tables;

/// What all events of a benchmark are called.
pub(crate) const EVENT_TYPE: &str = "BenchEvent";
/// What they happen to.
pub(crate) const AGGREGATE_TYPE: &str = "BenchOrder";

/// A whole event, as a listener is to have it: event_id, event_type, aggregate_type, aggregate_id, tenant_id, payload,
/// headers, when it happened, failed attempts; after its seq and when it was due. Instants in microseconds since 1970.
pub(crate) type Row = (
    i64,
    i64,
    String,
    String,
    String,
    Option<String>,
    Option<String>,
    String,
    Option<String>,
    i64,
    i64,
);

/// Statements for one set of tables, each with one text, so that the driver prepares it once per connection.
#[derive(Debug)]
pub(crate) struct Statements {
    /// How many seqs a list has.
    batch: usize,
    /// number, note.
    insert_order: SqlStr,
    /// event_id, aggregate_id, payload.
    insert_event: SqlStr,
    /// first number, last number, keys, payload, status.
    fill: SqlStr,
    /// due since when at the earliest, batch. Returns a [`Row`] each; where UPDATE cannot return rows, it only locks them.
    take: SqlStr,
    /// seqs: for where UPDATE cannot return rows.
    lease: SqlStr,
    /// after which seq, batch. Returns a [`Row`] each.
    read_after: SqlStr,
    /// seqs.
    mark_done: SqlStr,
    /// seqs.
    remove: SqlStr,
    /// from beyond which seq, up to which.
    remove_range: SqlStr,
    /// Counts what is pending beyond a seq, by the primary key alone: cheap, whatever dead rows the index of pending rows
    /// has to walk over.
    pending_beyond: SqlStr,
}

fn statement(sql: String) -> SqlStr {
    AssertSqlSafe(Arc::<str>::from(sql)).into_sql_str()
}

/// A load that is written in the database itself, not through memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill<'a> {
    pub(crate) first: i64,
    pub(crate) last: i64,
    /// How many different aggregates there are.
    pub(crate) keys: i64,
    pub(crate) payload: &'a str,
    /// Delivered a day ago, instead of pending.
    pub(crate) done: bool,
}

/// A database, as the hand-written loops use it.
pub(crate) trait BareDatabase: Driver {
    /// Only one connection writes at a time, and others that want to wait in sleeps: a loop that knows this uses one.
    const ONE_WRITER: bool;
    /// What a session of a draining loop is told first.
    const SESSION: &'static str;
    /// Opens a transaction that keeps the database from cleaning up, where that is a known trouble.
    const HOLD: Option<&'static str>;
    /// Whether the library wakes other processes by notifications.
    const NOTIFIES: bool;
    /// Asks for one number: how much the database has yet to clean up, which it does by itself and cannot be told to.
    const LEFT_TO_TIDY: Option<&'static str> = None;

    fn bare_statements(tables: &Tables, batch: usize) -> Statements;

    /// As safe as the benchmark says: a commit that has returned is on the disk.
    fn durable(options: <Self::Connection as Connection>::Options) -> <Self::Connection as Connection>::Options {
        options
    }

    /// Empties tables for good, as if they were new.
    fn empty(tables: &Tables) -> String {
        format!("truncate table {}; truncate table {}", tables.events, tables.orders)
    }

    /// What a database does by itself sooner or later, done now and not in the middle of a measurement. Each statement may
    /// be refused, for want of rights.
    fn tidy(tables: &Tables) -> Vec<String>;

    fn open_transaction(
        pool: &Pool<Self>,
    ) -> impl Future<Output = Result<Transaction<'static, Self>, sqlx::Error>> + Send;
    fn insert_order(
        connection: &mut Self::Connection,
        sql: &Statements,
        number: i64,
        note: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
    fn insert_event(
        connection: &mut Self::Connection,
        sql: &Statements,
        event_id: &str,
        aggregate_id: &str,
        payload: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
    fn fill(
        connection: &mut Self::Connection,
        sql: &Statements,
        fill: Fill<'_>,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
    /// Claims a batch: puts an owner and a lease on rows that nobody else has. Starts where the last one ended, or it would
    /// walk over the remains of all that was delivered, more and more of them.
    fn take(
        connection: &mut Self::Connection,
        sql: &Statements,
        from: i64,
        batch: i64,
    ) -> impl Future<Output = Result<Vec<Row>, sqlx::Error>> + Send;
    fn read_after(
        connection: &mut Self::Connection,
        sql: &Statements,
        after: i64,
        batch: i64,
    ) -> impl Future<Output = Result<Vec<Row>, sqlx::Error>> + Send;
    fn mark_done(
        connection: &mut Self::Connection,
        sql: &Statements,
        seqs: &[i64],
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
    fn remove(
        connection: &mut Self::Connection,
        sql: &Statements,
        seqs: &[i64],
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
    /// Removes finished rows of a range of seq. Returns how many.
    fn remove_range(
        connection: &mut Self::Connection,
        sql: &Statements,
        after: i64,
        up_to: i64,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;
    fn pending_beyond(
        pool: &Pool<Self>,
        sql: &Statements,
        seq: i64,
    ) -> impl Future<Output = Result<i64, sqlx::Error>> + Send;
    /// The only value of a query that has no parameters.
    fn number(pool: &Pool<Self>, sql: String) -> impl Future<Output = Result<i64, sqlx::Error>> + Send;
}

/// What all databases do alike, but for how a list of numbers is bound.
macro_rules! bare_statements_run_alike {
    (begin: $begin:literal, seqs: |$query:ident, $seqs:ident, $sql:ident| $bound:expr) => {
        async fn open_transaction(pool: &sqlx::Pool<Self>) -> Result<sqlx::Transaction<'static, Self>, sqlx::Error> {
            pool.begin_with($begin).await
        }

        async fn insert_order(
            connection: &mut Self::Connection,
            sql: &Statements,
            number: i64,
            note: &str,
        ) -> Result<(), sqlx::Error> {
            let query = sqlx::query::<Self>(sql.insert_order.clone())
                .bind(number)
                .bind(note);
            query.execute(connection).await.map(drop)
        }

        async fn insert_event(
            connection: &mut Self::Connection,
            sql: &Statements,
            event_id: &str,
            aggregate_id: &str,
            payload: &str,
        ) -> Result<(), sqlx::Error> {
            let query = sqlx::query::<Self>(sql.insert_event.clone());
            let query = query.bind(event_id).bind(aggregate_id).bind(payload);
            query.execute(connection).await.map(drop)
        }

        async fn fill(connection: &mut Self::Connection, sql: &Statements, fill: Fill<'_>) -> Result<(), sqlx::Error> {
            let query = sqlx::query::<Self>(sql.fill.clone())
                .bind(fill.first)
                .bind(fill.last)
                .bind(fill.keys)
                .bind(fill.payload)
                .bind(i64::from(fill.done));
            query.execute(connection).await.map(drop)
        }

        async fn take(
            connection: &mut Self::Connection,
            sql: &Statements,
            from: i64,
            batch: i64,
        ) -> Result<Vec<Row>, sqlx::Error> {
            take(connection, sql, from, batch).await
        }

        async fn read_after(
            connection: &mut Self::Connection,
            sql: &Statements,
            after: i64,
            batch: i64,
        ) -> Result<Vec<Row>, sqlx::Error> {
            let query = sqlx::query_as::<Self, Row>(sql.read_after.clone());
            query.bind(after).bind(batch).fetch_all(connection).await
        }

        async fn mark_done(
            connection: &mut Self::Connection,
            $sql: &Statements,
            $seqs: &[i64],
        ) -> Result<(), sqlx::Error> {
            let $query = sqlx::query::<Self>($sql.mark_done.clone());
            $bound.execute(connection).await.map(drop)
        }

        async fn remove(
            connection: &mut Self::Connection,
            $sql: &Statements,
            $seqs: &[i64],
        ) -> Result<(), sqlx::Error> {
            let $query = sqlx::query::<Self>($sql.remove.clone());
            $bound.execute(connection).await.map(drop)
        }

        async fn remove_range(
            connection: &mut Self::Connection,
            sql: &Statements,
            after: i64,
            up_to: i64,
        ) -> Result<u64, sqlx::Error> {
            let query = sqlx::query::<Self>(sql.remove_range.clone())
                .bind(after)
                .bind(up_to);
            Ok(query.execute(connection).await?.rows_affected())
        }

        async fn pending_beyond(pool: &sqlx::Pool<Self>, sql: &Statements, seq: i64) -> Result<i64, sqlx::Error> {
            let query = sqlx::query_scalar::<Self, i64>(sql.pending_beyond.clone());
            query.bind(seq).fetch_one(pool).await
        }

        async fn number(pool: &sqlx::Pool<Self>, sql: String) -> Result<i64, sqlx::Error> {
            sqlx::query_scalar::<Self, i64>(sqlx::AssertSqlSafe(sql))
                .fetch_one(pool)
                .await
        }
    };
}
use bare_statements_run_alike;

/// A pool to the same database, for the framework and for the limit alike.
pub(crate) fn pool<D: BareDatabase>(like: &Pool<D>, connections: u32) -> Pool<D> {
    PoolOptions::new()
        .max_connections(connections)
        // Both sides would pay for it, and look more alike than they are.
        .test_before_acquire(false)
        .connect_lazy_with(D::durable((*like.connect_options()).clone()))
}
