use async_trait::async_trait;

use crate::listen::{Delivery, Failure};

/// Runs around every delivery: for audit, logging, context. Implement it with [`outbox::async_trait`](crate::async_trait).
///
/// The `before` hooks run in the order they were added, the `after` hooks in the reverse.
#[async_trait]
pub trait Interceptor: Send + Sync + 'static {
    /// Before the listeners.
    ///
    /// # Errors
    /// A failure counts as one of the listeners': they are not run.
    async fn before(&self, delivery: &Delivery) -> Result<(), Failure> {
        let _ = delivery;
        Ok(())
    }

    /// After the listeners, or after a `before` that failed; `failure` says what came of it, if not success. Runs for every
    /// delivery whose `before` hooks were begun. A panic is logged and otherwise without effect.
    async fn after(&self, delivery: &Delivery, failure: Option<&Failure>) {
        let _ = (delivery, failure);
    }
}
