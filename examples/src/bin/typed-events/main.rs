//! Types for events: names in one place, a payload that changed its shape, several listeners for one event, a retry
//! policy per type, and an interceptor that sees every delivery. The events are in `events.rs`.
//!
//! ```sh
//! cargo run -p outbox-examples --bin typed-events
//! ```

mod events;

use std::error::Error;
use std::time::Duration;

use async_trait::async_trait;
use outbox::retry::{Fixed, NoRetry};
use outbox::store::{Filter, Page};
use outbox::{Delivery, DomainEvent, Event, Failure, Handled, Interceptor, Outbox, Subscription};
use sqlx::{Sqlite, SqlitePool};

use events::{Happened, OrderPlaced, OrderShipped, Thing};

/// The request that caused an event travels with it, in a header.
const CORRELATION_ID: &str = "correlation-id";

/// Logs every delivery with the id of the request that caused it.
struct Log;

#[async_trait]
impl Interceptor for Log {
    async fn before(&self, delivery: &Delivery) -> Result<(), Failure> {
        let request = delivery.headers().get(CORRELATION_ID).unwrap_or("unknown");
        let (what, attempt) = (delivery.event_type(), delivery.attempt);
        println!("[{request}] {what}, attempt {attempt}");
        Ok(())
    }

    async fn after(&self, delivery: &Delivery, failure: Option<&Failure>) {
        let request = delivery.headers().get(CORRELATION_ID).unwrap_or("unknown");
        match failure {
            None => println!("[{request}] ok"),
            Some(failure) => println!("[{request}] {failure}"),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite://{}?mode=rwc", folder.path().join("shop.db").display());
    let pool = SqlitePool::connect(&url).await?;

    let outbox = Outbox::single_node(&pool)
        .migrate()
        .interceptor(Log)
        // Two listeners for one event have names. They run in this order; who has succeeded is remembered by name, and
        // is not run again when the other has to be.
        .subscribe(Subscription::on::<OrderPlaced>(mail).named("mail"))
        .subscribe(Subscription::on::<OrderPlaced>(stock).named("stock"))
        .on::<OrderShipped>(async |_: OrderShipped, _: Delivery| Err(Failure::retry("no such parcel")))
        .retry_for(Happened::OrderPlaced, Fixed::new(Duration::from_millis(20), 3))
        .retry_for(Happened::OrderShipped, NoRetry)
        .build()
        .await?;

    // As the release before this one would have written it: the payload of version 1, and no word of a version.
    let old = Event::builder(Happened::OrderPlaced)
        .aggregate(Thing::Order, "1")
        .json(r#"{"order_id": 1, "total": 30}"#);
    let placed = OrderPlaced {
        order_id: 2,
        total_cents: 4250,
    };
    let shipped = OrderShipped { order_id: 2 };
    let events = [old, placed.to_event()?.to_builder(), shipped.to_event()?.to_builder()];
    for (request, event) in ["first", "second", "third"].into_iter().zip(events) {
        let event = event.header(CORRELATION_ID, request).build()?;
        let mut tx = outbox.begin(&pool).await?;
        outbox.publish(&mut tx, event).await?;
        tx.commit().await?;
        // Only so that this program's output is always the same: a service does not wait.
        while is_pending(&outbox).await? {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    outbox.shutdown().await?;

    for dead in outbox
        .admin()
        .list(&Filter::dead(), Page { after: 0, limit: 10 })
        .await?
    {
        let (event, error) = (dead.event?, dead.last_error.unwrap_or_default());
        println!(
            "dead: {} of order {}: {error}",
            event.event_type(),
            event.aggregate_id().unwrap_or("?")
        );
    }
    Ok(())
}

async fn mail(order: OrderPlaced, _: Delivery) -> Handled {
    println!("  mail: order {} of {} cents", order.order_id, order.total_cents);
    Ok(())
}

async fn stock(order: OrderPlaced, delivery: Delivery) -> Handled {
    if order.order_id == 1 && delivery.attempt == 1 {
        return Err(Failure::retry("the warehouse does not answer"));
    }
    println!("  stock: order {} reserved", order.order_id);
    Ok(())
}

async fn is_pending(outbox: &Outbox<Sqlite>) -> Result<bool, outbox::Error> {
    let stats = outbox.admin().stats(1).await?;
    Ok(stats.counts.iter().any(|count| count.status.is_pending()))
}
