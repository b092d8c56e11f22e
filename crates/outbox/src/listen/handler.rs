use std::future::Future;
use std::marker::PhantomData;

use async_trait::async_trait;

use super::{Delivery, Failure, Handled, Listener};
use crate::event::DomainEvent;

/// Handles one event: a closure, `|delivery: Delivery| async move { .. Ok(()) }`, which clones what it needs into the
/// `async move`; or a type of yours that holds what it needs.
pub trait Handler: Send + Sync + 'static {
    /// What it does.
    fn handle(&self, delivery: Delivery) -> impl Future<Output = Handled> + Send;
}

impl<F, Fut> Handler for F
where
    F: Fn(Delivery) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Handled> + Send,
{
    fn handle(&self, delivery: Delivery) -> impl Future<Output = Handled> + Send {
        self(delivery)
    }
}

/// Handles one typed event: a closure, `|order: OrderPlaced, delivery: Delivery| async move { .. Ok(()) }`, or a type of
/// yours.
pub trait TypedHandler<T>: Send + Sync + 'static {
    /// What it does.
    fn handle(&self, event: T, delivery: Delivery) -> impl Future<Output = Handled> + Send;
}

impl<T, F, Fut> TypedHandler<T> for F
where
    F: Fn(T, Delivery) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Handled> + Send,
{
    fn handle(&self, event: T, delivery: Delivery) -> impl Future<Output = Handled> + Send {
        self(event, delivery)
    }
}

/// A [`Handler`] as a [`Listener`].
pub(crate) struct OneByOne<H>(pub(crate) H);

#[async_trait]
impl<H: Handler> Listener for OneByOne<H> {
    async fn deliver(&self, batch: &[Delivery]) -> Vec<Handled> {
        let mut answers = Vec::with_capacity(batch.len());
        for delivery in batch {
            answers.push(self.0.handle(delivery.clone()).await);
        }
        answers
    }
}

/// A [`TypedHandler`] as a [`Listener`]: what cannot be decoded is dead at once.
pub(crate) struct Typed<T, H>(pub(crate) H, pub(crate) PhantomData<fn() -> T>);

#[async_trait]
impl<T: DomainEvent, H: TypedHandler<T>> Listener for Typed<T, H> {
    async fn deliver(&self, batch: &[Delivery]) -> Vec<Handled> {
        let mut answers = Vec::with_capacity(batch.len());
        for delivery in batch {
            answers.push(match delivery.decode::<T>() {
                Ok(event) => self.0.handle(event, delivery.clone()).await,
                Err(undecodable) => Err(Failure::permanent(undecodable)),
            });
        }
        answers
    }
}
