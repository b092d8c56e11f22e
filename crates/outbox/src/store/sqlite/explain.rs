//! Plans, for tests and for whoever wants to look.

use sqlx::sqlite::{SqlitePool, SqliteRow};
use sqlx::{AssertSqlSafe, Row, SqlStr, Sqlite};

use super::Sql;
use crate::store::Explain;
use crate::store::statement::{Statement, query};

pub(super) async fn read(pool: &SqlitePool, statement: Statement<Sqlite>) -> Result<String, sqlx::Error> {
    let query = query!(statement.prefixed("explain query plan "));
    plan(&query.fetch_all(pool).await?)
}

/// The statements with one text.
pub(super) async fn statement(pool: &SqlitePool, sql: &Sql, statement: Explain) -> Result<String, sqlx::Error> {
    let explain = |sql: &SqlStr| AssertSqlSafe(format!("explain query plan {}", sql.as_str()));
    let sql = match statement {
        Explain::Claim => &sql.claim,
        Explain::ReadLeased => &sql.read_leased,
        Explain::Done => &sql.done.tokens,
        Explain::DoneByOneToken => &sql.done.one_token,
        Explain::Delete => &sql.delete.tokens,
        Explain::DeleteByOneToken => &sql.delete.one_token,
        Explain::Retry => &sql.retry,
        Explain::Dead => &sql.dead,
        Explain::Defer => &sql.defer,
        Explain::Renew => &sql.renew,
        Explain::Release => &sql.release,
        Explain::ReadLanes | Explain::ReadInOrder => unreachable!("explained by explain_read"),
    };
    plan(&sqlx::query(explain(sql)).fetch_all(pool).await?)
}

/// The plan's rows, a line each.
fn plan(rows: &[SqliteRow]) -> Result<String, sqlx::Error> {
    let lines = rows.iter().map(|row| row.try_get::<String, _>("detail"));
    Ok(lines.collect::<Result<Vec<_>, _>>()?.join("\n"))
}
