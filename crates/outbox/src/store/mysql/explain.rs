//! Plans, for tests and for whoever wants to look.

use sqlx::mysql::{MySqlArguments, MySqlPool, MySqlRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, MySql, Row, SqlStr};

use super::Sql;
use crate::store::Explain;
use crate::store::statement::{Statement, query};

pub(super) async fn read(pool: &MySqlPool, statement: Statement<MySql>) -> Result<String, sqlx::Error> {
    let query = query!(statement.prefixed("explain "));
    Ok(plan(&query.fetch_all(pool).await?))
}

/// The statements with one text.
pub(super) async fn statement(pool: &MySqlPool, sql: &Sql, statement: Explain) -> Result<String, sqlx::Error> {
    let rows: Vec<_> = (1..=100_i64)
        .map(|seq| serde_json::json!([seq, 0, 0, "x", "x"]))
        .collect();
    let batch = serde_json::Value::from(rows).to_string();
    let explain = |sql: &SqlStr| AssertSqlSafe(format!("explain {}", sql.as_str()));
    let listed = |query: Query<'static, MySql, MySqlArguments>| {
        let query = (1..=128_i64).fold(query, |query, seq| query.bind(seq));
        query.bind(0_i64).bind(None::<&str>).bind(None::<&str>)
    };
    let query = match statement {
        Explain::Claim => sqlx::query(explain(&sql.claim))
            .bind(0_i64)
            .bind(0_i64)
            .bind(0_i64)
            .bind(0_i64)
            .bind(100_i64),
        Explain::ReadLeased => sqlx::query(explain(&sql.read_leased)).bind(batch).bind(0_i64),
        Explain::Done => sqlx::query(explain(&sql.done.tokens))
            .bind(batch)
            .bind(None::<&str>)
            .bind(None::<&str>),
        Explain::DoneByOneToken => listed(sqlx::query(explain(&sql.done.one_token(128)))),
        Explain::DeleteByOneToken => listed(sqlx::query(explain(&sql.delete.one_token(128)))),
        Explain::Delete => sqlx::query(explain(&sql.delete.tokens))
            .bind(batch)
            .bind(None::<&str>)
            .bind(None::<&str>),
        Explain::Retry => sqlx::query(explain(&sql.retry)).bind(batch),
        Explain::Dead => sqlx::query(explain(&sql.dead)).bind(batch),
        Explain::Defer => sqlx::query(explain(&sql.defer)).bind(batch),
        Explain::Renew => sqlx::query(explain(&sql.renew)).bind(batch).bind(0_i64),
        Explain::Release => sqlx::query(explain(&sql.release)).bind(batch),
        Explain::ReadLanes | Explain::ReadInOrder => unreachable!("explained by explain_read"),
    };
    Ok(plan(&query.fetch_all(pool).await?))
}

/// The plan's rows, a line each.
fn plan(rows: &[MySqlRow]) -> String {
    let mut plan = String::new();
    for row in rows {
        let text = |column: &str| {
            row.try_get::<Option<String>, _>(column)
                .ok()
                .flatten()
                .unwrap_or_default()
        };
        // A number in MySQL, text in MariaDB.
        let rows = match row.try_get::<Option<u64>, _>("rows") {
            Ok(rows) => rows.unwrap_or(0).to_string(),
            Err(_) => text("rows"),
        };
        let (table, access, key, extra) = (text("table"), text("type"), text("key"), text("Extra"));
        plan.push_str(&format!(
            "table={table} type={access} key={key} rows={rows} extra={extra}\n"
        ));
    }
    plan
}
