//! From a pool whose database is known only at run time to code that is generic over it.

/// Runs `$body` with `$pool` as the pool that it really is.
macro_rules! with_pool {
    ($any:expr, $pool:ident => $body:expr) => {
        match $any {
            outbox::AnyPool::Sqlite($pool) => $body,
            outbox::AnyPool::Postgres($pool) => $body,
            outbox::AnyPool::MySql($pool) => $body,
            other => unreachable!("this command knows every database of the library, not {other:?}"),
        }
    };
}
pub(crate) use with_pool;

/// Whether every process would have a database of its own.
pub(crate) fn is_in_memory(url: &str) -> bool {
    url.contains(":memory:") || url.contains("mode=memory")
}
