//! From a committed row to a delivered event, on every database. One binary: linking is what takes the time.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

mod acceptance;
mod heard;
mod listeners;
mod nodes;
mod regressions;
mod trouble;

/// Makes a module for a test, with one case for each database: `commit_and_fast_path::postgres` and so on.
macro_rules! on_every_database {
    ($($(#[$doc:meta])* $test:ident)*) => {$(
        $(#[$doc])*
        mod $test {
            $crate::cases!($test: sqlite = sqlx::Sqlite, postgres = sqlx::Postgres, mariadb = sqlx::MySql);
        }
    )*};
}
pub(crate) use on_every_database;

macro_rules! cases {
    ($test:ident: $($name:ident = $database:ty),*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            super::tests::$test::<$database>().await;
        }
    )*};
}
pub(crate) use cases;
