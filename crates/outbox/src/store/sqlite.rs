//! SQLite. One connection of our own writes all our statements, each short and each at once a writer, so that it waits
//! for its turn instead of failing; another one reads. A batch travels as one JSON value, so that every statement has one text.

mod explain;

use std::collections::HashSet;
use std::time::Duration;

use sqlx::pool::PoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqliteRow};
use sqlx::{AssertSqlSafe, QueryBuilder, Row, SqlSafeStr, SqlStr, Sqlite, Transaction};

use super::batch::{Batch, changes_json, leases_object, one_token, seqs_json};
use super::driver::{Dialect, Driver, Held, Serialized};
use super::row::{NUMBERS, bind_event, bind_leased, bind_row, columns, micros, read_claimed};
use super::statement::{Statement, query, read_rows};
use super::{Claim, Claimed, Explain, Inserted, Lease, NewRow, quote};
use crate::error::Error;
use crate::migrate::Migration;
use crate::table::TableName;
use crate::write::commit_failed;

/// The clock of SQLite ticks in milliseconds. Not `unixepoch('now', 'subsec')`, which the SQLite of many systems lacks.
const NOW: &str = "(cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000)";

impl Dialect for Sqlite {
    const DATABASE: &'static str = "sqlite";
    const QUOTE: char = '"';
    const NOW: &'static str = NOW;
    const PENDING: &'static str = "status in (0, 2)";
    const DUE: &'static str = "available_at";
    const INSTANT: &'static str = "integer";
    const PENDING_IN_ORDER: &'static str = "t.status in (0, 2)";
    const EMPTY_IS_QUICKLY_SEEN: bool = true;
    const FAILS_WHOLE: bool = false;
    // Its processes cannot wake one another: the one that has the lanes delivers, the others are there for when it dies.
    const LANE_HOLDERS: usize = 1;
    // Whoever writes is the only one.
    const HOLD: &'static str = "";
    const LOCK_IF_FREE: &'static str = "";
    const REPLACE_BLOCK: &'static str = "on conflict (aggregate_type, aggregate_id) do update \
         set seq = excluded.seq, blocked_at = excluded.blocked_at, blocked_until = excluded.blocked_until";

    fn placeholder(n: usize) -> String {
        format!("?{n}")
    }

    fn micros(instant: &str) -> String {
        instant.to_owned()
    }

    fn shift(instant: &str, micros: &str) -> String {
        format!("({instant} + {micros})")
    }

    fn at(micros: &str) -> String {
        micros.to_owned()
    }

    fn in_order_of_writing(table: &TableName) -> String {
        let index = quote::<Self>(&format!("{table}_pending_seq"));
        format!("{} as t indexed by {index}", quote::<Self>(table.as_str()))
    }

    fn integer(column: &str) -> String {
        column.to_owned()
    }

    /// Not a value alone: whenever one is bound, the statement would be planned anew.
    fn limit(rows: String) -> String {
        format!("{rows} + 0")
    }

    /// As one text: every value of a row is copied from thread to thread by itself, and a number costs as much as a text.
    fn numbers_together(numbers: [String; NUMBERS]) -> String {
        format!("printf('%d %d %d %d %d %d %s', {})", numbers.join(", "))
    }

    const NUMBER_COLUMNS: usize = 1;
}

/// The statements of the hot path.
#[derive(Debug)]
pub struct Sql {
    insert_free: SqlStr,
    insert_leased: SqlStr,
    /// Up to the rows.
    insert_many: String,
    claim: SqlStr,
    take: SqlStr,
    read_leased: SqlStr,
    done: Delivered,
    delete: Delivered,
    attempts: SqlStr,
    retry: SqlStr,
    dead: SqlStr,
    defer: SqlStr,
    renew: SqlStr,
    release: SqlStr,
}

/// What is written about rows that are delivered. Rows that came from one hand have one token, and are found without a join:
/// that takes a sixth off the time of an update.
#[derive(Debug)]
struct Delivered {
    one_token: SqlStr,
    tokens: SqlStr,
}

/// One row that may say anything.
fn values() -> String {
    format!("(?, ?, ?, ?, ?, ?, ?, ?, ?, coalesce(?, {NOW} + ?), ?, {NOW} + ?, ?)")
}

fn statement(sql: String) -> SqlStr {
    AssertSqlSafe(std::sync::Arc::<str>::from(sql)).into_sql_str()
}

impl Driver for Sqlite {
    const MIGRATIONS: &'static [Migration] = &[Migration::new(
        1,
        "the tables",
        include_str!("../migrate/sqlite_1_up.sql"),
        include_str!("../migrate/sqlite_1_down.sql"),
    )];

    type Sql = Sql;

    fn statements(table: &TableName) -> Sql {
        let pending = quote::<Self>(&format!("{table}_pending"));
        let attempt = quote::<Self>(&table.attempt());
        let node = quote::<Self>(&table.node());
        let table = quote::<Self>(table.as_str());
        // Nobody, or still a member.
        let member = format!("(?2 is null or exists (select 1 from {node} where name = ?2))");
        let event = "event_id, event_type, aggregate_type, aggregate_id, tenant_id, payload, payload_bytes, headers, \
                     occurred_at";
        let batch = |columns: &str| {
            format!("(select value ->> 0 as seq, value ->> 1 as token{columns} from json_each(?1)) as s")
        };
        // Of an object, whose names and values are numbers: no array has to be made of each and taken apart again.
        let leases = "(select cast(key as integer) as seq, value as token from json_each(?1)) as s";
        // A lease of which the row still has the token: the batch is read first, its rows found by the primary key, which
        // "not indexed" leaves as the only way.
        let t = format!("{table} as t not indexed");
        let held = "t.seq = s.seq and t.token = s.token and t.status in (0, 2)";
        let held_by_one_token = "t.seq in (select value from json_each(?1)) and t.token = ?3 and t.status in (0, 2)";
        let due_and_free = format!(
            "where status in (0, 2) and (available_at, seq) > (?1, ?4) and available_at <= {NOW} and created_at <= {NOW} - ?2
                   and (lease_until is null or lease_until <= {NOW})"
        );
        let free = "locked_by = null, lease_until = null";
        let failure = ", value ->> 2 as after, value ->> 3 as error, value ->> 4 as done_by";
        Sql {
            insert_free: statement(format!(
                "insert into {table} ({event}) values (?, ?, ?, ?, ?, ?, ?, ?, ?)"
            )),
            insert_leased: statement(format!(
                "insert into {table} ({event}, locked_by, lease_until, token)
                 values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {NOW} + ?, ?) returning seq"
            )),
            insert_many: format!("insert into {table} ({event}, available_at, locked_by, lease_until, token) values "),
            // By the index of pending rows, in its order.
            claim: statement(format!(
                "select json_group_array(json_array(seq, token, recovered)) from (
                   select seq, token, lease_until is not null as recovered from {table} indexed by {pending}
                   {due_and_free}
                   order by available_at, seq
                   limit {}
                 )",
                Self::limit("?3".to_owned())
            )),
            take: statement(format!(
                "update {t} set locked_by = ?2, lease_until = {NOW} + ?3, token = t.token + 1 from {leases}
                 where {held} and (t.lease_until is null or t.lease_until <= {NOW})
                 returning seq, token"
            )),
            read_leased: statement(format!(
                "select {} from {leases} cross join {t} on {held} where t.lease_until >= {NOW} + ?2",
                columns::<Self>("t.")
            )),
            done: {
                let done = format!("update {t} set status = 1, done_at = {NOW}, {free}");
                Delivered {
                    one_token: statement(format!("{done} where {held_by_one_token} and {member}")),
                    tokens: statement(format!("{done} from {leases} where {held} and {member}")),
                }
            },
            delete: Delivered {
                one_token: statement(format!("delete from {t} where {held_by_one_token} and {member}")),
                tokens: statement(format!(
                    "delete from {table} where seq in (select t.seq from {leases} cross join {t} on {held}) and {member}"
                )),
            },
            attempts: statement(format!(
                "insert into {attempt} (seq, attempt, node, error)
                 select t.seq, t.attempts + 1, ?2, s.error from {} cross join {t} on {held}",
                batch(failure)
            )),
            retry: statement(format!(
                "update {t}
                 set status = 2, attempts = attempts + 1, token = t.token + 1, last_error = s.error,
                     done_by = s.done_by, available_at = {NOW} + s.after, {free}
                 from {} where {held}",
                batch(failure)
            )),
            dead: statement(format!(
                "update {t}
                 set status = 3, attempts = attempts + 1, token = t.token + 1, last_error = s.error,
                     done_by = s.done_by, dead_at = {NOW}, {free}
                 from {} where {held}",
                batch(failure)
            )),
            defer: statement(format!(
                "update {t} set token = t.token + 1, done_by = s.done_by, available_at = {NOW} + s.after, {free}
                 from {} where {held}",
                batch(failure)
            )),
            renew: statement(format!(
                "update {t} set lease_until = {NOW} + ?2 from {leases} where {held} and t.lease_until is not null
                 returning seq, token"
            )),
            release: statement(format!(
                "update {t} set token = t.token + 1, {free} from {leases} where {held} and t.lease_until is not null"
            )),
        }
    }

    /// A writer from the start: one that reads first could be refused later, when somebody else has written meanwhile.
    async fn begin(pool: &SqlitePool, _sql: &Sql) -> Result<Transaction<'static, Self>, sqlx::Error> {
        super::stranded::begin(pool, "begin immediate").await
    }

    /// COMMIT of a transaction that an error has ended is itself an error, and a failed one is rolled back.
    async fn commit_checked(tx: Transaction<'static, Self>, _written: &[(TableName, i64)]) -> Result<(), Error> {
        tx.commit().await.map_err(commit_failed)
    }

    fn is_missing_table(error: &sqlx::Error) -> bool {
        error
            .as_database_error()
            .is_some_and(|error| error.message().starts_with("no such table"))
    }

    fn own_options(
        options: PoolOptions<Self>,
        connect: SqliteConnectOptions,
    ) -> (PoolOptions<Self>, SqliteConnectOptions) {
        let connect = connect
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(10))
            // Rows go from thread to thread: not with a wait for each few of them.
            .row_buffer_size(1_000);
        (super::stranded::keep_none(options.max_connections(1)), connect)
    }

    /// Readers and the writer do not wait for each other. But in a database in memory, which the driver names so, they would lock
    /// each other's tables.
    fn reading(own: &SqlitePool) -> SqlitePool {
        let connect = own.connect_options();
        let file = connect.get_filename().to_string_lossy().into_owned();
        if file.starts_with("file:sqlx-in-memory") || file.contains("mode=memory") {
            return own.clone();
        }
        own.options().clone().connect_lazy_with((*connect).clone())
    }

    // The types are those of our own statements: not compared again for every value.

    fn int(row: &SqliteRow, column: usize) -> Result<Option<i64>, sqlx::Error> {
        row.try_get_unchecked(column)
    }

    fn text(row: &SqliteRow, column: usize) -> Result<Option<String>, sqlx::Error> {
        row.try_get_unchecked(column)
    }

    fn bytes(row: &SqliteRow, column: usize) -> Result<Option<Vec<u8>>, sqlx::Error> {
        row.try_get_unchecked(column)
    }

    fn numbers(row: &SqliteRow) -> Result<[Option<i64>; NUMBERS], sqlx::Error> {
        let text: &str = row.try_get_unchecked(0)?;
        let mut numbers = text.split(' ').map(|number| number.parse().ok());
        Ok(std::array::from_fn(|_| numbers.next().flatten()))
    }

    async fn execute(connection: &mut SqliteConnection, statement: Statement<Self>) -> Result<u64, sqlx::Error> {
        let query = query!(statement);
        Ok(query.execute(connection).await?.rows_affected())
    }

    async fn fetch(
        connection: &mut SqliteConnection,
        statement: Statement<Self>,
    ) -> Result<Vec<SqliteRow>, sqlx::Error> {
        let query = query!(statement);
        query.fetch_all(connection).await
    }

    async fn read<T: Send + Unpin>(
        connection: &mut SqliteConnection,
        statement: Statement<Self>,
        read: impl FnMut(&SqliteRow) -> Result<T, sqlx::Error> + Send,
    ) -> Result<Vec<T>, sqlx::Error> {
        read_rows(connection, query!(statement), read).await
    }

    async fn script(connection: &mut SqliteConnection, script: String) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(script)).execute(connection).await?;
        Ok(())
    }

    async fn serialized(pool: &SqlitePool, _table: &TableName) -> Result<Serialized<Self>, sqlx::Error> {
        Ok(Serialized {
            held: Held::Transaction(pool.begin_with("begin immediate").await?),
        })
    }

    async fn insert(
        connection: &mut SqliteConnection,
        sql: &Sql,
        rows: &[NewRow<'_>],
    ) -> Result<Inserted, sqlx::Error> {
        if let [row] = rows
            && row.is_due_now()
        {
            if row.born.is_none() {
                let insert = bind_event!(sqlx::query(sql.insert_free.clone()), row);
                insert.execute(connection).await?;
                return Ok(Inserted::inside(Vec::new()));
            }
            let insert = bind_leased!(sqlx::query_scalar(sql.insert_leased.clone()), row);
            return Ok(Inserted::inside(vec![insert.fetch_one(connection).await?]));
        }
        let values = values();
        let mut query = QueryBuilder::<Self>::new(&sql.insert_many);
        for (place, _) in rows.iter().enumerate() {
            query.push(if place == 0 { "" } else { ", " }).push(&values);
        }
        query.push(" returning event_id, seq");
        let mut query = sqlx::query_as::<_, (String, i64)>(AssertSqlSafe(query.into_string())).persistent(false);
        for row in rows {
            query = bind_row!(query, row);
        }
        // RETURNING promises no order: go by the id.
        let seqs: std::collections::HashMap<_, _> = query.fetch_all(connection).await?.into_iter().collect();
        let seqs = rows.iter().map(|row| {
            seqs.get(row.event.id().as_str())
                .copied()
                .ok_or(sqlx::Error::RowNotFound)
        });
        seqs.collect::<Result<_, _>>().map(Inserted::inside)
    }

    async fn claim(
        pool: &SqlitePool,
        reading: &SqlitePool,
        sql: &Sql,
        claim: &Claim<'_>,
    ) -> Result<Vec<Claimed>, sqlx::Error> {
        let (due_at, seq) = claim.after.unwrap_or((i64::MIN, 0));
        // Found without a lock, and taken by their tokens: who is second finds other tokens, and looks again. What they hold
        // is read after that, so that it is not read in vain.
        let (found, taken) = loop {
            let found: String = sqlx::query_scalar(sql.claim.clone())
                .bind(due_at)
                .bind(micros(claim.skip_recent))
                .bind(claim.limit as i64)
                .bind(seq)
                .fetch_one(reading)
                .await?;
            let found: Vec<(i64, i64, u8)> =
                serde_json::from_str(&found).map_err(|error| sqlx::Error::Decode(error.into()))?;
            if found.is_empty() {
                return Ok(Vec::new());
            }
            let free: Vec<Lease> = found.iter().map(|&(seq, token, _)| Lease { seq, token }).collect();
            let taken = sqlx::query_as(sql.take.clone())
                .bind(leases_object(&free))
                .bind(claim.owner)
                .bind(micros(claim.lease));
            let taken = read_leases(taken.fetch_all(pool).await?);
            if !taken.is_empty() {
                break (found, taken);
            }
        };
        let mut claimed = match read_held(reading, sql, &taken, WHATEVER_IS_LEFT).await {
            Ok(claimed) => claimed,
            Err(error) => {
                if let Err(error) = Self::release(pool, sql, &taken).await {
                    tracing::warn!(%error, "claimed events could not be released; they wait for the end of their lease");
                }
                return Err(error);
            }
        };
        let recovered: HashSet<i64> = found.iter().filter(|row| row.2 == 1).map(|row| row.0).collect();
        for row in &mut claimed {
            row.recovered = recovered.contains(&row.lease.seq);
        }
        Ok(claimed)
    }

    async fn read_leased(
        pool: &SqlitePool,
        sql: &Sql,
        leases: &[Lease],
        at_least: Duration,
    ) -> Result<Vec<Claimed>, sqlx::Error> {
        read_held(pool, sql, leases, micros(at_least)).await
    }

    fn is_one_statement(batch: &Batch, member: Option<&str>) -> bool {
        match member {
            None => batch.is_one_statement(false),
            Some(_) => batch.is_done_only(),
        }
    }

    async fn write(
        connection: &mut SqliteConnection,
        sql: &Sql,
        owner: &str,
        batch: &Batch,
        member: Option<&str>,
    ) -> Result<u64, sqlx::Error> {
        let mut applied = 0;
        for (leases, statement) in [(&batch.done, &sql.done), (&batch.deleted, &sql.delete)] {
            if leases.is_empty() {
                continue;
            }
            let query = match one_token(leases) {
                Some(token) => {
                    let query = sqlx::query(statement.one_token.clone()).bind(seqs_json(leases));
                    query.bind(member).bind(token)
                }
                None => {
                    let query = sqlx::query(statement.tokens.clone()).bind(leases_object(leases));
                    query.bind(member)
                }
            };
            applied += query.execute(&mut *connection).await?.rows_affected();
        }
        for (failed, update) in [(&batch.retry, &sql.retry), (&batch.dead, &sql.dead)] {
            if !failed.is_empty() {
                let rows = changes_json(failed);
                let attempts = sqlx::query(sql.attempts.clone()).bind(&rows).bind(owner);
                attempts.execute(&mut *connection).await?;
                applied += sqlx::query(update.clone())
                    .bind(&rows)
                    .execute(&mut *connection)
                    .await?
                    .rows_affected();
            }
        }
        if !batch.defer.is_empty() {
            let query = sqlx::query(sql.defer.clone()).bind(changes_json(&batch.defer));
            applied += query.execute(&mut *connection).await?.rows_affected();
        }
        Ok(applied)
    }

    async fn renew(pool: &SqlitePool, sql: &Sql, leases: &[Lease], lease: Duration) -> Result<Vec<Lease>, sqlx::Error> {
        let renewed = sqlx::query_as(sql.renew.clone())
            .bind(leases_object(leases))
            .bind(micros(lease));
        Ok(read_leases(renewed.fetch_all(pool).await?))
    }

    async fn release(pool: &SqlitePool, sql: &Sql, leases: &[Lease]) -> Result<u64, sqlx::Error> {
        Ok(sqlx::query(sql.release.clone())
            .bind(leases_object(leases))
            .execute(pool)
            .await?
            .rows_affected())
    }

    async fn explain_read(pool: &SqlitePool, statement: Statement<Self>) -> Result<String, sqlx::Error> {
        explain::read(pool, statement).await
    }

    async fn explain(pool: &SqlitePool, sql: &Sql, statement: Explain) -> Result<String, sqlx::Error> {
        explain::statement(pool, sql, statement).await
    }
}

/// A claim returns what it has taken, also if the lease was so short, or the process so slow, that it has ended meanwhile.
const WHATEVER_IS_LEFT: i64 = i64::MIN / 2;

async fn read_held(pool: &SqlitePool, sql: &Sql, leases: &[Lease], at_least: i64) -> Result<Vec<Claimed>, sqlx::Error> {
    let rows = sqlx::query(sql.read_leased.clone())
        .bind(leases_object(leases))
        .bind(at_least)
        .fetch_all(pool)
        .await?;
    rows.iter().map(read_claimed::<Sqlite>).collect()
}

fn read_leases(rows: Vec<(i64, i64)>) -> Vec<Lease> {
    rows.into_iter().map(|(seq, token)| Lease { seq, token }).collect()
}
