//! What cannot be: a typed error that says what to do, and nothing written.

use outbox::store::Filter;
use outbox::{Backend, Error, Event, EventError, Outbox, TxHandle};
use outbox_tests::{Database, On, SqlDatabase, script};

macro_rules! on_every_database {
    ($($name:ident: $database:ty),*) => {$(
        crate::cases! { $name, $database:
            duplicate_id_in_the_table_is_refused
            duplicate_id_in_the_transaction_is_refused
            duplicate_id_in_the_batch_is_refused
            batch_with_a_taken_id_writes_nothing
            event_that_breaks_a_rule_is_refused
            table_name_that_is_no_identifier_is_refused
        }
    )*};
}

on_every_database!(sqlite: sqlx::Sqlite, postgres: sqlx::Postgres, mariadb: sqlx::MySql, memory: outbox::testing::Memory);

mod sql {
    use super::{
        connection_outside_a_transaction_is_refused, missing_schema_is_refused, outdated_schema_is_refused,
        table_dropped_later_is_a_missing_schema,
    };

    macro_rules! on_every_server {
        ($($name:ident: $database:ty),*) => {$(
            crate::cases! { $name, $database:
                connection_outside_a_transaction_is_refused
                missing_schema_is_refused
                outdated_schema_is_refused
                table_dropped_later_is_a_missing_schema
            }
        )*};
    }

    on_every_server!(sqlite: sqlx::Sqlite, postgres: sqlx::Postgres, mariadb: sqlx::MySql);
}

fn event() -> Event {
    Event::json("OrderPlaced", "{}").unwrap()
}

async fn opened<D: Database>(test: &str) -> (On<D>, Outbox<D>) {
    let on = On::<D>::open(test).await;
    let outbox = Outbox::writer_only(&on.pool).build().await.unwrap();
    (on, outbox)
}

async fn rows<D: Backend>(outbox: &Outbox<D>) -> u64 {
    outbox.store().count(&Filter::all(), 10_000).await.unwrap()
}

async fn duplicate_id_in_the_table_is_refused<D: Database>() {
    let (on, outbox) = opened::<D>("duplicate_in_table").await;
    let event = event();
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    outbox.publish(&mut tx, &event).await.unwrap();
    tx.commit().await.unwrap();

    let mut tx = outbox.begin(&on.pool).await.unwrap();
    let error = outbox.publish(&mut tx, &event).await.unwrap_err();
    assert!(
        matches!(&error, Error::DuplicateEventId { id } if id == event.id()),
        "{error}"
    );
    let message = format!(
        "an event with the id {} is already in the outbox: every event needs an id of its own",
        event.id()
    );
    assert_eq!(error.to_string(), message);
    tx.rollback().await.unwrap();
    assert_eq!(rows(&outbox).await, 1);
}

async fn duplicate_id_in_the_transaction_is_refused<D: Database>() {
    let (on, outbox) = opened::<D>("duplicate_in_tx").await;
    let event = event();
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    outbox.publish(&mut tx, &event).await.unwrap();
    let error = outbox.publish(&mut tx, &event).await.unwrap_err();
    assert!(matches!(error, Error::DuplicateEventId { .. }), "{error}");
    drop(tx);
    assert_eq!(rows(&outbox).await, 0);
}

async fn duplicate_id_in_the_batch_is_refused<D: Database>() {
    let (on, outbox) = opened::<D>("duplicate_in_batch").await;
    let (one, other) = (event(), event());
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    let error = outbox.publish_all(&mut tx, [&one, &other, &one]).await.unwrap_err();
    assert!(
        matches!(&error, Error::DuplicateEventId { id } if id == one.id()),
        "{error}"
    );
    // Found before anything was sent: the transaction is as good as before.
    outbox.publish(&mut tx, &one).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(rows(&outbox).await, 1);
}

async fn batch_with_a_taken_id_writes_nothing<D: Database>() {
    let (on, outbox) = opened::<D>("batch_with_taken_id").await;
    let taken = event();
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    outbox.publish(&mut tx, &taken).await.unwrap();
    tx.commit().await.unwrap();
    let mut batch: Vec<_> = (0..1_200).map(|_| event()).collect();
    batch[699] = taken;

    let mut tx = outbox.begin(&on.pool).await.unwrap();
    let error = outbox.publish_all(&mut tx, &batch).await.unwrap_err();
    assert!(matches!(error, Error::DuplicateEventIdInBatch), "{error}");
    // The caller goes on regardless. Whatever the database makes of that, no part of the batch is there.
    let committed = tx.commit().await;
    assert_eq!(rows(&outbox).await, 1);
    if let Err(error) = committed {
        assert!(matches!(error, Error::NotCommitted { .. }), "{error}");
    }
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    batch.remove(699);
    outbox.publish_all(&mut tx, &batch).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(rows(&outbox).await, 1_200);
}

/// Not even the good events of its batch are written.
async fn event_that_breaks_a_rule_is_refused<D: Database>() {
    let (on, outbox) = opened::<D>("breaks_a_rule").await;
    struct Broken;
    impl outbox::IntoEvent for Broken {
        fn into_event(self, _now: chrono::DateTime<chrono::Utc>) -> Result<Event, EventError> {
            Event::builder("x".repeat(129)).json("{}").build()
        }
    }
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    let error = outbox.publish(&mut tx, Broken).await.unwrap_err();
    assert!(
        matches!(error, Error::Event(EventError::TooLong { chars: 129, .. })),
        "{error}"
    );
    outbox.publish(&mut tx, event()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(rows(&outbox).await, 1);
}

async fn table_name_that_is_no_identifier_is_refused<D: Database>() {
    let (pool, _guard) = D::create("table_name").await;
    let long = "x".repeat(64);
    for name in ["", "a;drop table x", "\"quoted\"", "`quoted`", "1st", "a b", "ä", &long] {
        let error = Outbox::<D>::writer_only(&pool)
            .table(name)
            .migrate()
            .build()
            .await
            .err()
            .expect("no such table");
        assert!(matches!(error, Error::TableName(_)), "{name}: {error}");
    }
}

async fn connection_outside_a_transaction_is_refused<D: SqlDatabase>()
where
    <D as sqlx::Database>::Connection: TxHandle<D, Receipt = outbox::Receipt>,
{
    let (on, outbox) = opened::<D>("outside_a_transaction").await;
    let pool: &sqlx::Pool<D> = &on.pool;
    let mut connection = pool.acquire().await.unwrap();
    for error in [
        outbox.publish(&mut connection, event()).await.unwrap_err(),
        outbox.publish(&mut *connection, event()).await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::NotInTransaction), "{error}");
        assert_eq!(
            error.to_string(),
            "publish needs an open transaction, and this connection has none: begin one, or use Outbox::begin or \
             Outbox::transaction"
        );
    }
    assert_eq!(rows(&outbox).await, 0);
}

async fn missing_schema_is_refused<D: SqlDatabase>() {
    let (pool, _guard) = D::create("missing_schema").await;
    let error = Outbox::<D>::writer_only(&pool)
        .table("my_events")
        .build()
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::SchemaMissing { table } if table == "my_events"),
        "{error}"
    );
    assert!(error.to_string().contains("run `outbox migrate up`"), "{error}");
    Outbox::<D>::writer_only(&pool)
        .table("my_events")
        .migrate()
        .build()
        .await
        .unwrap();
    Outbox::<D>::writer_only(&pool)
        .table("my_events")
        .build()
        .await
        .unwrap();
}

async fn outdated_schema_is_refused<D: SqlDatabase>() {
    let on = On::<D>::open("outdated_schema").await;
    script::<D>(&on.pool, "update outbox_event_migration set version = -1").await;
    let error = Outbox::<D>::writer_only(&on.pool).build().await.unwrap_err();
    assert!(matches!(error, Error::SchemaOutdated { found: -1, .. }), "{error}");
    assert!(error.to_string().contains("run `outbox migrate up`"), "{error}");
}

async fn table_dropped_later_is_a_missing_schema<D: SqlDatabase>() {
    let (on, outbox) = opened::<D>("table_dropped").await;
    script::<D>(&on.pool, "drop table outbox_event").await;
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    let error = outbox.publish(&mut tx, event()).await.unwrap_err();
    assert!(matches!(error, Error::SchemaMissing { .. }), "{error}");
    assert!(error.to_string().contains("run `outbox migrate up`"), "{error}");
}
