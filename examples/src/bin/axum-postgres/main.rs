//! A web service on PostgreSQL: an order is placed over HTTP, and its customer gets a mail, even if the service dies
//! right after the commit. Here it is wired; `routes.rs` has what it answers.
//!
//! ```sh
//! DATABASE_URL=postgres://app@localhost/shop LISTEN=127.0.0.1:8080 cargo run -p outbox-examples --bin axum-postgres
//! curl -X POST localhost:8080/orders -H 'content-type: application/json' -d '{"customer": "Ada", "total_cents": 4200}'
//! curl localhost:8080/mails
//! ```

mod routes;

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use outbox::{Condition, Delivery, Event, EventId, Handled, Outbox, TypedHandler};
use serde::{Deserialize, Serialize};
use sqlx::{PgPool, Postgres};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Mutex;

#[derive(Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", aggregate = "Order")]
struct OrderPlaced {
    #[event(key)]
    order_id: i64,
    customer: String,
}

/// Sends mails, or would. Kept by the event's id, so that an event that is delivered twice is one mail.
#[derive(Clone, Default)]
struct Mailer(Arc<Mutex<BTreeMap<EventId, String>>>);

impl TypedHandler<OrderPlaced> for Mailer {
    async fn handle(&self, order: OrderPlaced, delivery: Delivery) -> Handled {
        let mail = format!("Dear {}, we have your order {}.", order.customer, order.order_id);
        self.0.lock().await.insert(delivery.id().clone(), mail);
        Ok(())
    }
}

/// What every request can use.
#[derive(Clone)]
struct Shop {
    pool: PgPool,
    outbox: Outbox<Postgres>,
    mailer: Mailer,
    metrics: PrometheusHandle,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Before the outbox is built: it asks for its metrics once, and a recorder that comes later never hears of them.
    let metrics = PrometheusBuilder::new().install_recorder()?;
    tokio::spawn(keep_small(metrics.clone()));

    let url = std::env::var("DATABASE_URL").map_err(|_| "set DATABASE_URL to the URL of a PostgreSQL database")?;
    let pool = PgPool::connect(&url).await?;
    sqlx::query(
        "create table if not exists orders (
            id bigint generated always as identity primary key,
            customer text not null,
            total_cents bigint not null check (total_cents > 0)
        )",
    )
    .execute(&pool)
    .await?;

    let mailer = Mailer::default();
    // Any number of instances of this service share the work.
    let outbox = Outbox::multi_node(&pool)
        .migrate()
        .on::<OrderPlaced>(mailer.clone())
        .build()
        .await?;

    let routes = routes::routes(Shop {
        pool,
        outbox: outbox.clone(),
        mailer,
        metrics,
    });
    let address = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:0".to_owned());
    // Before the address is printed: whoever reads it may tell us to stop.
    let mut terminate = signal(SignalKind::terminate())?;
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);

    let stopped = outbox.clone();
    axum::serve(listener, routes)
        .with_graceful_shutdown(async move {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
                // A task of the outbox has panicked: events would wait forever.
                () = stopped.died() => {}
            }
        })
        .await?;

    // After the server, so that what the last requests have published is delivered, too.
    let shutdown = outbox.shutdown().await?;
    println!("stopped; drained: {}", shutdown.drained);
    if outbox.health().tasks.values().any(|task| *task == Condition::Dead) {
        // Whoever started us sees a failure, and starts us again.
        return Err("a task of the outbox has died".into());
    }
    Ok(())
}

/// Histograms keep every sample until somebody scrapes them, or this runs.
async fn keep_small(metrics: PrometheusHandle) {
    let mut every = tokio::time::interval(Duration::from_secs(5));
    loop {
        every.tick().await;
        metrics.run_upkeep();
    }
}
