//! A database of its own, on a real server, for each test.
//!
//! ```no_run
//! # async fn example() {
//! use outbox_testbed::Server;
//!
//! for server in Server::ALL {
//!     let database = server.database("rolled_back_event_is_never_delivered").await;
//!     // connect to database.url() ..
//! } // .. and the database is gone, unless the test failed
//! # }
//! ```
//!
//! The servers are those of the environment variables `OUTBOX_TEST_POSTGRES_URL` and `OUTBOX_TEST_MARIADB_URL`;
//! without them, `scripts/services` is run, which installs and starts what is missing. So a plain `cargo test` works.
//! A server that cannot be had fails the test: nothing is ever skipped.

mod database;
mod eventually;
mod server;

pub use database::TestDatabase;
pub use eventually::eventually;
pub use server::Server;
