//! The tables come and go, from many processes at once, beside others of their kind.

use outbox::store::Filter;
use outbox::{Event, Outbox, TableName, migrate};
use outbox_tests::{SqlDatabase, script};

macro_rules! on_every_server {
    ($($name:ident: $database:ty),*) => {$(
        crate::cases! { $name, $database:
            up_twice_does_it_once
            up_from_many_at_once_does_it_once
            status_tells_what_has_run
            down_and_up_again
            several_outboxes_share_a_database
            printed_sql_makes_the_tables
            longest_table_name_works
        }
    )*};
}

on_every_server!(sqlite: sqlx::Sqlite, postgres: sqlx::Postgres, mariadb: sqlx::MySql);

/// Publishes an event and counts what is there.
async fn publish_one<D: SqlDatabase>(pool: &sqlx::Pool<D>, table: &TableName) -> u64 {
    let outbox = Outbox::<D>::writer_only(pool)
        .table(table.as_str())
        .build()
        .await
        .unwrap();
    let mut tx = outbox.begin(pool).await.unwrap();
    outbox
        .publish(&mut tx, Event::json("OrderPlaced", "{}").unwrap())
        .await
        .unwrap();
    tx.commit().await.unwrap();
    outbox.store().count(&Filter::all(), 100).await.unwrap()
}

async fn up_twice_does_it_once<D: SqlDatabase>() {
    let (pool, _guard) = D::create("up_twice").await;
    let table = TableName::default();
    assert_eq!(
        migrate::up(&pool, &table).await.unwrap(),
        (1..=migrate::LATEST).collect::<Vec<_>>()
    );
    assert_eq!(publish_one(&pool, &table).await, 1);
    assert!(migrate::up(&pool, &table).await.unwrap().is_empty());
    assert_eq!(publish_one(&pool, &table).await, 2);
}

async fn up_from_many_at_once_does_it_once<D: SqlDatabase>() {
    let (pool, _guard) = D::create("up_at_once").await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        // A pool of its own for each, as processes have it.
        let options = (*pool.connect_options()).clone();
        tasks.spawn(async move {
            let pool = sqlx::pool::PoolOptions::<D>::new()
                .max_connections(2)
                .connect_with(options)
                .await
                .unwrap();
            migrate::up(&pool, &TableName::default()).await.unwrap()
        });
    }
    let done: Vec<i64> = tasks.join_all().await.into_iter().flatten().collect();
    assert_eq!(done, (1..=migrate::LATEST).collect::<Vec<_>>());
    assert_eq!(publish_one(&pool, &TableName::default()).await, 1);
}

async fn status_tells_what_has_run<D: SqlDatabase>() {
    let (pool, _guard) = D::create("status").await;
    let table = TableName::default();
    let before = migrate::status(&pool, &table).await.unwrap();
    assert_eq!(before.len(), D::MIGRATIONS.len());
    assert!(before.iter().all(|step| step.applied_at.is_none()));
    migrate::up(&pool, &table).await.unwrap();
    let after = migrate::status(&pool, &table).await.unwrap();
    assert_eq!(after.last().unwrap().version, migrate::LATEST);
    for step in after {
        let age = chrono::Utc::now() - step.applied_at.unwrap();
        assert!(age.abs() < chrono::Duration::minutes(5), "{age}");
    }
}

async fn down_and_up_again<D: SqlDatabase>() {
    let (pool, _guard) = D::create("down").await;
    let table = TableName::default();
    // Nothing to undo.
    assert!(migrate::down(&pool, &table, 0).await.unwrap().is_empty());
    migrate::up(&pool, &table).await.unwrap();
    publish_one(&pool, &table).await;
    assert!(migrate::down(&pool, &table, migrate::LATEST).await.unwrap().is_empty());
    assert_eq!(publish_one(&pool, &table).await, 2);

    let undone = migrate::down(&pool, &table, 0).await.unwrap();
    assert_eq!(undone, (1..=migrate::LATEST).rev().collect::<Vec<_>>());
    let status = migrate::status(&pool, &table).await.unwrap();
    assert!(status.iter().all(|step| step.applied_at.is_none()));
    Outbox::<D>::writer_only(&pool).build().await.unwrap_err();
    // Nothing of ours is left to collide with.
    for name in [
        "outbox_event",
        "outbox_event_attempt",
        "outbox_event_lease",
        "outbox_event_migration",
    ] {
        script::<D>(&pool, &format!("create table {name} (id int)")).await;
        script::<D>(&pool, &format!("drop table {name}")).await;
    }
    migrate::up(&pool, &table).await.unwrap();
    assert_eq!(publish_one(&pool, &table).await, 1);
}

async fn several_outboxes_share_a_database<D: SqlDatabase>() {
    let (pool, _guard) = D::create("side_by_side").await;
    let (alpha, beta) = (
        TableName::new("Alpha_events").unwrap(),
        TableName::new("order").unwrap(),
    );
    migrate::up(&pool, &alpha).await.unwrap();
    assert_eq!(publish_one(&pool, &alpha).await, 1);
    migrate::up(&pool, &beta).await.unwrap();
    assert_eq!(publish_one(&pool, &beta).await, 1);
    assert_eq!(publish_one(&pool, &alpha).await, 2);
    migrate::down(&pool, &alpha, 0).await.unwrap();
    assert_eq!(publish_one(&pool, &beta).await, 2);
}

async fn printed_sql_makes_the_tables<D: SqlDatabase>() {
    let (pool, _guard) = D::create("printed").await;
    let table = TableName::new("my_events").unwrap();
    script::<D>(&pool, &migrate::print::<D>(&table)).await;
    assert_eq!(publish_one(&pool, &table).await, 1);
    assert!(migrate::up(&pool, &table).await.unwrap().is_empty());
}

async fn longest_table_name_works<D: SqlDatabase>() {
    let (pool, _guard) = D::create("longest_name").await;
    let table = TableName::new("x".repeat(TableName::MAX_BYTES)).unwrap();
    let twin = TableName::new("x".repeat(TableName::MAX_BYTES - 1) + "y").unwrap();
    migrate::up(&pool, &table).await.unwrap();
    migrate::up(&pool, &twin).await.unwrap();
    assert_eq!(publish_one(&pool, &table).await, 1);
    assert_eq!(publish_one(&pool, &twin).await, 1);
    migrate::down(&pool, &table, 0).await.unwrap();
    assert_eq!(publish_one(&pool, &twin).await, 2);
}
