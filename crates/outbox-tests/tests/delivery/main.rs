//! From a committed row to a delivered event, on every database. One binary: linking is what takes the time.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

mod acceptance;
mod heard;
mod listeners;
mod nodes;
mod order;
mod regressions;
mod trouble;
mod way;

/// Tests that start several processes, or measure, take turns: they would starve each other.
pub(crate) async fn one_at_a_time() -> tokio::sync::MutexGuard<'static, ()> {
    static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    TURN.lock().await
}

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

/// The same, with rows claimed and with lanes: `commit_and_fast_path::postgres`, `commit_and_fast_path::lanes::postgres`.
macro_rules! on_every_database_both_ways {
    ($($(#[$doc:meta])* $test:ident)*) => {$(
        $(#[$doc])*
        mod $test {
            $crate::cases_in! { $crate::way::RowClaims, super::tests::$test }

            mod lanes {
                $crate::cases_in! { $crate::way::Lanes, super::super::tests::$test }
            }
        }
    )*};
}
pub(crate) use on_every_database_both_ways;

macro_rules! cases_in {
    ($way:ty, $($test:tt)*) => {
        $crate::case_in!(sqlite = sqlx::Sqlite, $way, $($test)*);
        $crate::case_in!(postgres = sqlx::Postgres, $way, $($test)*);
        $crate::case_in!(mariadb = sqlx::MySql, $way, $($test)*);
    };
}
pub(crate) use cases_in;

macro_rules! case_in {
    ($name:ident = $database:ty, $way:ty, $($test:tt)*) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            $($test)*::<$database, $way>().await;
        }
    };
}
pub(crate) use case_in;
