//! The whole of it: an order and its event in one transaction, delivered after the commit, and never without one.
//!
//! ```sh
//! cargo run -p outbox-examples --bin quickstart
//! ```

use std::error::Error;

use outbox::{Delivery, Event, Outbox};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{Sqlite, SqliteConnectOptions, SqliteJournalMode, SqlitePool};

/// What happened. It is stored as JSON, and comes back to the listener as this type.
#[derive(Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", aggregate = "Order")]
struct OrderPlaced {
    #[event(key)]
    order_id: i64,
    total_cents: i64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let options = SqliteConnectOptions::new()
        .filename(folder.path().join("shop.db"))
        .create_if_missing(true)
        // The outbox reads on connections of its own: with a write-ahead log, readers and the writer do not wait for
        // each other.
        .journal_mode(SqliteJournalMode::Wal);
    let pool = SqlitePool::connect_with(options).await?;
    sqlx::query("create table orders (id integer primary key, total_cents integer not null)")
        .execute(&pool)
        .await?;

    let outbox = Outbox::single_node(&pool)
        // Creates the outbox's own tables, beside yours.
        .migrate()
        // Delivery is at least once: after a crash the same event may come again, with the same id. A listener that
        // must not do its work twice remembers the ids.
        .on::<OrderPlaced>(|order: OrderPlaced, _: Delivery| async move {
            println!("delivered: order {} of {} cents", order.order_id, order.total_cents);
            Ok(())
        })
        .build()
        .await?;

    place_order(&outbox, &pool, 1, 4200, Customer::Pays).await?;
    place_order(&outbox, &pool, 2, 9900, Customer::ChangesTheirMind).await?;

    // Delivers what is queued, and then ends. Without it, the rest is delivered by the next start.
    let shutdown = outbox.shutdown().await?;
    println!("drained: {}", shutdown.drained);
    let orders: i64 = sqlx::query_scalar("select count(*) from orders")
        .fetch_one(&pool)
        .await?;
    println!("orders in the table: {orders}");
    Ok(())
}

enum Customer {
    Pays,
    ChangesTheirMind,
}

async fn place_order(
    outbox: &Outbox<Sqlite>,
    pool: &SqlitePool,
    order_id: i64,
    total_cents: i64,
    customer: Customer,
) -> Result<(), Box<dyn Error>> {
    let mut tx = outbox.begin(pool).await?;
    sqlx::query("insert into orders (id, total_cents) values (?, ?)")
        .bind(order_id)
        .bind(total_cents)
        .execute(&mut *tx)
        .await?;
    let order = OrderPlaced { order_id, total_cents };
    outbox.publish(&mut tx, &order).await?;
    match customer {
        // The order and its event, together ..
        Customer::Pays => tx.commit().await?,
        // .. or neither. Dropping the transaction does the same.
        Customer::ChangesTheirMind => tx.rollback().await?,
    }
    Ok(())
}
