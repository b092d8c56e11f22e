use std::sync::Arc;

use super::{Harness, LONG, PATIENCE, SHORT, until};
use crate::store::News;

/// Many ask at once, over several stores, and one gets it; again and again.
pub async fn one_of_many_leads<H: Harness>(h: &H) {
    let stores: Vec<_> = (0..3).map(|_| h.store()).collect();
    for round in 0..5 {
        let name = format!("round-{round}");
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..12 {
            let (store, name) = (Arc::clone(&stores[task % 3]), name.clone());
            tasks.spawn(async move { store.lead(&name, &format!("node-{task}"), LONG).await.unwrap() });
        }
        let leaders = tasks.join_all().await.into_iter().filter(|leads| *leads).count();
        assert_eq!(leaders, 1);
    }
}

/// The leader keeps it by asking again; when it no longer does, somebody else leads.
pub async fn leader_stays_until_the_lease_ends<H: Harness>(h: &H) {
    let (store, other) = (h.store(), h.store());
    assert!(store.lead("purge", "node-1", LONG).await.unwrap());
    assert!(!other.lead("purge", "node-2", LONG).await.unwrap());
    // Asking again may also shorten it.
    assert!(store.lead("purge", "node-1", SHORT).await.unwrap());
    until("the lease to end", async || {
        other.lead("purge", "node-2", LONG).await.unwrap().then_some(())
    })
    .await;
    assert!(!store.lead("purge", "node-1", LONG).await.unwrap());
    assert!(other.lead("purge", "node-2", LONG).await.unwrap());
}

/// Only the leader's own resignation counts.
pub async fn leader_that_resigns_is_replaced_at_once<H: Harness>(h: &H) {
    let (store, other) = (h.store(), h.store());
    assert!(store.lead("purge", "node-1", LONG).await.unwrap());
    other.resign("purge", "node-2").await.unwrap();
    assert!(!other.lead("purge", "node-2", LONG).await.unwrap());
    store.resign("purge", "node-1").await.unwrap();
    assert!(other.lead("purge", "node-2", LONG).await.unwrap());
    assert!(!store.lead("purge", "node-1", LONG).await.unwrap());
    store.resign("no such name", "node-1").await.unwrap();
}

/// One node may lead here, another there.
pub async fn named_leases_are_independent<H: Harness>(h: &H) {
    let store = h.store();
    assert!(store.lead("purge", "node-1", LONG).await.unwrap());
    assert!(store.lead("recovery", "node-2", LONG).await.unwrap());
    assert!(!store.lead("purge", "node-2", LONG).await.unwrap());
    assert!(!store.lead("recovery", "node-1", LONG).await.unwrap());
    store.resign("purge", "node-1").await.unwrap();
    assert!(!store.lead("recovery", "node-1", LONG).await.unwrap());
}

/// Where the database can, news reach whoever listens, and are what they were; where it cannot, it is no error.
pub async fn notification_is_heard_where_there_is_one<H: Harness>(h: &H) {
    let (store, other) = (h.store(), h.store());
    let mut wakeups = store.wakeups().await.unwrap();
    for news in [News::Events, News::Lanes, News::Events] {
        other.notify(news).await.unwrap();
        if let Some(wakeups) = &mut wakeups {
            let heard = tokio::time::timeout(PATIENCE, wakeups.next()).await.unwrap().unwrap();
            assert_eq!(heard, news);
        }
    }
}
