use std::time::Duration;

use tokio::time::Instant;

use super::{Harness, LONG, events};
use crate::store::NewRow;
use crate::write::Backend;

/// Less than a packet waits for the acknowledgement of another, where a driver sends two of them and reads nothing between.
const AT_ONCE: Duration = Duration::from_millis(35);

/// The best of some: a machine that is busy is not always so, a wait for the network is there each time.
async fn best(mut work: impl AsyncFnMut()) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..12 {
        let started = Instant::now();
        work().await;
        best = best.min(started.elapsed());
    }
    best
}

/// What is rare need not be fast, but must not wait for nothing.
pub async fn rare_statements_follow_each_other_at_once<H: Harness>(h: &H) {
    let store = h.store();
    let lead = best(async || assert!(store.lead("work", "node", LONG).await.unwrap())).await;
    assert!(lead < AT_ONCE, "{lead:?} for a named lease");
    let share = best(async || {
        store.share_lanes("node#1", true, LONG, true).await.unwrap();
    });
    let share = share.await;
    assert!(share < AT_ONCE, "{share:?} for a look at the lanes");
}

/// Batches of two sizes. Without a commit: that waits for the disk.
pub async fn small_batches_follow_each_other_at_once<H: Harness>(h: &H) {
    let statements = H::Database::statements(&h.table());
    let mut tx = H::Database::begin(h.pool(), &statements).await.unwrap();
    let batches = best(async || {
        for size in [3, 2] {
            let events = events(size);
            let rows: Vec<_> = events.iter().map(|event| NewRow { event, born: None }).collect();
            H::Database::insert(&mut tx, &statements, &[&rows]).await.unwrap();
        }
    });
    let batches = batches.await;
    assert!(batches < AT_ONCE, "{batches:?} for two batches");
    H::Database::rollback(tx).await.unwrap();
}
