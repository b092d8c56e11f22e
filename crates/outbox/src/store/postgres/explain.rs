//! Plans, for tests and for whoever wants to look.

use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, Connection, Postgres, Row};

use super::Sql;
use crate::store::Explain;
use crate::store::statement::{Bind, Statement};

pub(super) async fn read(pool: &PgPool, statement: Statement<Postgres>) -> Result<String, sqlx::Error> {
    let (sql, binds, _) = statement.into_parts();
    let arguments = binds.into_iter().map(|bind| match bind {
        Bind::Int(value) => ("bigint", Some(value.to_string())),
        Bind::Text(value) => ("text", Some(value)),
    });
    explain_prepared(pool, &sql.0, arguments.collect()).await
}

/// The statements with one text.
pub(super) async fn statement(pool: &PgPool, sql: &Sql, statement: Explain) -> Result<String, sqlx::Error> {
    let list = |value: &dyn Fn(i64) -> String| format!("{{{}}}", (1..=100).map(value).collect::<Vec<_>>().join(","));
    let leases = || ("bigint[]", Some(list(&|seq| seq.to_string())));
    let numbers = || ("bigint[]", Some(list(&|_| "0".to_owned())));
    let texts = || ("text[]", Some(list(&|_| "x".to_owned())));
    let number = |value: i64| ("bigint", Some(value.to_string()));
    let node = || ("text", Some("explain".to_owned()));
    let no_member = ("text", None::<String>);
    let stretch = || {
        let bits = ("bytea", Some(format!("\\x{}", "ff".repeat(13))));
        let (first, last, token) = (number(1), number(100), number(0));
        vec![first, last, no_member.clone(), token, bits, number(0), number(63)]
    };
    let (sql, arguments) = match statement {
        Explain::Claim => (
            &sql.claim,
            vec![("bigint", None), number(0), number(100), node(), number(1), number(0)],
        ),
        Explain::ReadLeased => (&sql.read_leased, vec![leases(), numbers(), number(0)]),
        Explain::Done => (&sql.done.tokens, vec![leases(), numbers(), no_member]),
        Explain::DoneByOneToken => (&sql.done.stretch, stretch()),
        Explain::DeleteByOneToken => (&sql.delete.stretch, stretch()),
        Explain::Delete => (&sql.delete.tokens, vec![leases(), numbers(), no_member]),
        Explain::Retry => (
            &sql.retry,
            vec![leases(), numbers(), texts(), texts(), node(), numbers()],
        ),
        Explain::Dead => (&sql.dead, vec![leases(), numbers(), texts(), texts(), node()]),
        Explain::Defer => (&sql.defer, vec![leases(), numbers(), texts(), numbers()]),
        Explain::Renew => (&sql.renew, vec![leases(), numbers(), number(0)]),
        Explain::Release => (&sql.release, vec![leases(), numbers()]),
        Explain::ReadLanes | Explain::ReadInOrder => unreachable!("explained by explain_read"),
    };
    explain_prepared(pool, sql.as_str(), arguments).await
}

/// Runs a statement in vain, and says how. Explained with its values bound it would be planned for those values; what our
/// connections keep is a plan for any.
async fn explain_prepared(
    pool: &PgPool,
    sql: &str,
    arguments: Vec<(&str, Option<String>)>,
) -> Result<String, sqlx::Error> {
    let types: Vec<_> = arguments.iter().map(|(kind, _)| *kind).collect();
    let literal = |value: &String| format!("'{}'", value.replace('\'', "''"));
    let values = arguments
        .iter()
        .map(|(_, value)| value.as_ref().map_or_else(|| "null".to_owned(), literal));
    let values: Vec<_> = values.collect();
    // Closed in the end: what is prepared outlives a transaction.
    let mut connection = pool.acquire().await?.detach();
    let prepare = format!("begin; prepare explained ({}) as {sql}", types.join(", "));
    sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut connection).await?;
    let explain = format!("explain (analyze, buffers) execute explained ({})", values.join(", "));
    let rows = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(&mut connection).await?;
    let lines = rows.iter().map(|row| row.try_get::<String, _>(0));
    let lines = lines.collect::<Result<Vec<_>, _>>()?;
    // Awaited, so that no lock of it is left when the next one is explained.
    sqlx::raw_sql("rollback").execute(&mut connection).await?;
    connection.close().await?;
    Ok(lines.join("\n"))
}
