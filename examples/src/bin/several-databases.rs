//! Two databases, each with an outbox of its own: an event of one is handled by a listener that writes into the other,
//! and publishes there. No transaction spans both, and none has to.
//!
//! ```sh
//! cargo run -p outbox-examples --bin several-databases
//! ```

use std::error::Error;
use std::path::Path;

use outbox::{Delivery, Event, Handled, Outbox, TypedHandler};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{Sqlite, SqliteConnectOptions, SqliteJournalMode, SqlitePool};

/// Written into the database of the orders.
#[derive(Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", aggregate = "Order")]
struct OrderPlaced {
    #[event(key)]
    order_id: i64,
    total_cents: i64,
}

/// Written into the database of the invoices.
#[derive(Serialize, Deserialize, Event)]
#[event(type = "InvoiceIssued", aggregate = "Invoice")]
struct InvoiceIssued {
    #[event(key)]
    order_id: i64,
}

/// Listens to the outbox of the orders, and writes to the other one.
struct Billing {
    pool: SqlitePool,
    outbox: Outbox<Sqlite>,
}

impl TypedHandler<OrderPlaced> for Billing {
    async fn handle(&self, order: OrderPlaced, _: Delivery) -> Handled {
        let mut tx = self.outbox.begin(&self.pool).await?;
        // The orders learn of our commit only after it: if this process dies in between, the same order comes again.
        // The primary key tells, so there is one invoice, and one event of it, however often it comes.
        let invoice = "insert into invoices (order_id, total_cents) values (?, ?) on conflict do nothing";
        let inserted = sqlx::query(invoice)
            .bind(order.order_id)
            .bind(order.total_cents)
            .execute(&mut *tx)
            .await?;
        if inserted.rows_affected() == 0 {
            println!("billing: order {} has its invoice already", order.order_id);
            return Ok(());
        }
        let order_id = order.order_id;
        self.outbox.publish(&mut tx, &InvoiceIssued { order_id }).await?;
        // An error here, or above, is a failed attempt: the order is delivered again later.
        tx.commit().await?;
        println!("billing: invoice for order {order_id}");
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let orders = open(&folder.path().join("orders.db")).await?;
    sqlx::query("create table orders (id integer primary key, total_cents integer not null)")
        .execute(&orders)
        .await?;
    let billing = open(&folder.path().join("billing.db")).await?;
    sqlx::query("create table invoices (order_id integer primary key, total_cents integer not null)")
        .execute(&billing)
        .await?;

    // The last in the chain is built first, since the one before it writes to it.
    let billing_outbox = Outbox::single_node(&billing)
        .migrate()
        .on::<InvoiceIssued>(|invoice: InvoiceIssued, _: Delivery| async move {
            println!("post office: letter about order {}", invoice.order_id);
            Ok(())
        })
        .build()
        .await?;
    let orders_outbox = Outbox::single_node(&orders)
        .migrate()
        // One at a time, so that the output of this program is always the same.
        .workers(1)
        .on::<OrderPlaced>(Billing {
            pool: billing.clone(),
            outbox: billing_outbox.clone(),
        })
        .build()
        .await?;

    let mut tx = orders_outbox.begin(&orders).await?;
    sqlx::query("insert into orders (id, total_cents) values (1, 4200)")
        .execute(&mut *tx)
        .await?;
    let (order_id, total_cents) = (1, 4200);
    let order = OrderPlaced { order_id, total_cents };
    // The second stands for a delivery that is repeated after a crash.
    orders_outbox.publish_all(&mut tx, [&order, &order]).await?;
    tx.commit().await?;

    // From the first in the chain to the last: what one hands on while it drains, the next still delivers.
    orders_outbox.shutdown().await?;
    billing_outbox.shutdown().await?;
    let invoices: i64 = sqlx::query_scalar("select count(*) from invoices")
        .fetch_one(&billing)
        .await?;
    println!("invoices in the table: {invoices}");
    Ok(())
}

async fn open(file: &Path) -> Result<SqlitePool, sqlx::Error> {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal);
    SqlitePool::connect_with(options).await
}
