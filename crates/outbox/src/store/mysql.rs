//! MySQL and MariaDB. A batch travels as one JSON value, so that every statement has one text; rows are written by their
//! primary key, under READ COMMITTED, so that nothing but those rows is locked.

mod explain;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::TryStreamExt;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlDatabaseError, MySqlPool, MySqlRow};
use sqlx::pool::PoolOptions;
use sqlx::{AssertSqlSafe, Either, Executor, MySql, Row, SqlSafeStr, SqlStr, Transaction};

use super::batch::{Batch, Change, changes_json, leases_json, one_token};
use super::driver::{Dialect, Driver, Held, Serialized};
use super::row::{bind_event, bind_leased, bind_row, column_count, columns, micros, read_claimed};
use super::statement::{Statement, filled_up, query, read_rows};
use super::{Claim, Claimed, Explain, Inserted, Lease, NewRow, quote};
use crate::error::Error;
use crate::migrate::Migration;
use crate::table::TableName;
use crate::write::{CHUNK_ROWS, commit_failed};

impl Dialect for MySql {
    const DATABASE: &'static str = "mysql";
    const QUOTE: char = '`';
    const NOW: &'static str = "utc_timestamp(6)";
    const PENDING: &'static str = "pending_at is not null";
    const DUE: &'static str = "pending_at";
    const INSTANT: &'static str = "datetime(6)";
    const PENDING_IN_ORDER: &'static str = "t.pending = 1";
    const EMPTY_IS_QUICKLY_SEEN: bool = false;
    const FAILS_WHOLE: bool = false;
    const LANE_HOLDERS: usize = usize::MAX;
    const HOLD: &'static str = " lock in share mode";
    const LOCK_IF_FREE: &'static str = " for update skip locked";
    const REPLACE_BLOCK: &'static str = "on duplicate key update \
         seq = values(seq), blocked_at = values(blocked_at), blocked_until = values(blocked_until)";

    fn placeholder(_n: usize) -> String {
        "?".to_owned()
    }

    fn micros(instant: &str) -> String {
        format!("timestampdiff(microsecond, '1970-01-01', {instant})")
    }

    fn shift(instant: &str, micros: &str) -> String {
        format!("({instant} + interval {micros} microsecond)")
    }

    fn at(micros: &str) -> String {
        format!("('1970-01-01' + interval {micros} microsecond)")
    }

    fn in_order_of_writing(table: &TableName) -> String {
        let index = quote::<Self>(&format!("{table}_pending_seq"));
        format!("{} as t force index ({index})", quote::<Self>(table.as_str()))
    }

    fn integer(column: &str) -> String {
        column.to_owned()
    }
}

/// The statements of the hot path.
#[derive(Debug)]
pub struct Sql {
    /// Up to the rows.
    insert_many: String,
    /// Tells whether it was inside of a transaction, where the server can.
    insert_one: SqlStr,
    /// These are refused unless they are, where the server can tell: cheaper than an answer.
    insert_free: SqlStr,
    insert_leased: SqlStr,
    /// The server has told.
    can_tell: AtomicBool,
    anything: SqlStr,
    claim: SqlStr,
    take: SqlStr,
    read_leased: SqlStr,
    lock: SqlStr,
    done: Delivered,
    delete: Delivered,
    retry: SqlStr,
    dead: SqlStr,
    attempts: SqlStr,
    defer: SqlStr,
    renew: SqlStr,
    held: SqlStr,
    release: SqlStr,
}

/// What is written about rows that are delivered. Rows that came from one hand have one token, and are found by a list: no
/// table has to be made of JSON first, which is a sixth of the time.
#[derive(Debug)]
struct Delivered {
    /// Up to the condition.
    head: String,
    /// After it: whose delivery it was.
    member: String,
    tokens: SqlStr,
}

/// A longer list is not one for MariaDB: it makes a table of it.
const LONGEST_LIST: usize = 512;

impl Delivered {
    /// For a list of so many.
    fn one_token(&self, seqs: usize) -> SqlStr {
        let list = vec!["?"; seqs].join(", ");
        let Self { head, member, .. } = self;
        statement(format!(
            "{head} where seq in ({list}) and token = ? and status in (0, 2) and {member}"
        ))
    }
}

/// Seqs as a list. `None`: it would be too long.
fn list(leases: &[Lease]) -> Option<Vec<i64>> {
    (leases.len() <= LONGEST_LIST).then(|| filled_up(leases).map(|lease| lease.seq).collect())
}

/// The year one, in microseconds since 1970: before anything that a column can hold.
const FIRST_INSTANT: i64 = -62_135_596_800_000_000;

/// The columns of an event.
const EVENT: &str =
    "event_id, event_type, aggregate_type, aggregate_id, tenant_id, payload, payload_bytes, headers, occurred_at";

/// Their values. A literal of its own type: of a text, the server would make an instant and of the sum a text, for each row.
macro_rules! event {
    () => {
        "?, ?, ?, ?, ?, ?, ?, ?, timestamp '1970-01-01 00:00:00.000000' + interval ? microsecond"
    };
}

/// One row that may say anything.
const VALUES: &str = concat!(
    "(",
    event!(),
    ", coalesce('1970-01-01' + interval ? microsecond, utc_timestamp(6) + interval ? microsecond), ?, \
     utc_timestamp(6) + interval ? microsecond, ?)"
);

/// Whether an insert of so many rows stays prepared: a small one, or a full one, since there must not be too many texts.
///
/// A statement that does not stay is closed, which is a message without an answer; and since the driver leaves it to the network
/// to gather messages, the next one would wait for that one's acknowledgement, which is 40 ms.
fn is_kept(rows: usize) -> bool {
    rows <= 32 || rows == CHUNK_ROWS
}

/// For MariaDB, which refuses a row without a token.
const FREE_INSIDE: &str = concat!("(", event!(), ", if(@@in_transaction and @@autocommit, 0, null))");
const LEASED_INSIDE: &str = concat!(
    "(",
    event!(),
    ", ?, utc_timestamp(6) + interval ? microsecond, if(@@in_transaction and @@autocommit, ?, null))"
);

/// A column that is never null was to be.
const NULL: u16 = 1048;
const NO_SUCH_VARIABLE: u16 = 1193;

/// There is no such savepoint: what MySQL says of a transaction that was lost, and MariaDB is made to say.
const LOST: u16 = 1305;

/// What MariaDB can add to an insert: whether it was inside of a transaction. A session without autocommit always is, in one
/// or another. For MySQL this is a comment.
const TELLS: &str = " /*M!100500 returning seq, @@in_transaction and @@autocommit */";

fn statement(sql: String) -> SqlStr {
    AssertSqlSafe(std::sync::Arc::<str>::from(sql)).into_sql_str()
}

impl Driver for MySql {
    const MIGRATIONS: &'static [Migration] = &[Migration::new(
        1,
        "the tables",
        include_str!("../migrate/mysql_1_up.sql"),
        include_str!("../migrate/mysql_1_down.sql"),
    )];

    type Sql = Sql;

    fn statements(table: &TableName) -> Sql {
        let pending = quote::<Self>(&format!("{table}_pending"));
        let attempt = quote::<Self>(&table.attempt());
        let node = quote::<Self>(&table.node());
        let table = quote::<Self>(table.as_str());
        let columns = columns::<Self>("t.");
        let insert_many = format!("insert into {table} ({EVENT}, available_at, locked_by, lease_until, token) values ");
        let batch = |columns: &str| {
            format!("json_table(?, '$[*]' columns (seq bigint path '$[0]', token bigint path '$[1]'{columns})) as s")
        };
        let leases = batch("");
        // A lease of which the row still has the token. The batch is read first, its rows found by the primary key.
        let held = format!("straight_join {table} as t on t.seq = s.seq and t.token = s.token and t.status in (0, 2)");
        // A list of seqs, whatever the statistics make of it.
        let by_seq = format!("{table} as t force index (primary)");
        // Nobody, or still a member, and kept one until all is written: see `store/lane.rs`.
        let member = format!("(? is null or exists (select 1 from {node} where name = ? lock in share mode))");
        let due_and_free = "where t.pending_at >= '1970-01-01' + interval ? microsecond
                   and (t.pending_at > '1970-01-01' + interval ? microsecond or t.seq > ?)
                   and t.pending_at <= utc_timestamp(6)
                   and t.created_at <= utc_timestamp(6) - interval ? microsecond
                   and (t.lease_until is null or t.lease_until <= utc_timestamp(6))";
        let free = "t.locked_by = null, t.lease_until = null";
        let due = "t.available_at = utc_timestamp(6) + interval s.after_us microsecond";
        let after = ", after_us bigint path '$[2]'";
        let error = "error longtext path '$[3]'";
        let done_by = "done_by text path '$[4]'";
        Sql {
            insert_one: statement(format!("{insert_many}{VALUES}{TELLS}")),
            insert_free: statement(format!("insert into {table} ({EVENT}, token) values {FREE_INSIDE}")),
            insert_leased: statement(format!(
                "insert into {table} ({EVENT}, locked_by, lease_until, token) values {LEASED_INSIDE}"
            )),
            can_tell: AtomicBool::new(false),
            insert_many,
            anything: statement(format!(
                "select 1 from {table} as t force index ({pending}) {due_and_free} limit 1"
            )),
            // By the index of pending rows, in its order: any other plan would lock every candidate.
            claim: statement(format!(
                "select {columns}, t.lease_until is not null as recovered from {table} as t force index ({pending})
                 {due_and_free}
                 order by t.pending_at, t.seq
                 limit ?
                 for update skip locked"
            )),
            take: statement(format!(
                "update {leases} {held}
                 set t.locked_by = ?, t.lease_until = utc_timestamp(6) + interval ? microsecond, t.token = t.token + 1"
            )),
            read_leased: statement(format!(
                "select {columns} from {leases} {held}
                 where t.lease_until >= utc_timestamp(6) + interval ? microsecond"
            )),
            lock: statement(format!(
                "select t.seq, t.token, t.attempts from {leases} {held} for update"
            )),
            done: {
                let set = format!("set t.status = 1, t.done_at = utc_timestamp(6), {free}");
                Delivered {
                    head: format!("update {by_seq} {set}"),
                    tokens: statement(format!("update {leases} {held} {set} where {member}")),
                    member: member.clone(),
                }
            },
            delete: Delivered {
                head: format!("delete t from {by_seq}"),
                tokens: statement(format!("delete t from {leases} {held} where {member}")),
                member,
            },
            retry: statement(format!(
                "update {} {held}
                 set t.status = 2, t.attempts = t.attempts + 1, t.token = t.token + 1, t.last_error = s.error,
                     t.done_by = s.done_by, {due}, {free}",
                batch(&format!("{after}, {error}, {done_by}"))
            )),
            dead: statement(format!(
                "update {} {held}
                 set t.status = 3, t.attempts = t.attempts + 1, t.token = t.token + 1, t.last_error = s.error,
                     t.done_by = s.done_by, t.dead_at = utc_timestamp(6), {free}",
                batch(&format!("{after}, {error}, {done_by}"))
            )),
            attempts: statement(format!(
                "insert into {attempt} (seq, attempt, node, error)
                 select s.seq, s.attempt, ?, s.error
                 from json_table(?, '$[*]' columns (seq bigint path '$[0]', attempt int path '$[1]', {error})) as s"
            )),
            defer: statement(format!(
                "update {} {held} set t.token = t.token + 1, t.done_by = s.done_by, {due}, {free}",
                batch(&format!("{after}, {done_by}"))
            )),
            renew: statement(format!(
                "update {leases} {held} and t.lease_until is not null
                 set t.lease_until = utc_timestamp(6) + interval ? microsecond"
            )),
            held: statement(format!(
                "select t.seq, t.token from {leases} {held} and t.lease_until is not null"
            )),
            release: statement(format!(
                "update {leases} {held} and t.lease_until is not null set t.token = t.token + 1, {free}"
            )),
        }
    }

    /// MySQL gets a savepoint, which is gone if the server has ended the transaction by itself. For MariaDB that is a comment: it
    /// can be asked, and is not sent one once it has told. See [`commit_checked`](Self::commit_checked).
    async fn begin(pool: &MySqlPool, sql: &Sql) -> Result<Transaction<'static, Self>, sqlx::Error> {
        if sql.can_tell.load(Ordering::Relaxed) {
            // Not BEGIN, which begins a block where sql_mode is ORACLE.
            return pool.begin_with("start transaction").await;
        }
        pool.begin_with("start transaction; /*!50701 savepoint outbox_begin */")
            .await
    }

    /// A deadlock rolls the whole transaction back, and a COMMIT after it succeeds all the same; what is run in between, runs
    /// without a transaction. So it is asked before, in the same message: MySQL for the savepoint, MariaDB whether there is a
    /// transaction, and whether what was written in it is there. What the driver rolls back when it drops its transaction is
    /// nothing.
    async fn commit_checked(mut tx: Transaction<'static, Self>, written: &[(TableName, i64)]) -> Result<(), Error> {
        let there = written.iter().map(|(table, seq)| {
            let table = quote::<Self>(table.as_str());
            format!(" and exists (select 1 from {table} where seq = {seq})")
        });
        let there: String = there.collect();
        let commit = format!(
            "/*!50701 release savepoint outbox_begin */
             /*M!100100 begin not atomic if not (@@in_transaction{there}) then
               signal sqlstate '25000' set mysql_errno = {LOST}, message_text = 'the transaction was ended before its commit';
             end if; end */; commit"
        );
        let committed = sqlx::raw_sql(AssertSqlSafe(commit)).execute(&mut *tx).await;
        committed.map(drop).map_err(|source| match number(&source) {
            // Rolled back by a deadlock, or committed by a statement that does (DDL).
            Some(LOST) => Error::CommitOutcomeUnknown { source },
            _ => commit_failed(source),
        })
    }

    fn is_missing_table(error: &sqlx::Error) -> bool {
        number(error) == Some(1146)
    }

    fn own_options(
        options: PoolOptions<Self>,
        connect: MySqlConnectOptions,
    ) -> (PoolOptions<Self>, MySqlConnectOptions) {
        let options = options.after_connect(|connection, _| {
            Box::pin(async move {
                connection
                    .execute("set session transaction isolation level read committed")
                    .await?;
                // A process that is stopped in the middle of a transaction must not keep others from taking over. MySQL,
                // unlike MariaDB, has no such limit.
                let limit = connection.execute("set session idle_transaction_timeout = 2").await;
                if let Err(error) = limit
                    && number(&error) != Some(NO_SUCH_VARIABLE)
                {
                    return Err(error);
                }
                Ok(())
            })
        });
        (options, connect)
    }

    // The types are those of our own statements: not compared again for every value.

    fn int(row: &MySqlRow, column: usize) -> Result<Option<i64>, sqlx::Error> {
        row.try_get_unchecked(column)
    }

    fn text(row: &MySqlRow, column: usize) -> Result<Option<String>, sqlx::Error> {
        row.try_get_unchecked(column)
    }

    fn bytes(row: &MySqlRow, column: usize) -> Result<Option<Vec<u8>>, sqlx::Error> {
        row.try_get_unchecked(column)
    }

    async fn execute(connection: &mut MySqlConnection, statement: Statement<Self>) -> Result<u64, sqlx::Error> {
        let query = query!(kept(statement));
        Ok(query.execute(connection).await?.rows_affected())
    }

    async fn fetch(connection: &mut MySqlConnection, statement: Statement<Self>) -> Result<Vec<MySqlRow>, sqlx::Error> {
        let query = query!(kept(statement));
        query.fetch_all(connection).await
    }

    async fn read<T: Send + Unpin>(
        connection: &mut MySqlConnection,
        statement: Statement<Self>,
        read: impl FnMut(&MySqlRow) -> Result<T, sqlx::Error> + Send,
    ) -> Result<Vec<T>, sqlx::Error> {
        read_rows(connection, query!(kept(statement)), read).await
    }

    async fn script(connection: &mut MySqlConnection, script: String) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(script)).execute(connection).await?;
        Ok(())
    }

    /// DDL commits by itself, so the lock is the connection's and every step can be repeated.
    async fn serialized(pool: &MySqlPool, table: &TableName) -> Result<Serialized<Self>, sqlx::Error> {
        let mut connection = pool.acquire().await?;
        // A name of at most 64 characters, server-wide: hence the database, hashed.
        let locked: Option<i64> =
            sqlx::query_scalar("select get_lock(concat('outbox ', md5(concat(database(), ?))), 60)")
                .bind(table.as_str())
                .fetch_one(&mut *connection)
                .await?;
        match locked {
            Some(1) => Ok(Serialized {
                held: Held::Connection(connection),
            }),
            _ => Err(sqlx::Error::PoolTimedOut),
        }
    }

    async fn insert(connection: &mut MySqlConnection, sql: &Sql, rows: &[NewRow<'_>]) -> Result<Inserted, sqlx::Error> {
        if let [row] = rows {
            return insert_one(connection, sql, row).await;
        }
        let text = format!("{}{}", sql.insert_many, vec![VALUES; rows.len()].join(", "));
        let query = sqlx::query(statement(text)).persistent(is_kept(rows.len()));
        let query = rows.iter().fold(query, |query, row| bind_row!(query, row));
        // The rows of one insert get numbers in their order and without gaps, a fixed step apart.
        let first = query.execute(&mut *connection).await?.last_insert_id().cast_signed();
        let step: u64 = sqlx::query_scalar("select @@auto_increment_increment")
            .fetch_one(connection)
            .await?;
        let seqs = (0..rows.len() as i64).map(|place| first + place * step.cast_signed());
        Ok(Inserted {
            seqs: seqs.collect(),
            inside: false,
        })
    }

    async fn claim(
        _pool: &MySqlPool,
        reading: &MySqlPool,
        sql: &Sql,
        claim: &Claim<'_>,
    ) -> Result<Vec<Claimed>, sqlx::Error> {
        let (due_at, seq) = claim.after.unwrap_or((FIRST_INSTANT, 0));
        // Idle, which is most of the time, costs one read and no lock.
        let anything = sqlx::query(sql.anything.clone())
            .bind(due_at)
            .bind(due_at)
            .bind(seq)
            .bind(micros(claim.skip_recent));
        if anything.fetch_optional(reading).await?.is_none() {
            return Ok(Vec::new());
        }
        let mut tx = reading.begin().await?;
        let query = sqlx::query(sql.claim.clone())
            .bind(due_at)
            .bind(due_at)
            .bind(seq)
            .bind(micros(claim.skip_recent))
            .bind(claim.limit as i64);
        let mut claimed = read_rows(&mut *tx, query, |row| {
            Ok(Claimed {
                recovered: row.try_get(column_count::<Self>())?,
                ..read_claimed::<Self>(row)?
            })
        })
        .await?;
        if !claimed.is_empty() {
            sqlx::query(sql.take.clone())
                .bind(leases_json(claimed.iter().map(|row| &row.lease)))
                .bind(claim.owner)
                .bind(micros(claim.lease))
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
        for row in &mut claimed {
            row.lease.token += 1;
        }
        Ok(claimed)
    }

    async fn read_leased(
        pool: &MySqlPool,
        sql: &Sql,
        leases: &[Lease],
        at_least: Duration,
    ) -> Result<Vec<Claimed>, sqlx::Error> {
        let rows = sqlx::query(sql.read_leased.clone())
            .bind(leases_json(leases))
            .bind(micros(at_least))
            .fetch_all(pool)
            .await?;
        rows.iter().map(read_claimed::<Self>).collect()
    }

    fn is_one_statement(batch: &Batch, member: Option<&str>) -> bool {
        match member {
            None => batch.is_one_statement(false),
            Some(_) => batch.is_done_only(),
        }
    }

    async fn write(
        connection: &mut MySqlConnection,
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
            let query = match list(leases).zip(one_token(leases)) {
                Some((seqs, token)) => {
                    let query = sqlx::query(statement.one_token(seqs.len()));
                    seqs.into_iter().fold(query, |query, seq| query.bind(seq)).bind(token)
                }
                None => sqlx::query(statement.tokens.clone()).bind(leases_json(leases)),
            };
            let query = query.bind(member).bind(member);
            applied += query.execute(&mut *connection).await?.rows_affected();
        }
        for (failed, update) in [(&batch.retry, &sql.retry), (&batch.dead, &sql.dead)] {
            if !failed.is_empty() {
                remember_failures(failed, connection, sql, owner).await?;
                let query = sqlx::query(update.clone()).bind(changes_json(failed));
                applied += query.execute(&mut *connection).await?.rows_affected();
            }
        }
        if !batch.defer.is_empty() {
            let query = sqlx::query(sql.defer.clone()).bind(changes_json(&batch.defer));
            applied += query.execute(&mut *connection).await?.rows_affected();
        }
        Ok(applied)
    }

    async fn renew(pool: &MySqlPool, sql: &Sql, leases: &[Lease], lease: Duration) -> Result<Vec<Lease>, sqlx::Error> {
        let batch = leases_json(leases);
        let renewed = sqlx::query(sql.renew.clone())
            .bind(&batch)
            .bind(micros(lease))
            .execute(pool)
            .await?;
        if renewed.rows_affected() == leases.len() as u64 {
            return Ok(leases.to_vec());
        }
        // Some are lost: an UPDATE does not say which.
        let held: Vec<(i64, i64)> = sqlx::query_as(sql.held.clone()).bind(&batch).fetch_all(pool).await?;
        Ok(held.into_iter().map(|(seq, token)| Lease { seq, token }).collect())
    }

    async fn release(pool: &MySqlPool, sql: &Sql, leases: &[Lease]) -> Result<u64, sqlx::Error> {
        Ok(sqlx::query(sql.release.clone())
            .bind(leases_json(leases))
            .execute(pool)
            .await?
            .rows_affected())
    }

    async fn explain_read(pool: &MySqlPool, statement: Statement<Self>) -> Result<String, sqlx::Error> {
        explain::read(pool, statement).await
    }

    async fn explain(pool: &MySqlPool, sql: &Sql, statement: Explain) -> Result<String, sqlx::Error> {
        explain::statement(pool, sql, statement).await
    }
}

/// Prepared, however rare it is: see [`is_kept`]. Texts are few: lists in them are filled up, as by
/// [`filled_up`](super::statement::filled_up).
fn kept(mut statement: Statement<MySql>) -> Statement<MySql> {
    statement.prepared();
    statement
}

fn number(error: &sqlx::Error) -> Option<u16> {
    Some(
        error
            .as_database_error()?
            .try_downcast_ref::<MySqlDatabaseError>()?
            .number(),
    )
}

/// Locks the rows that are still ours and writes down their failures; the update that follows finds the same rows.
async fn remember_failures(
    failed: &[Change],
    connection: &mut MySqlConnection,
    sql: &Sql,
    owner: &str,
) -> Result<(), sqlx::Error> {
    let held: Vec<(i64, i64, i64)> = sqlx::query_as(sql.lock.clone())
        .bind(leases_json(failed.iter().map(|change| &change.lease)))
        .fetch_all(&mut *connection)
        .await?;
    let attempts: HashMap<Lease, i64> = held
        .into_iter()
        .map(|(seq, token, attempts)| (Lease { seq, token }, attempts + 1))
        .collect();
    let rows = failed.iter().filter_map(|change| {
        let attempt = attempts.get(&change.lease)?;
        Some(serde_json::json!([change.lease.seq, attempt, null, change.error]))
    });
    let rows = rows.collect::<serde_json::Value>().to_string();
    sqlx::query(sql.attempts.clone())
        .bind(owner)
        .bind(rows)
        .execute(connection)
        .await?;
    Ok(())
}

async fn insert_one(connection: &mut MySqlConnection, sql: &Sql, row: &NewRow<'_>) -> Result<Inserted, sqlx::Error> {
    if row.is_due_now() && sql.can_tell.load(Ordering::Relaxed) {
        let insert = match row.born {
            None => bind_event!(sqlx::query(sql.insert_free.clone()), row),
            Some(_) => bind_leased!(sqlx::query(sql.insert_leased.clone()), row),
        };
        match insert.execute(&mut *connection).await {
            Ok(done) => return Ok(Inserted::inside(vec![done.last_insert_id().cast_signed()])),
            Err(error) => match number(&error) {
                // Refused: it was not, or the session does not commit by itself, and so cannot tell.
                Some(NULL) => {}
                // Another server answers at this address now.
                Some(NO_SUCH_VARIABLE) => sql.can_tell.store(false, Ordering::Relaxed),
                _ => return Err(error),
            },
        }
    }
    let mut answer = connection.fetch_many(bind_row!(sqlx::query(sql.insert_one.clone()), row));
    let mut told = None;
    let mut seq = 0;
    while let Some(part) = answer.try_next().await? {
        match part {
            Either::Left(done) => seq = done.last_insert_id().cast_signed(),
            Either::Right(row) => told = Some((row.try_get(0)?, row.try_get(1)?)),
        }
    }
    // One that does not tell is not MariaDB, or no longer.
    let (seq, inside) = told.unwrap_or((seq, false));
    if inside || told.is_none() {
        sql.can_tell.store(inside, Ordering::Relaxed);
    }
    Ok(Inserted {
        seqs: vec![seq],
        inside,
    })
}
