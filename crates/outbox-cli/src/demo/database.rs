//! The shop's own table, on each database.

use std::future::Future;

use outbox::store::Driver;
use sqlx::{AssertSqlSafe, MySql, Pool, Postgres, Row, Sqlite, Transaction};

/// A database the shop can be on.
pub(crate) trait ShopDatabase: Driver {
    /// Begins a transaction of the pool's own, as an application without the wrapper does.
    fn begin_plainly(pool: &Pool<Self>)
    -> impl Future<Output = Result<Transaction<'static, Self>, sqlx::Error>> + Send;

    /// Writes an order, which carries the id of its event.
    fn insert_order(
        connection: &mut Self::Connection,
        table: &str,
        event_id: &str,
        number: i64,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// The ids of the events of all orders: what has been committed.
    fn event_ids(pool: &Pool<Self>, table: &str) -> impl Future<Output = Result<Vec<String>, sqlx::Error>> + Send;
}

/// The SQL that creates the shop's table. An error if it is there: the table may be somebody else's.
pub(crate) fn create_orders(table: &str) -> String {
    format!("create table {table} (event_id varchar(36) not null primary key, number bigint not null)")
}

/// Whether a table could not be created because of one with its name.
pub(crate) fn is_taken(error: &sqlx::Error) -> bool {
    // PostgreSQL may find out late, by the unique names of its catalogue.
    error
        .as_database_error()
        .is_some_and(|error| error.is_unique_violation() || error.message().contains("already exists"))
}

macro_rules! shop_database {
    ($database:ty, $begin:literal, $values:literal) => {
        impl ShopDatabase for $database {
            async fn begin_plainly(pool: &Pool<Self>) -> Result<Transaction<'static, Self>, sqlx::Error> {
                pool.begin_with($begin).await
            }

            async fn insert_order(
                connection: &mut Self::Connection,
                table: &str,
                event_id: &str,
                number: i64,
            ) -> Result<(), sqlx::Error> {
                let sql = format!(
                    concat!("insert into {} (event_id, number) values ", $values),
                    table
                );
                let query = sqlx::query(AssertSqlSafe(sql)).bind(event_id).bind(number);
                query.execute(connection).await.map(drop)
            }

            async fn event_ids(pool: &Pool<Self>, table: &str) -> Result<Vec<String>, sqlx::Error> {
                let rows = sqlx::query(AssertSqlSafe(format!("select event_id from {table}")));
                rows.fetch_all(pool)
                    .await?
                    .iter()
                    .map(|row| row.try_get(0))
                    .collect()
            }
        }
    };
}

// SQLite: a transaction that reads before it writes cannot wait for another writer, so it says at once that it will write.
shop_database!(Sqlite, "begin immediate", "(?, ?)");
shop_database!(Postgres, "begin", "($1, $2)");
shop_database!(MySql, "begin", "(?, ?)");
