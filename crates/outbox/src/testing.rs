//! For tests: a database in memory, the suite that every store passes, and a checker that tells from a log of facts
//! whether a service has lost, invented or reordered anything.

pub mod checker;
pub mod conformance;
pub mod facts;

pub use crate::store::memory::{Memory, MemoryConnection, MemoryPool, MemorySavepoint, MemoryTransaction};
