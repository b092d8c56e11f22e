use sqlx::Sqlite;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};

use super::{AGGREGATE_TYPE, BareDatabase, EVENT_TYPE, Fill, Row, Statements, bare_statements_run_alike, statement};
use crate::bench::place::Tables;

/// The clock of the table's defaults: milliseconds, written as microseconds.
const NOW: &str = "(cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000)";
const HOUR: &str = "3600000000";
const DAY: &str = "86400000000";

impl BareDatabase for Sqlite {
    const ONE_WRITER: bool = true;
    const SESSION: &'static str = "";
    const HOLD: Option<&'static str> = None;
    const NOTIFIES: bool = false;

    fn bare_statements(Tables { events, orders }: &Tables, batch: usize) -> Statements {
        let row = "seq, available_at, event_id, event_type, aggregate_type, aggregate_id, tenant_id, payload, headers, \
                   occurred_at, attempts";
        let seqs = "seq in (select value from json_each(?1))";
        Statements {
            batch,
            insert_order: statement(format!("insert into {orders} (number, note) values (?1, ?2)")),
            insert_event: statement(format!(
                "insert into {events} (event_id, event_type, aggregate_type, aggregate_id, payload)
                 values (?1, '{EVENT_TYPE}', '{AGGREGATE_TYPE}', ?2, ?3)"
            )),
            fill: statement(format!(
                "with recursive numbers(n) as (select ?1 union all select n + 1 from numbers where n < ?2)
                 insert into {events} (event_id, event_type, aggregate_type, aggregate_id, payload, status,
                                       created_at, available_at, done_at)
                 select printf('%026d', n), '{EVENT_TYPE}', '{AGGREGATE_TYPE}', 'key-' || (n % ?3), ?4, ?5,
                        {NOW} - ?5 * {DAY}, {NOW} - ?5 * {DAY}, case ?5 when 1 then {NOW} - {DAY} end
                 from numbers"
            )),
            take: statement(format!(
                "update {events} set locked_by = 'bare', lease_until = {NOW} + 30000000
                 where seq in (
                   select seq from {events} indexed by {events}_pending
                   where status in (0, 2) and available_at >= ?1 and available_at <= {NOW}
                     and (lease_until is null or lease_until <= {NOW})
                   order by available_at, seq
                   limit ?2)
                 returning {row}"
            )),
            lease: statement(String::new()),
            read_after: statement(format!(
                "select {row} from {events} not indexed where seq > ?1 and status in (0, 2) order by seq limit ?2"
            )),
            mark_done: statement(format!(
                "update {events} set status = 1, done_at = {NOW}, locked_by = null, lease_until = null where {seqs}"
            )),
            remove: statement(format!("delete from {events} where {seqs}")),
            remove_range: statement(format!(
                "delete from {events} where seq > ?1 and seq <= ?2 and status = 1 and done_at < {NOW} - {HOUR}"
            )),
            pending_beyond: statement(format!(
                "select count(*) from {events} not indexed where seq > ?1 and status in (0, 2)"
            )),
        }
    }

    fn durable(options: SqliteConnectOptions) -> SqliteConnectOptions {
        options
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
    }

    fn empty(Tables { events, orders }: &Tables) -> String {
        format!("delete from {events}; delete from {orders}; delete from sqlite_sequence where name = '{events}'")
    }

    fn tidy(_tables: &Tables) -> Vec<String> {
        vec!["pragma wal_checkpoint(truncate)".to_owned()]
    }

    bare_statements_run_alike!(begin: "begin immediate", seqs: |query, seqs, _sql| query.bind(list(seqs)));
}

async fn take(
    connection: &mut SqliteConnection,
    sql: &Statements,
    from: i64,
    batch: i64,
) -> Result<Vec<Row>, sqlx::Error> {
    let query = sqlx::query_as(sql.take.clone()).bind(from).bind(batch);
    query.fetch_all(connection).await
}

/// `[1,2,3]`.
fn list(seqs: &[i64]) -> String {
    let mut list = String::with_capacity(seqs.len() * 8 + 2);
    list.push('[');
    for (place, seq) in seqs.iter().enumerate() {
        if place > 0 {
            list.push(',');
        }
        list.push_str(&seq.to_string());
    }
    list.push(']');
    list
}
