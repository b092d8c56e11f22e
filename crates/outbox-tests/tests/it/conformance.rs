//! The suite that every store passes.

use outbox::testing::Memory;
use outbox_tests::On;
use sqlx::{MySql, Postgres, Sqlite};

outbox::store_conformance!(sqlite, super::On<super::Sqlite>);
outbox::store_conformance!(postgres, super::On<super::Postgres>);
outbox::store_conformance!(mariadb, super::On<super::MySql>);
outbox::store_conformance!(memory, super::On<super::Memory>);
