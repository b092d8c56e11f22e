//! For tests: a database in memory, and the suite that every store passes.

pub mod conformance;

pub use crate::store::memory::{Memory, MemoryConnection, MemoryPool, MemorySavepoint, MemoryTransaction};
