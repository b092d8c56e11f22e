use sqlx::Postgres;
use sqlx::postgres::PgConnection;

use super::{AGGREGATE_TYPE, BareDatabase, EVENT_TYPE, Fill, Row, Statements, bare_statements_run_alike, statement};
use crate::bench::place::Tables;

impl BareDatabase for Postgres {
    const ONE_WRITER: bool = false;
    const SESSION: &'static str = "";
    const HOLD: Option<&'static str> =
        Some("begin isolation level repeatable read; select pg_current_xact_id(), count(*) from pg_class");
    const NOTIFIES: bool = true;

    fn bare_statements(Tables { events, orders }: &Tables, batch: usize) -> Statements {
        let row = "seq, (date_part('epoch', available_at) * 1000000)::bigint, event_id, event_type, aggregate_type, \
                   aggregate_id, tenant_id, payload::text, headers::text, \
                   (date_part('epoch', occurred_at) * 1000000)::bigint, attempts::bigint";
        Statements {
            batch,
            insert_order: statement(format!("insert into {orders} (number, note) values ($1, $2)")),
            insert_event: statement(format!(
                "insert into {events} (event_id, event_type, aggregate_type, aggregate_id, payload)
                 values ($1, '{EVENT_TYPE}', '{AGGREGATE_TYPE}', $2, $3::json)"
            )),
            fill: statement(format!(
                "insert into {events} (event_id, event_type, aggregate_type, aggregate_id, payload, status,
                                       created_at, available_at, done_at)
                 select lpad(n::text, 26, '0'), '{EVENT_TYPE}', '{AGGREGATE_TYPE}', 'key-' || n % $3, $4::json,
                        $5::bigint::smallint, clock_timestamp() - $5 * interval '1 day',
                        clock_timestamp() - $5 * interval '1 day', case $5 when 1 then now() - interval '1 day' end
                 from generate_series($1, $2) as n"
            )),
            // Picks by the index of pending rows, in its order; updates by the place of the locked rows.
            take: statement(format!(
                "with picked as materialized (
                   select ctid as place from {events}
                   where status in (0, 2) and available_at >= timestamptz 'epoch' + $1 * interval '1 microsecond'
                     and available_at <= now() and (lease_until is null or lease_until <= now())
                   order by available_at, seq
                   limit $2
                   for update skip locked)
                 update {events} as t set locked_by = 'bare', lease_until = now() + interval '30 seconds'
                 from picked where t.ctid = picked.place
                 returning {row}"
            )),
            lease: statement(String::new()),
            read_after: statement(format!(
                "select {row} from {events} where seq > $1 and status in (0, 2) order by seq limit $2"
            )),
            mark_done: statement(format!(
                "update {events} set status = 1, done_at = now(), locked_by = null, lease_until = null
                 where seq = any($1)"
            )),
            remove: statement(format!("delete from {events} where seq = any($1)")),
            remove_range: statement(format!(
                "delete from {events}
                 where seq > $1 and seq <= $2 and status = 1 and done_at < now() - interval '1 hour'"
            )),
            pending_beyond: statement(format!(
                "select count(*) from {events} where seq > $1 and status + 0 in (0, 2)"
            )),
        }
    }

    fn empty(Tables { events, orders }: &Tables) -> String {
        format!("truncate table {events}, {orders} restart identity")
    }

    fn tidy(Tables { events, orders }: &Tables) -> Vec<String> {
        vec![
            format!("vacuum (analyze) {events}"),
            format!("vacuum (analyze) {orders}"),
            // Otherwise one side may pay for writing whole pages, the first time after a checkpoint, and the other not.
            "checkpoint".to_owned(),
        ]
    }

    bare_statements_run_alike!(begin: "begin", seqs: |query, seqs, _sql| query.bind(seqs));
}

async fn take(connection: &mut PgConnection, sql: &Statements, from: i64, batch: i64) -> Result<Vec<Row>, sqlx::Error> {
    let query = sqlx::query_as(sql.take.clone()).bind(from).bind(batch);
    query.fetch_all(connection).await
}
