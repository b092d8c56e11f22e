//! What only PostgreSQL does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use outbox::store::Filter;
use outbox::{Error, Event, HookError, Outbox, WriterHook};
use outbox_tests::On;
use sqlx::Postgres;

#[derive(Clone, Default)]
struct Fates {
    committed: Arc<AtomicUsize>,
    rolled_back: Arc<AtomicUsize>,
}

impl WriterHook for Fates {
    fn after_commit(&self, events: &[Event]) -> Result<(), HookError> {
        self.committed.fetch_add(events.len(), Ordering::SeqCst);
        Ok(())
    }

    fn after_rollback(&self, events: &[Event]) -> Result<(), HookError> {
        self.rolled_back.fetch_add(events.len(), Ordering::SeqCst);
        Ok(())
    }
}

/// PostgreSQL answers the COMMIT of a failed transaction with a quiet ROLLBACK. We do not take it for a success.
#[tokio::test]
async fn commit_after_an_ignored_error_is_no_commit() {
    let on = On::<Postgres>::open("ignored_error").await;
    let fates = Fates::default();
    let outbox = Outbox::writer_only(&on.pool).hook(fates.clone()).build().await.unwrap();
    let event = Event::json("OrderPlaced", "{}").unwrap();

    let mut tx = outbox.begin(&on.pool).await.unwrap();
    outbox.publish(&mut tx, &event).await.unwrap();
    let ignored = sqlx::query("select 1 / 0").execute(&mut *tx).await;
    assert!(ignored.is_err());
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, Error::NotCommitted { .. }), "{error}");
    assert!(error.to_string().starts_with("nothing was committed"), "{error}");
    assert_eq!(outbox.store().count(&Filter::all(), 10).await.unwrap(), 0);
    assert_eq!(fates.committed.load(Ordering::SeqCst), 0);
    assert_eq!(fates.rolled_back.load(Ordering::SeqCst), 1);

    // The connection is fit for the next transaction.
    for _ in 0..20 {
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        outbox
            .publish(&mut tx, Event::json("OrderPlaced", "{}").unwrap())
            .await
            .unwrap();
        tx.commit().await.unwrap();
    }
    assert_eq!(outbox.store().count(&Filter::all(), 100).await.unwrap(), 20);
    let idle: i64 = sqlx::query_scalar(
        "select count(*) from pg_stat_activity
         where datname = current_database() and state like 'idle in transaction%'",
    )
    .fetch_one(&on.pool)
    .await
    .unwrap();
    assert_eq!(idle, 0, "no transaction is left open");
}

struct Suppresses;

impl WriterHook for Suppresses {
    fn before_write(&self, _events: Vec<Event>) -> Result<Vec<Event>, HookError> {
        Ok(Vec::new())
    }
}

/// A publish that writes nothing runs no statement, and so does not show that the transaction is still good.
#[tokio::test]
async fn suppressed_event_does_not_hide_an_ignored_error() {
    let on = On::<Postgres>::open("ignored_error_suppressed").await;
    let outbox = Outbox::writer_only(&on.pool).hook(Suppresses).build().await.unwrap();
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    let ignored = sqlx::query("select 1 / 0").execute(&mut *tx).await;
    assert!(ignored.is_err());
    let event = Event::json("OrderPlaced", "{}").unwrap();
    outbox.publish(&mut tx, event).await.unwrap();
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, Error::NotCommitted { .. }), "{error}");
}

/// An event that the database refuses is a failed statement like any other.
#[tokio::test]
async fn commit_after_an_event_that_was_refused_is_no_commit() {
    let on = On::<Postgres>::open("refused_event").await;
    let outbox = Outbox::writer_only(&on.pool).build().await.unwrap();
    let event = Event::json("OrderPlaced", "{}").unwrap();
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    outbox.publish(&mut tx, &event).await.unwrap();
    let refused = outbox.publish(&mut tx, &event).await;
    assert!(matches!(refused, Err(Error::DuplicateEventId { .. })), "{refused:?}");
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, Error::NotCommitted { .. }), "{error}");
    assert_eq!(outbox.store().count(&Filter::all(), 10).await.unwrap(), 0);
}

/// A deferred constraint fails at the commit itself.
#[tokio::test]
async fn commit_that_the_database_refuses_is_no_commit() {
    let on = On::<Postgres>::open("refused_commit").await;
    let fates = Fates::default();
    let outbox = Outbox::writer_only(&on.pool).hook(fates.clone()).build().await.unwrap();
    sqlx::query("create table orders (id int primary key, parent int references orders deferrable initially deferred)")
        .execute(&on.pool)
        .await
        .unwrap();
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    outbox
        .publish(&mut tx, Event::json("OrderPlaced", "{}").unwrap())
        .await
        .unwrap();
    sqlx::query("insert into orders values (1, 99)")
        .execute(&mut *tx)
        .await
        .unwrap();
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, Error::NotCommitted { .. }), "{error}");
    assert_eq!(outbox.store().count(&Filter::all(), 10).await.unwrap(), 0);
    assert_eq!(fates.rolled_back.load(Ordering::SeqCst), 1);
}

/// The server ends the connection before the COMMIT: nobody can say what became of it, and nobody pretends to.
#[tokio::test]
async fn commit_on_a_lost_connection_has_an_unknown_outcome() {
    let on = On::<Postgres>::open("lost_connection").await;
    let fates = Fates::default();
    let outbox = Outbox::writer_only(&on.pool).hook(fates.clone()).build().await.unwrap();
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    outbox
        .publish(&mut tx, Event::json("OrderPlaced", "{}").unwrap())
        .await
        .unwrap();
    let backend: i32 = sqlx::query_scalar("select pg_backend_pid()")
        .fetch_one(&mut *tx)
        .await
        .unwrap();
    sqlx::query("select pg_terminate_backend($1)")
        .bind(backend)
        .execute(&on.pool)
        .await
        .unwrap();
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, Error::CommitOutcomeUnknown { .. }), "{error:?}");
    assert_eq!(outbox.store().count(&Filter::all(), 10).await.unwrap(), 0);
    assert_eq!(fates.committed.load(Ordering::SeqCst), 0);
    assert_eq!(fates.rolled_back.load(Ordering::SeqCst), 0);
}

/// The time zone of a session is the application's business.
#[tokio::test]
async fn time_zone_of_the_session_does_not_matter() {
    let on = On::<Postgres>::open("time_zone").await;
    let outbox = Outbox::writer_only(&on.pool).build().await.unwrap();
    let occurred_at = chrono::DateTime::from_timestamp_micros(1_700_000_000_123_456).unwrap();
    let event = Event::builder("Timed")
        .occurred_at(occurred_at)
        .json("{}")
        .build()
        .unwrap();
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    sqlx::query("set local time zone 'Asia/Kolkata'")
        .execute(&mut *tx)
        .await
        .unwrap();
    outbox.publish(&mut tx, &event).await.unwrap();
    tx.commit().await.unwrap();
    let stored = outbox.store().fetch(event.id()).await.unwrap().unwrap();
    assert_eq!(stored.event.unwrap().occurred_at(), occurred_at);
    assert!((chrono::Utc::now() - stored.available_at).abs() < chrono::Duration::minutes(5));
}

/// What is delivered first does not wait until its node has connected: to read, and twice to write.
#[tokio::test]
async fn a_node_is_connected_when_it_is_built() {
    let on = On::<Postgres>::open("connected").await;
    let outbox = Outbox::single_node(&on.pool)
        .listen("OrderPlaced", |_: outbox::Delivery| async { Ok(()) })
        .build()
        .await
        .unwrap();
    let connected: i64 = sqlx::query_scalar(
        "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'outbox'",
    )
    .fetch_one(&on.pool)
    .await
    .unwrap();
    assert!(connected >= 3, "{connected}");
    outbox.shutdown().await.unwrap();
}
