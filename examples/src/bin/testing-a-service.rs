//! A service that is tested without a database: it is generic over the outbox's, which is SQLite in `main` and memory
//! in the tests below. They ask what was published, when it is due, and that a refusal publishes nothing.
//!
//! ```sh
//! cargo run -p outbox-examples --bin testing-a-service
//! cargo test -p outbox-examples --bin testing-a-service
//! ```

use std::future::Future;
use std::time::Duration;

use outbox::{Backend, Delivery, DomainEvent, Event, Outbox};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{Sqlite, SqliteConnection, SqlitePool};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Serialize, Deserialize, Event)]
struct Registered {
    name: String,
}

#[derive(Serialize, Deserialize, Event)]
struct ReminderDue {
    name: String,
}

#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("all seats are taken")]
    Full,
    #[error(transparent)]
    Event(#[from] outbox::EventError),
    #[error(transparent)]
    Outbox(#[from] outbox::Error),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

/// The business data: SQL in production, whatever a test needs in a test.
trait Seats<D: Backend>: Sync {
    /// Takes a seat in the caller's transaction, and says how many are taken then.
    fn take(&self, tx: &mut D::Connection, name: &str) -> impl Future<Output = Result<u64, Refused>> + Send;
}

/// The service: a workshop with a few seats.
struct Workshop<D: Backend, S> {
    outbox: Outbox<D>,
    pool: D::Pool,
    seats: S,
    capacity: u64,
}

impl<D: Backend, S: Seats<D>> Workshop<D, S> {
    /// Takes a seat, says so, and reminds a day later.
    async fn register(&self, name: &str) -> Result<(), Refused> {
        let name = name.to_owned();
        let mut tx = self.outbox.begin(&self.pool).await?;
        let taken = self.seats.take(&mut tx, &name).await?;
        let reminder = ReminderDue { name: name.clone() }.to_event()?;
        let reminder = reminder.to_builder().deliver_after(DAY).build()?;
        self.outbox.publish(&mut tx, &Registered { name }).await?;
        self.outbox.publish(&mut tx, reminder).await?;
        if taken > self.capacity {
            // Dropped, the transaction is rolled back, and with it what was published.
            return Err(Refused::Full);
        }
        Ok(tx.commit().await?)
    }
}

/// The seats in production.
struct SeatTable;

impl Seats<Sqlite> for SeatTable {
    async fn take(&self, tx: &mut SqliteConnection, name: &str) -> Result<u64, Refused> {
        let insert = sqlx::query("insert into seats (name) values (?)").bind(name);
        insert.execute(&mut *tx).await?;
        let count = sqlx::query_scalar("select count(*) from seats");
        Ok(count.fetch_one(tx).await?)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite://{}?mode=rwc", folder.path().join("workshop.db").display());
    let pool = SqlitePool::connect(&url).await?;
    sqlx::query("create table seats (name text primary key)")
        .execute(&pool)
        .await?;
    let outbox = Outbox::single_node(&pool)
        .migrate()
        .on::<Registered>(async |seat: Registered, _: Delivery| {
            println!("delivered: {} has a seat", seat.name);
            Ok(())
        })
        .build()
        .await?;
    let workshop = Workshop {
        outbox: outbox.clone(),
        pool,
        seats: SeatTable,
        capacity: 1,
    };
    workshop.register("Ada").await?;
    if let Err(refused) = workshop.register("Grace").await {
        println!("refused: {refused}");
    }
    outbox.shutdown().await?;
    let waiting = outbox.admin().stats(100).await?;
    for count in waiting.counts {
        println!("waiting for its day: {} {}", count.count, count.event_type);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use outbox::Failure;
    use outbox::store::{Filter, Page};
    use outbox::testing::{Memory, MemoryConnection, MemoryPool};
    use tokio::sync::mpsc;

    use super::*;

    type TestResult = Result<(), Box<dyn std::error::Error>>;

    /// Counts, and keeps nothing.
    #[derive(Default)]
    struct Turnstile(AtomicU64);

    impl Seats<Memory> for Turnstile {
        async fn take(&self, _: &mut MemoryConnection, _: &str) -> Result<u64, Refused> {
            Ok(self.0.fetch_add(1, Ordering::Relaxed) + 1)
        }
    }

    fn workshop(outbox: &Outbox<Memory>, pool: &MemoryPool, capacity: u64) -> Workshop<Memory, Turnstile> {
        Workshop {
            outbox: outbox.clone(),
            pool: pool.clone(),
            seats: Turnstile::default(),
            capacity,
        }
    }

    async fn published(outbox: &Outbox<Memory>) -> Result<Vec<Event>, Box<dyn std::error::Error>> {
        let rows = outbox
            .admin()
            .list(&Filter::all(), Page { after: 0, limit: 100 })
            .await?;
        Ok(rows.into_iter().map(|row| row.event).collect::<Result<_, _>>()?)
    }

    #[tokio::test]
    async fn a_registration_is_published_with_its_reminder() -> TestResult {
        let pool = MemoryPool::new();
        // Only writes: nothing is delivered, and the test reads what would be.
        let outbox = Outbox::writer_only(&pool).build().await?;
        workshop(&outbox, &pool, 1).register("Ada").await?;
        let events = published(&outbox).await?;
        assert_eq!(events.len(), 2);
        assert_eq!(events[0].decode::<Registered>()?.name, "Ada");
        assert_eq!(events[1].decode::<ReminderDue>()?.name, "Ada");
        Ok(())
    }

    #[tokio::test]
    async fn a_refused_registration_publishes_nothing() -> TestResult {
        let pool = MemoryPool::new();
        let outbox = Outbox::writer_only(&pool).build().await?;
        let refused = workshop(&outbox, &pool, 0).register("Ada").await;
        assert!(matches!(refused, Err(Refused::Full)));
        assert_eq!(published(&outbox).await?, []);
        Ok(())
    }

    #[tokio::test]
    async fn a_reminder_comes_after_a_day() -> TestResult {
        let pool = MemoryPool::new();
        let (sender, mut reminders) = mpsc::unbounded_channel();
        let outbox = Outbox::single_node(&pool)
            // Moving the clock wakes nobody: the poller has to look by itself, and often.
            .poll_interval(Duration::from_millis(5))
            .on::<Registered>(async |_: Registered, _: Delivery| Ok(()))
            .on::<ReminderDue>(move |reminder: ReminderDue, _: Delivery| {
                std::future::ready(sender.send(reminder.name).map_err(Failure::retry))
            })
            .build()
            .await?;
        let workshop = workshop(&outbox, &pool, 2);

        workshop.register("Ada").await?;
        pool.advance(DAY / 2);
        workshop.register("Grace").await?;
        pool.advance(DAY / 2);
        assert_eq!(reminders.recv().await.as_deref(), Some("Ada"));
        assert!(reminders.is_empty(), "half a day is left for Grace");
        pool.advance(DAY / 2);
        assert_eq!(reminders.recv().await.as_deref(), Some("Grace"));
        outbox.shutdown().await?;
        Ok(())
    }
}
