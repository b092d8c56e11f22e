use sqlx::mysql::{MySqlArguments, MySqlConnection};
use sqlx::query::Query;
use sqlx::{Connection, MySql};

use super::{AGGREGATE_TYPE, BareDatabase, EVENT_TYPE, Fill, Row, Statements, bare_statements_run_alike, statement};
use crate::bench::place::Tables;

impl BareDatabase for MySql {
    const ONE_WRITER: bool = false;
    // Or the gaps between claimed rows are locked as well.
    const SESSION: &'static str = "set session transaction isolation level read committed";
    const HOLD: Option<&'static str> = None;
    const NOTIFIES: bool = false;
    const LEFT_TO_TIDY: Option<&'static str> = Some(
        "select cast(`count` as signed) from information_schema.innodb_metrics where name = 'trx_rseg_history_len'",
    );

    fn bare_statements(Tables { events, orders }: &Tables, batch: usize) -> Statements {
        let row = "seq, timestampdiff(microsecond, '1970-01-01', available_at), event_id, event_type, aggregate_type, \
                   aggregate_id, tenant_id, payload, headers, timestampdiff(microsecond, '1970-01-01', occurred_at), \
                   attempts";
        // The list is as long as a batch, always, so that the statement is prepared once.
        let seqs = format!("seq in ({})", vec!["?"; batch].join(", "));
        let digit = "(select 0 as d union all select 1 union all select 2 union all select 3 union all select 4 \
                      union all select 5 union all select 6 union all select 7 union all select 8 union all select 9)";
        Statements {
            batch,
            insert_order: statement(format!("insert into {orders} (number, note) values (?, ?)")),
            insert_event: statement(format!(
                "insert into {events} (event_id, event_type, aggregate_type, aggregate_id, payload)
                 values (?, '{EVENT_TYPE}', '{AGGREGATE_TYPE}', ?, ?)"
            )),
            // Up to 10,000 rows at once. Neither the sequences of MariaDB nor a long recursion are known to both servers.
            fill: statement(format!(
                "insert into {events} (event_id, event_type, aggregate_type, aggregate_id, payload, status,
                                       created_at, available_at, done_at)
                 select lpad(v.first + n, 26, '0'), '{EVENT_TYPE}', '{AGGREGATE_TYPE}',
                        concat('key-', mod(v.first + n, v.keys_)), v.payload, v.done,
                        utc_timestamp(6) - interval v.done day, utc_timestamp(6) - interval v.done day,
                        case v.done when 1 then utc_timestamp(6) - interval 1 day end
                 from (select ? as first, ? as last, ? as keys_, ? as payload, ? as done) as v,
                      (select a.d + 10 * b.d + 100 * c.d + 1000 * e.d as n
                       from {digit} as a, {digit} as b, {digit} as c, {digit} as e) as numbers
                 where v.first + n <= v.last
                 order by n"
            )),
            // By the index of pending rows, in its order: any other plan would lock every candidate.
            take: statement(format!(
                "select {row} from {events} force index ({events}_pending)
                 where pending_at >= '1970-01-01' + interval ? microsecond and pending_at <= utc_timestamp(6)
                   and (lease_until is null or lease_until <= utc_timestamp(6))
                 order by pending_at, seq
                 limit ?
                 for update skip locked"
            )),
            lease: statement(format!(
                "update {events} set locked_by = 'bare', lease_until = utc_timestamp(6) + interval 30 second
                 where {seqs}"
            )),
            read_after: statement(format!(
                "select {row} from {events} force index (primary) where seq > ? and status in (0, 2)
                 order by seq limit ?"
            )),
            mark_done: statement(format!(
                "update {events} set status = 1, done_at = utc_timestamp(6), locked_by = null, lease_until = null
                 where {seqs}"
            )),
            remove: statement(format!("delete from {events} where {seqs}")),
            remove_range: statement(format!(
                "delete from {events}
                 where seq > ? and seq <= ? and status = 1 and done_at < utc_timestamp(6) - interval 1 hour"
            )),
            pending_beyond: statement(format!(
                "select count(*) from {events} force index (primary) where seq > ? and status in (0, 2)"
            )),
        }
    }

    fn tidy(Tables { events, orders }: &Tables) -> Vec<String> {
        vec![
            format!("analyze table {events}, {orders}"),
            // Writes the pages of both to the disk: otherwise one side may have to do that for the other.
            format!("flush tables {events}, {orders} for export; unlock tables"),
            // And the log has all its room again, where the server has a word for that (MariaDB): a drain goes through much of it,
            // and waits for pages when it is full.
            "set global innodb_log_checkpoint_now = on".to_owned(),
        ]
    }

    bare_statements_run_alike!(begin: "begin", seqs: |query, seqs, sql| bind_seqs(query, seqs, sql.batch));
}

async fn take(
    connection: &mut MySqlConnection,
    sql: &Statements,
    from: i64,
    batch: i64,
) -> Result<Vec<Row>, sqlx::Error> {
    let mut tx = connection.begin().await?;
    let rows: Vec<Row> = sqlx::query_as(sql.take.clone())
        .bind(from)
        .bind(batch)
        .fetch_all(&mut *tx)
        .await?;
    if !rows.is_empty() {
        let seqs: Vec<i64> = rows.iter().map(|row| row.0).collect();
        let lease = bind_seqs(sqlx::query(sql.lease.clone()), &seqs, sql.batch);
        lease.execute(&mut *tx).await?;
    }
    tx.commit().await?;
    Ok(rows)
}

type MySqlQuery<'q> = Query<'q, MySql, MySqlArguments>;

/// Fills the rest of the list with its last number.
fn bind_seqs<'q>(mut query: MySqlQuery<'q>, seqs: &[i64], batch: usize) -> MySqlQuery<'q> {
    let last = seqs.last().copied().unwrap_or_default();
    for seq in seqs.iter().copied().chain(std::iter::repeat(last)).take(batch) {
        query = query.bind(seq);
    }
    query
}
