//! What only the store in memory does.

use std::time::Duration;

use outbox::store::{Claim, Claimed, Filter, Ownership, Purge, Status, Store, Verdict};
use outbox::testing::{Memory, MemoryPool};
use outbox::{Error, Event, Outbox};

const HOUR: Duration = Duration::from_secs(3_600);

async fn publish(outbox: &Outbox<Memory>, pool: &MemoryPool, event: &Event) {
    let mut tx = outbox.begin(pool).await.unwrap();
    outbox.publish(&mut tx, event).await.unwrap();
    tx.commit().await.unwrap();
}

async fn claim(store: &dyn Store) -> Vec<Claimed> {
    let claim = Claim {
        owner: "node",
        lease: HOUR,
        limit: 10,
        skip_recent: Duration::ZERO,
        after: None,
    };
    store.claim(&claim).await.unwrap()
}

/// Delays, leases and ages pass at the test's command.
#[tokio::test]
async fn clock_can_be_moved_instead_of_sleeping() {
    let pool = MemoryPool::new();
    let outbox = Outbox::writer_only(&pool).build().await.unwrap();
    let store = outbox.store();
    let event = Event::builder("Tomorrow")
        .deliver_after(24 * HOUR)
        .json("{}")
        .build()
        .unwrap();
    publish(&outbox, &pool, &event).await;
    pool.advance(23 * HOUR);
    assert!(claim(&**store).await.is_empty());
    pool.clone().advance(2 * HOUR);
    let first = claim(&**store).await;
    assert_eq!(first.len(), 1);
    assert!(first[0].lag >= HOUR);

    assert!(claim(&**store).await.is_empty());
    pool.advance(HOUR);
    let second = claim(&**store).await;
    assert_eq!(second.len(), 1);
    assert!(second[0].recovered);

    let settlement = outbox::store::Settlement::new(second[0].lease, Verdict::Done);
    store.settle("node", Ownership::Rows, &[settlement]).await.unwrap();
    let purge = Purge {
        statuses: vec![Status::Done],
        older_than: 7 * 24 * HOUR,
        event_type: None,
        by_age_alone: false,
        limit: 10,
    };
    assert_eq!(store.purge(&purge, 0).await.unwrap().deleted, 0);
    pool.advance(8 * 24 * HOUR);
    assert_eq!(store.purge(&purge, 0).await.unwrap().deleted, 1);
}

/// A server would make the second wait for the first; here the first commit wins.
#[tokio::test]
async fn second_of_two_transactions_with_one_id_is_not_committed() {
    let pool = MemoryPool::new();
    let outbox = Outbox::writer_only(&pool).build().await.unwrap();
    let event = Event::json("Once", "{}").unwrap();
    let mut first = outbox.begin(&pool).await.unwrap();
    let mut second = outbox.begin(&pool).await.unwrap();
    outbox.publish(&mut first, &event).await.unwrap();
    outbox.publish(&mut second, &event).await.unwrap();
    outbox
        .publish(&mut second, Event::json("Other", "{}").unwrap())
        .await
        .unwrap();
    first.commit().await.unwrap();
    let error = second.commit().await.unwrap_err();
    assert!(matches!(error, Error::NotCommitted { .. }), "{error}");
    assert_eq!(outbox.store().count(&Filter::all(), 10).await.unwrap(), 1);
}

#[tokio::test]
async fn tables_of_one_pool_are_apart_and_pools_are_too() {
    let pool = MemoryPool::new();
    let one = Outbox::writer_only(&pool).build().await.unwrap();
    let other = Outbox::writer_only(&pool).table("other_events").build().await.unwrap();
    let elsewhere = Outbox::writer_only(&MemoryPool::new()).build().await.unwrap();
    publish(&one, &pool, &Event::json("Here", "{}").unwrap()).await;
    assert_eq!(one.store().count(&Filter::all(), 10).await.unwrap(), 1);
    assert_eq!(other.store().count(&Filter::all(), 10).await.unwrap(), 0);
    assert_eq!(elsewhere.store().count(&Filter::all(), 10).await.unwrap(), 0);
}
