//! The transactional outbox: an event that is written in your transaction is delivered at least once after the commit.
#![doc = include_str!("../README.md")]

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod database;
mod error;
mod event;
pub mod migrate;

mod composite;
pub mod store;
mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod write;

pub use composite::{Builder, Outbox};
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub use database::{AnyPool, Database};
pub use error::Error;
pub use event::{
    AggregateType, DomainEvent, Due, Event, EventBuilder, EventError, EventId, EventType, GLOBAL_AGGREGATE, Headers,
    IntoEvent, Payload, RESERVED_PREFIX, Undecodable,
};
pub use outbox_derive::{AggregateType, Event, EventType};
pub use table::{DEFAULT_TABLE, TableName, TableNameError};
pub use write::{Backend, HookError, PoolOf, Published, Receipt, Savepoint, Transaction, TxHandle, WriterHook};

/// The code in the README of the repository compiles and runs.
#[cfg(all(doctest, feature = "sqlite", feature = "postgres"))]
#[doc = include_str!("../../../README.md")]
struct Readme;
