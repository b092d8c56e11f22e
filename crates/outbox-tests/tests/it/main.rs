//! The library on every database, as one binary: linking is what takes the time.
#![allow(clippy::unwrap_used, reason = "a test is to panic")]

mod bad_input;
mod conformance;
mod explain;
mod hooks;
mod memory;
mod migrate;
mod mysql;
mod postgres;
mod publish;

/// Makes a module for a database, with one test for each of the functions named.
macro_rules! cases {
    ($name:ident, $database:ty: $($case:ident)*) => {
        mod $name {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$case::<$database>().await;
                }
            )*
        }
    };
}
pub(crate) use cases;
