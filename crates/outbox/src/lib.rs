//! The transactional outbox: an event that is written in your transaction is delivered at least once after the commit.
#![doc = include_str!("../README.md")]
// Without a database only the event model and the store in memory are of use; the code for the others is still checked.
#![cfg_attr(
    not(any(feature = "sqlite", feature = "postgres", feature = "mysql")),
    allow(dead_code, unused_imports, unused_macros)
)]

mod admin;
mod alarm;
mod composite;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod database;
mod dispatch;
mod engine;
mod error;
mod event;
#[cfg(feature = "failpoints")]
pub mod failpoint;
#[cfg(not(feature = "failpoints"))]
mod failpoint;
mod gauge;
mod hot;
mod intercept;
mod lane;
mod lease;
mod listen;
pub mod migrate;
mod node;
mod notify;
mod poll;
mod purge;
pub mod retry;
mod service;
mod settle;
pub mod store;
mod table;
pub mod telemetry;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod trace;
mod write;

pub use admin::Admin;
pub use async_trait::async_trait;
pub use composite::{Builder, Ordered, Outbox, Unordered, WriterBuilder};
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub use database::{AnyPool, Database};
pub use engine::Shutdown;
pub use error::Error;
pub use event::{
    AggregateType, DomainEvent, Due, Event, EventBuilder, EventError, EventId, EventType, GLOBAL_AGGREGATE, Headers,
    IntoEvent, Payload, RESERVED_PREFIX, Undecodable,
};
pub use intercept::Interceptor;
pub use listen::{Delivery, DuplicateListener, Failure, Handled, Handler, Listener, Path, Subscription, TypedHandler};
pub use outbox_derive::{AggregateType, Event, EventType};
pub use purge::PurgePolicy;
pub use service::{Condition, Health};
pub use table::{DEFAULT_TABLE, TableName, TableNameError};
pub use write::{Backend, HookError, PoolOf, Published, Receipt, Savepoint, Transaction, TxHandle, WriterHook};

/// Which order is promised, to whom, and what a producer must do for it.
#[doc = include_str!("../docs/order.md")]
pub mod order {}

/// The code in the README of the repository compiles and runs.
#[cfg(all(doctest, feature = "sqlite", feature = "postgres"))]
#[doc = include_str!("../../../README.md")]
struct Readme;
