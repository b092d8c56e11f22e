//! What the service answers.

use std::error::Error;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use outbox::Health;
use serde::Deserialize;

use crate::{OrderPlaced, Shop};

pub(crate) fn routes(shop: Shop) -> Router {
    Router::new()
        .route("/orders", post(place_order))
        .route("/mails", get(mails))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .with_state(shop)
}

#[derive(Deserialize)]
struct NewOrder {
    customer: String,
    total_cents: i64,
}

/// Places an order. The answer waits for the commit, and not for the mail.
async fn place_order(
    State(shop): State<Shop>,
    Json(new): Json<NewOrder>,
) -> Result<(StatusCode, Json<OrderPlaced>), Failed> {
    let order = shop
        .outbox
        .transaction(&shop.pool, async |tx| {
            let insert = "insert into orders (customer, total_cents) values ($1, $2) returning id";
            let order_id = sqlx::query_scalar(insert)
                .bind(&new.customer)
                .bind(new.total_cents)
                .fetch_one(&mut **tx)
                .await?;
            let order = OrderPlaced {
                order_id,
                customer: new.customer.clone(),
            };
            shop.outbox.publish(tx, &order).await?;
            Ok::<_, Failed>(order)
        })
        .await?;
    Ok((StatusCode::CREATED, Json(order)))
}

async fn mails(State(shop): State<Shop>) -> Json<Vec<String>> {
    Json(shop.mailer.0.lock().await.values().cloned().collect())
}

/// For the load balancer: 503 when the delivery does not turn, for instance because its database is gone.
async fn ready(State(shop): State<Shop>) -> (StatusCode, Json<Health>) {
    let health = shop.outbox.health();
    let status = if health.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(health))
}

async fn metrics(State(shop): State<Shop>) -> String {
    shop.metrics.render()
}

/// What went wrong: the log says it, the client learns only that something did.
struct Failed(Box<dyn Error + Send + Sync>);

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        eprintln!("{}", self.0);
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}
