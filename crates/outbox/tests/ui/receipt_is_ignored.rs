#![deny(unused_must_use)]

use outbox::{Error, Event, Outbox};
use sqlx::{Sqlite, Transaction};

async fn ignored(outbox: Outbox<Sqlite>, mut tx: Transaction<'static, Sqlite>, event: Event) -> Result<(), Error> {
    outbox.publish(&mut tx, event).await?;
    Ok(())
}

fn main() {}
