use outbox::{Event, Outbox};
use sqlx::{Sqlite, SqlitePool};

async fn publish(outbox: Outbox<Sqlite>, pool: SqlitePool, event: Event) {
    let _ = outbox.publish(&pool, event).await;
}

fn main() {}
