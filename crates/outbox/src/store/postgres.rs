//! PostgreSQL. Arrays carry a batch as a few values, so that every statement has one text and one plan.

mod explain;

use std::time::Duration;

use async_trait::async_trait;
use sqlx::pool::PoolOptions;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection, PgListener, PgPool, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres, Row, SqlSafeStr, SqlStr, Transaction, ValueRef};

use super::batch::{Batch, Change, Stretch};
use super::driver::{Dialect, Driver, Held, Serialized};
use super::row::{bind_event, bind_leased, column_count, columns, micros, read_claimed};
use super::statement::{Statement, query, read_rows};
use super::{Claim, Claimed, Explain, Inserted, Lease, NewRow, News, Wakeups, Writers, quote};
use crate::error::{Error, database};
use crate::migrate::Migration;
use crate::table::TableName;
use crate::write::commit_failed;

impl Dialect for Postgres {
    const DATABASE: &'static str = "postgres";
    const QUOTE: char = '"';
    // Not clock_timestamp(), which could differ from row to row and so cannot bound an index scan. Outside of a
    // transaction block, where our own statements run, now() is the statement's start.
    const NOW: &'static str = "now()";
    const PENDING: &'static str = "status in (0, 2)";
    const DUE: &'static str = "available_at";
    const INSTANT: &'static str = "timestamptz";
    const PENDING_IN_ORDER: &'static str = "t.status in (0, 2)";
    const EMPTY_IS_QUICKLY_SEEN: bool = false;
    const FOR_EACH_ROW: &'static str = " offset 0";
    const FAILS_WHOLE: bool = true;
    const LANE_HOLDERS: usize = usize::MAX;
    // The weakest lock that a delete waits for; renewing, which changes no key, does not.
    const HOLD: &'static str = " for key share";
    const LOCK_IF_FREE: &'static str = " for update skip locked";
    const REPLACE_BLOCK: &'static str = "on conflict (aggregate_type, aggregate_id) do update \
         set seq = excluded.seq, blocked_at = excluded.blocked_at, blocked_until = excluded.blocked_until";

    fn placeholder(n: usize) -> String {
        format!("${n}")
    }

    fn micros(instant: &str) -> String {
        // An infinite instant, which only another program can have written, is none.
        format!("(case when isfinite({instant}) then (extract(epoch from {instant}) * 1000000)::bigint end)")
    }

    fn shift(instant: &str, micros: &str) -> String {
        format!("({instant} + {micros} * interval '1 microsecond')")
    }

    fn at(micros: &str) -> String {
        format!("(timestamptz 'epoch' + {micros} * interval '1 microsecond')")
    }

    fn shift_right(bits: &str, by: &str) -> String {
        format!("({bits}::bigint >> {by}::int)")
    }

    /// The planner has no hints; the index is the only one that is both in this order and free of finished rows.
    fn in_order_of_writing(table: &TableName) -> String {
        format!("{} as t", quote::<Self>(table.as_str()))
    }

    /// Not the maximum: planned for an empty table, it would be looked for in all rows.
    fn last_seq(table: &str) -> String {
        format!("(select seq from {table} order by seq desc limit 1)")
    }

    fn integer(column: &str) -> String {
        format!("{column}::bigint")
    }

    /// As it is: see [`Driver::instant`].
    fn read_instant(instant: &str) -> String {
        instant.to_owned()
    }
}

/// The statements of the hot path.
#[derive(Debug)]
pub struct Sql {
    insert_free: SqlStr,
    insert_leased: SqlStr,
    insert_many: SqlStr,
    claim: SqlStr,
    read_leased: SqlStr,
    done: Delivered,
    delete: Delivered,
    retry: SqlStr,
    dead: SqlStr,
    defer: SqlStr,
    renew: SqlStr,
    release: SqlStr,
}

/// What is written about rows that are delivered. Those that came from one hand mostly lie close together; one read of the index of
/// pending rows from the first to the last finds them then, which takes half as long as looking each of them up. It has the lanes
/// in it, so that the rows of other nodes in between are left out there, and not looked at.
#[derive(Debug)]
struct Delivered {
    stretch: SqlStr,
    tokens: SqlStr,
}

fn statement(sql: String) -> SqlStr {
    AssertSqlSafe(std::sync::Arc::<str>::from(sql)).into_sql_str()
}

impl Driver for Postgres {
    const MIGRATIONS: &'static [Migration] = &[Migration::new(
        1,
        "the tables",
        include_str!("../migrate/postgres_1_up.sql"),
        include_str!("../migrate/postgres_1_down.sql"),
    )];

    type Sql = Sql;

    fn statements(table: &TableName) -> Sql {
        let attempt = quote::<Self>(&table.attempt());
        let node = quote::<Self>(&table.node());
        let table = quote::<Self>(table.as_str());
        let columns = columns::<Self>("t.");
        // Nobody, or still a member, and kept one until all is written: see `store/lane.rs`.
        let fence = format!("with fence as materialized (select 1 from {node} where name = $3 for key share)");
        let member = "($3::text is null or exists (select 1 from fence))";
        let event = "event_id, event_type, aggregate_type, aggregate_id, tenant_id, payload, payload_bytes, headers, \
                     occurred_at";
        let values =
            "$1, $2, $3, $4, $5, $6::json, $7, $8::json, timestamptz 'epoch' + $9::bigint * interval '1 microsecond'";
        // A lease of which the row still has the token: served by the primary key. The sum keeps the planner from taking
        // the index of pending rows for it, which would read the whole backlog for each batch. No join: one that is planned
        // while the table is empty reads all of it for each batch, until somebody analyzes it. The seqs are sorted, so that the
        // place of each, and what is said of it, is found by halving.
        let pending = "t.status + 0 in (0, 2)";
        let said = |n: u8, kind: &str| format!("(${n}::{kind}[])[width_bucket(t.seq, $1::bigint[])]");
        let held = format!(
            "t.seq = any($1::bigint[]) and t.token = {} and {pending}",
            said(2, "bigint")
        );
        let (done_by, error) = (said(3, "text"), said(4, "text"));
        let due = |n: u8| format!("now() + {} * interval '1 microsecond'", said(n, "bigint"));
        let held_in_stretch = "t.status in (0, 2) and t.seq between $1 and $2 and t.lane between $6 and $7 \
             and t.token = $4 and get_bit($5::bytea, (t.seq - $1)::integer) = 1";
        let free = "locked_by = null, lease_until = null";
        Sql {
            // A statement that returns something gathers it first, which costs a producer some per cent.
            insert_free: statement(format!("insert into {table} ({event}) values ({values})")),
            insert_leased: statement(format!(
                "insert into {table} ({event}, locked_by, lease_until, token)
                 values ({values}, $10, clock_timestamp() + $11::bigint * interval '1 microsecond', $12)
                 returning seq"
            )),
            insert_many: statement(format!(
                "insert into {table} ({event}, available_at, locked_by, lease_until, token)
                 select e.event_id, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant_id, e.payload::json,
                        e.payload_bytes, e.headers::json,
                        timestamptz 'epoch' + e.occurred_at * interval '1 microsecond',
                        coalesce(timestamptz 'epoch' + e.due_at * interval '1 microsecond',
                                 clock_timestamp() + e.due_after * interval '1 microsecond'),
                        e.locked_by, clock_timestamp() + e.lease * interval '1 microsecond', e.token
                 from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[],
                             $8::text[], $9::bigint[], $10::bigint[], $11::bigint[], $12::text[], $13::bigint[],
                             $14::bigint[])
                      with ordinality as e(event_id, event_type, aggregate_type, aggregate_id, tenant_id, payload,
                                           payload_bytes, headers, occurred_at, due_at, due_after, locked_by, lease,
                                           token, place)
                 order by e.place
                 returning event_id, seq"
            )),
            // Picks by the index of pending rows, in its order; updates by the place of the locked rows, all at once: joined one
            // by one, the server would ask for each how long the table is.
            claim: statement(format!(
                "with picked as materialized (
                   select ctid as place, seq, (lease_until is not null) as recovered from {table}
                   where status in (0, 2)
                     and (available_at, seq)
                         > (coalesce(timestamptz 'epoch' + $1::bigint * interval '1 microsecond', '-infinity'), $6::bigint)
                     and available_at <= now()
                     and created_at <= (select now() - $2::bigint * interval '1 microsecond')
                     and (lease_until is null or lease_until <= now())
                   order by available_at, seq
                   limit $3
                   for update skip locked)
                 update {table} as t
                 set locked_by = $4, lease_until = clock_timestamp() + $5::bigint * interval '1 microsecond',
                     token = token + 1
                 where t.ctid = any(array(select place from picked))
                 returning {columns}, t.seq = any(array(select seq from picked where recovered))"
            )),
            read_leased: statement(format!(
                "select {columns} from {table} as t
                 where {held} and t.lease_until >= now() + $3::bigint * interval '1 microsecond'"
            )),
            done: {
                let done = format!("{fence} update {table} as t set status = 1, done_at = now(), {free}");
                Delivered {
                    stretch: statement(format!("{done} where {held_in_stretch} and {member}")),
                    tokens: statement(format!("{done} where {held} and {member}")),
                }
            },
            delete: {
                let delete = format!("{fence} delete from {table} as t");
                Delivered {
                    stretch: statement(format!("{delete} where {held_in_stretch} and {member}")),
                    tokens: statement(format!("{delete} where {held} and {member}")),
                }
            },
            retry: statement(format!(
                "with failed as (
                   update {table} as t
                   set status = 2, attempts = attempts + 1, token = t.token + 1, last_error = {error},
                       done_by = {done_by}, available_at = {}, {free}
                   where {held}
                   returning t.seq, t.attempts, t.last_error)
                 insert into {attempt} (seq, attempt, node, error) select seq, attempts, $5, last_error from failed",
                due(6)
            )),
            dead: statement(format!(
                "with failed as (
                   update {table} as t
                   set status = 3, attempts = attempts + 1, token = t.token + 1, last_error = {error},
                       done_by = {done_by}, dead_at = now(), {free}
                   where {held}
                   returning t.seq, t.attempts, t.last_error)
                 insert into {attempt} (seq, attempt, node, error) select seq, attempts, $5, last_error from failed"
            )),
            defer: statement(format!(
                "update {table} as t
                 set token = t.token + 1, done_by = {done_by}, available_at = {}, {free}
                 where {held}",
                due(4)
            )),
            renew: statement(format!(
                "update {table} as t set lease_until = now() + $3::bigint * interval '1 microsecond'
                 where {held} and t.lease_until is not null returning t.seq, t.token"
            )),
            release: statement(format!(
                "update {table} as t set token = t.token + 1, {free}
                 where {held} and t.lease_until is not null"
            )),
        }
    }

    async fn begin(pool: &PgPool, _sql: &Sql) -> Result<Transaction<'static, Self>, sqlx::Error> {
        pool.begin().await
    }

    /// COMMIT of a transaction in which a statement failed is answered with a quiet ROLLBACK. A query before it, in the
    /// same message, fails in such a transaction and keeps the COMMIT from being run. The chained transaction, empty, is
    /// what the driver rolls back when it drops the one that it believes is open.
    async fn commit_checked(mut tx: Transaction<'static, Self>, _written: &[(TableName, i64)]) -> Result<(), Error> {
        sqlx::raw_sql("select 1; commit and chain")
            .execute(&mut *tx)
            .await
            .map_err(commit_failed)?;
        Ok(())
    }

    fn is_missing_table(error: &sqlx::Error) -> bool {
        error
            .as_database_error()
            .is_some_and(|error| error.code().as_deref() == Some("42P01"))
    }

    /// The statistics of a queue are those of another hour: it was empty when they were taken, and holds a million rows
    /// now. By them, reading all that is pending and sorting it looks cheap. Every statement of ours is made for an index;
    /// so nothing else is considered on our connections. What has to be sorted all the same looks expensive enough to be
    /// compiled first, which takes longer than anything it does. And since no value makes a difference to the plan, none is
    /// made again for every execution.
    fn own_options(options: PoolOptions<Self>, connect: PgConnectOptions) -> (PoolOptions<Self>, PgConnectOptions) {
        let options = options.after_connect(|connection, _| {
            Box::pin(async move {
                // A process that is stopped in the middle of a transaction must not keep others from taking over.
                // And whatever the server's default isolation is: ours must not abort the application's transactions.
                let settings = "set enable_seqscan = off; set enable_bitmapscan = off; \
                                set enable_hashjoin = off; set enable_mergejoin = off; \
                                set enable_sort = off; set jit = off; set plan_cache_mode = force_generic_plan; \
                                set idle_in_transaction_session_timeout = '2s'; \
                                set session characteristics as transaction isolation level read committed";
                sqlx::raw_sql(settings).execute(connection).await?;
                Ok(())
            })
        });
        (options, connect.application_name("outbox"))
    }

    // The types are those of our own statements: not compared again for every value.

    fn int(row: &PgRow, column: usize) -> Result<Option<i64>, sqlx::Error> {
        row.try_get_unchecked(column)
    }

    /// Also of a `json`, which travels as its text.
    fn text(row: &PgRow, column: usize) -> Result<Option<String>, sqlx::Error> {
        row.try_get_unchecked(column)
    }

    fn bytes(row: &PgRow, column: usize) -> Result<Option<Vec<u8>>, sqlx::Error> {
        row.try_get_unchecked(column)
    }

    /// Microseconds since 2000, which is how a `timestamptz` travels: in SQL, this would be arithmetic with decimal
    /// digits, and most of the work of a read. An infinite one, which only another program can have written, is none.
    fn instant(row: &PgRow, column: usize) -> Result<Option<i64>, sqlx::Error> {
        const FROM_1970_TO_2000: i64 = 946_684_800_000_000;
        let value = row.try_get_raw(column)?;
        if value.is_null() {
            return Ok(None);
        }
        let bytes = value.as_bytes().map_err(sqlx::Error::Decode)?;
        let bytes: [u8; 8] = bytes
            .try_into()
            .map_err(|_| sqlx::Error::Decode("an instant of other than eight bytes".into()))?;
        Ok(match i64::from_be_bytes(bytes) {
            i64::MIN | i64::MAX => None,
            since_2000 => since_2000.checked_add(FROM_1970_TO_2000),
        })
    }

    async fn execute(connection: &mut PgConnection, statement: Statement<Self>) -> Result<u64, sqlx::Error> {
        let query = query!(statement);
        Ok(query.execute(connection).await?.rows_affected())
    }

    async fn fetch(connection: &mut PgConnection, statement: Statement<Self>) -> Result<Vec<PgRow>, sqlx::Error> {
        let query = query!(statement);
        query.fetch_all(connection).await
    }

    async fn read<T: Send + Unpin>(
        connection: &mut PgConnection,
        statement: Statement<Self>,
        read: impl FnMut(&PgRow) -> Result<T, sqlx::Error> + Send,
    ) -> Result<Vec<T>, sqlx::Error> {
        read_rows(connection, query!(statement), read).await
    }

    async fn script(connection: &mut PgConnection, script: String) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(script)).execute(connection).await?;
        Ok(())
    }

    async fn serialized(pool: &PgPool, table: &TableName) -> Result<Serialized<Self>, sqlx::Error> {
        let mut tx = pool.begin().await?;
        sqlx::query("select pg_advisory_xact_lock(hashtextextended($1, 0))")
            .bind(format!("outbox migration of {table}"))
            .execute(&mut *tx)
            .await?;
        Ok(Serialized {
            held: Held::Transaction(tx),
        })
    }

    async fn insert(connection: &mut PgConnection, sql: &Sql, rows: &[NewRow<'_>]) -> Result<Inserted, sqlx::Error> {
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
        let written: Vec<(String, i64)> = sqlx::query_as(sql.insert_many.clone())
            .bind(column(rows, |row| row.event.id().as_str()))
            .bind(column(rows, |row| row.event.event_type().as_str()))
            .bind(column(rows, |row| row.event.aggregate_type().as_str()))
            .bind(column(rows, |row| row.event.aggregate_id()))
            .bind(column(rows, |row| row.event.tenant_id()))
            .bind(column(rows, NewRow::json))
            .bind(column(rows, NewRow::bytes))
            .bind(column(rows, |row| row.event.headers().to_json()))
            .bind(column(rows, NewRow::occurred_at))
            .bind(column(rows, NewRow::due_at))
            .bind(column(rows, NewRow::due_after))
            .bind(column(rows, NewRow::owner))
            .bind(column(rows, NewRow::lease))
            .bind(column(rows, NewRow::token))
            .fetch_all(connection)
            .await?;
        // RETURNING promises no order: go by the id.
        let seqs: std::collections::HashMap<_, _> = written.into_iter().collect();
        let seqs = rows.iter().map(|row| {
            seqs.get(row.event.id().as_str())
                .copied()
                .ok_or(sqlx::Error::RowNotFound)
        });
        seqs.collect::<Result<_, _>>().map(Inserted::inside)
    }

    async fn claim(
        _pool: &PgPool,
        reading: &PgPool,
        sql: &Sql,
        claim: &Claim<'_>,
    ) -> Result<Vec<Claimed>, sqlx::Error> {
        let query = sqlx::query(sql.claim.clone())
            .bind(claim.after.map(|(due_at, _)| due_at))
            .bind(micros(claim.skip_recent))
            .bind(claim.limit as i64)
            .bind(claim.owner)
            .bind(micros(claim.lease))
            .bind(claim.after.map_or(0, |(_, seq)| seq));
        read_rows(reading, query, |row| {
            Ok(Claimed {
                recovered: row.try_get(column_count::<Self>())?,
                ..read_claimed::<Self>(row)?
            })
        })
        .await
    }

    async fn read_leased(
        pool: &PgPool,
        sql: &Sql,
        leases: &[Lease],
        at_least: Duration,
    ) -> Result<Vec<Claimed>, sqlx::Error> {
        let (seqs, tokens) = arrays(leases);
        let rows = sqlx::query(sql.read_leased.clone())
            .bind(seqs)
            .bind(tokens)
            .bind(micros(at_least))
            .fetch_all(pool)
            .await?;
        rows.iter().map(read_claimed::<Self>).collect()
    }

    fn is_one_statement(batch: &Batch, member: Option<&str>) -> bool {
        match member {
            None => batch.is_one_statement(true),
            Some(_) => batch.is_done_only(),
        }
    }

    async fn write(
        connection: &mut PgConnection,
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
            let query = match Stretch::of(leases) {
                Some(Stretch {
                    first,
                    last,
                    bits,
                    token,
                }) => {
                    let (first_lane, last_lane) = batch.lanes.range();
                    sqlx::query(statement.stretch.clone())
                        .bind(first)
                        .bind(last)
                        .bind(member)
                        .bind(token)
                        .bind(bits)
                        .bind(first_lane)
                        .bind(last_lane)
                }
                None => {
                    let (seqs, tokens) = arrays(leases);
                    sqlx::query(statement.tokens.clone())
                        .bind(seqs)
                        .bind(tokens)
                        .bind(member)
                }
            };
            applied += query.execute(&mut *connection).await?.rows_affected();
        }
        // Each counts the failures that it has written down: one for each row that was still ours.
        if !batch.retry.is_empty() {
            let query = bind_failed(&sql.retry, owner, &batch.retry);
            let query = query.bind(column(&batch.retry, |change| change.after));
            applied += query.execute(&mut *connection).await?.rows_affected();
        }
        if !batch.dead.is_empty() {
            let query = bind_failed(&sql.dead, owner, &batch.dead);
            applied += query.execute(&mut *connection).await?.rows_affected();
        }
        if !batch.defer.is_empty() {
            let query = bind_changes(&sql.defer, &batch.defer);
            let query = query.bind(column(&batch.defer, |change| change.after));
            applied += query.execute(&mut *connection).await?.rows_affected();
        }
        Ok(applied)
    }

    async fn renew(pool: &PgPool, sql: &Sql, leases: &[Lease], lease: Duration) -> Result<Vec<Lease>, sqlx::Error> {
        let (seqs, tokens) = arrays(leases);
        let rows: Vec<(i64, i64)> = sqlx::query_as(sql.renew.clone())
            .bind(seqs)
            .bind(tokens)
            .bind(micros(lease))
            .fetch_all(pool)
            .await?;
        Ok(rows.into_iter().map(|(seq, token)| Lease { seq, token }).collect())
    }

    async fn release(pool: &PgPool, sql: &Sql, leases: &[Lease]) -> Result<u64, sqlx::Error> {
        let (seqs, tokens) = arrays(leases);
        Ok(sqlx::query(sql.release.clone())
            .bind(seqs)
            .bind(tokens)
            .execute(pool)
            .await?
            .rows_affected())
    }

    /// An insert locks its table before it takes a number from the sequence, and keeps the lock until its transaction ends.
    /// What can be seen is decided when the statement starts, and the locks are listed after that.
    async fn writers(pool: &PgPool, table: &TableName) -> Result<Option<Writers>, sqlx::Error> {
        let table = quote::<Self>(table.as_str());
        let sql = format!(
            "select (extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint,
                    coalesce({}, 0),
                    array(select virtualtransaction from pg_locks
                          where locktype = 'relation' and relation = '{table}'::regclass and mode = 'RowExclusiveLock'
                            and database = (select oid from pg_database where datname = current_database())),
                    (select seqcache from pg_sequence
                     where seqrelid = pg_get_serial_sequence('{table}', 'seq')::regclass)",
            Self::last_seq(&table)
        );
        let (server, last_seq, transactions, cache): (i64, i64, Vec<String>, Option<i64>) =
            sqlx::query_as(AssertSqlSafe(sql)).fetch_one(pool).await?;
        // Sessions that keep numbers in store use them whenever they like.
        Ok((cache == Some(1)).then(|| Writers {
            server,
            last_seq,
            transactions: transactions.into_iter().collect(),
        }))
    }

    async fn notify(pool: &PgPool, table: &TableName, news: News) -> Result<(), sqlx::Error> {
        sqlx::query("select pg_notify($1, $2)")
            .bind(table.as_str())
            .bind(match news {
                News::Events => "",
                News::Lanes => OF_LANES,
            })
            .execute(pool)
            .await?;
        Ok(())
    }

    async fn wakeups(pool: &PgPool, table: &TableName) -> Result<Option<Box<dyn Wakeups>>, sqlx::Error> {
        let mut listener = PgListener::connect_with(pool).await?;
        listener.listen(table.as_str()).await?;
        Ok(Some(Box::new(Notifications(listener))))
    }

    async fn explain_read(pool: &PgPool, statement: Statement<Self>) -> Result<String, sqlx::Error> {
        explain::read(pool, statement).await
    }

    async fn explain(pool: &PgPool, sql: &Sql, statement: Explain) -> Result<String, sqlx::Error> {
        explain::statement(pool, sql, statement).await
    }
}

/// What is said in a notification of [`News::Lanes`]. Anything else is of events: also from a program in another language.
const OF_LANES: &str = "lanes";

struct Notifications(PgListener);

#[async_trait]
impl Wakeups for Notifications {
    async fn next(&mut self) -> Result<News, Error> {
        // `None` means that the connection was lost, and some calls perhaps with it.
        match self.0.try_recv().await.map_err(database("listening"))? {
            Some(said) if said.payload() == OF_LANES => Ok(News::Lanes),
            Some(_) => Ok(News::Events),
            None => Err(database("listening")(sqlx::Error::Io(
                std::io::ErrorKind::ConnectionReset.into(),
            ))),
        }
    }
}

/// Seqs, sorted as all statements want them, and the token of each. Of two leases of one row only that with the higher token, the
/// later one, is found.
fn arrays(leases: &[Lease]) -> (Vec<i64>, Vec<i64>) {
    let mut leases = leases.to_vec();
    leases.sort_unstable_by_key(|lease| (lease.seq, lease.token));
    leases.into_iter().map(|lease| (lease.seq, lease.token)).unzip()
}

/// What is written to rows that are not done; they are sorted.
fn bind_changes<'q>(statement: &SqlStr, changes: &'q [Change]) -> Query<'q, Postgres, PgArguments> {
    sqlx::query(statement.clone())
        .bind(column(changes, |change| change.lease.seq))
        .bind(column(changes, |change| change.lease.token))
        .bind(column(changes, |change| change.done_by.as_deref()))
}

fn bind_failed<'q>(statement: &SqlStr, owner: &'q str, failed: &'q [Change]) -> Query<'q, Postgres, PgArguments> {
    let query = bind_changes(statement, failed);
    query.bind(column(failed, |change| change.error.as_str())).bind(owner)
}

fn column<'a, S, T>(rows: &'a [S], value: impl Fn(&'a S) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}
