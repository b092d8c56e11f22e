use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{Harness, LONG, PATIENCE, SHORT, claim, claim_one, events, fetch, settle, until, write, write_one};
use crate::store::{Claim, Status, Verdict};

/// Sixteen claimers over four stores, each with connections of its own.
pub async fn no_row_is_claimed_twice<H: Harness>(h: &H) {
    const ROWS: usize = 2_000;
    write(h, &events(ROWS)).await;
    let stores: Vec<_> = (0..4).map(|_| h.store()).collect();
    let total = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..16 {
        let (store, total) = (Arc::clone(&stores[task % 4]), Arc::clone(&total));
        tasks.spawn(async move {
            let owner = format!("node-{task}");
            let mut mine = Vec::new();
            let end = tokio::time::Instant::now() + PATIENCE;
            // A claim may come back empty because others hold what is left for a moment.
            while total.load(Ordering::SeqCst) < ROWS && tokio::time::Instant::now() < end {
                let claim = Claim {
                    owner: &owner,
                    lease: LONG,
                    limit: 25,
                    skip_recent: Duration::ZERO,
                    after: None,
                };
                let claimed = store.claim(&claim).await.unwrap();
                assert!(claimed.len() <= 25);
                total.fetch_add(claimed.len(), Ordering::SeqCst);
                mine.extend(claimed.into_iter().map(|row| row.lease));
            }
            mine
        });
    }
    let mut seqs = HashSet::new();
    while let Some(leases) = tasks.join_next().await {
        for lease in leases.unwrap() {
            assert_eq!(lease.token, 1);
            assert!(seqs.insert(lease.seq), "{} was claimed twice", lease.seq);
        }
    }
    assert_eq!(seqs.len(), ROWS);
    assert!(claim(&*stores[0], "late", LONG).await.is_empty());
}

/// The same settlement from many tasks at once: one is written, the others are stale.
pub async fn only_one_of_many_settlements_counts<H: Harness>(h: &H) {
    let stores = [h.store(), h.store()];
    let id = write_one(h).await;
    let claimed = claim_one(&*stores[0], "node", LONG).await;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..12 {
        let store = Arc::clone(&stores[task % 2]);
        let lease = claimed.lease;
        tasks.spawn(async move { settle(&*store, &[(lease, super::retry(LONG, "failed"))]).await });
    }
    let settled = tasks.join_all().await;
    assert_eq!(settled.iter().map(|settled| settled.applied).sum::<u64>(), 1);
    assert_eq!(settled.iter().map(|settled| settled.stale).sum::<u64>(), 11);
    let stored = fetch(&*stores[0], &id).await;
    assert_eq!((stored.status, stored.attempts), (Status::Retry, 1));
    assert_eq!(stores[0].attempts(&id).await.unwrap().len(), 1);
}

/// Claims whose futures are dropped at any await: the rows come back when the leases end, and connections with them.
pub async fn dropped_claim_leaves_the_store_usable<H: Harness>(h: &H) {
    let store = h.store();
    const ROWS: usize = 20;
    write(h, &events(ROWS)).await;
    for step in 0..60_u64 {
        let limit = Duration::from_micros(step * 50);
        let _ = tokio::time::timeout(limit, claim(&*store, "cancelled", SHORT)).await;
    }
    let mut seqs = HashSet::new();
    until("all leases of cancelled claims to end", async || {
        for row in claim(&*store, "node", LONG).await {
            assert!(seqs.insert(row.lease.seq));
            assert_eq!(settle(&*store, &[(row.lease, Verdict::Done)]).await.applied, 1);
        }
        (seqs.len() == ROWS).then_some(())
    })
    .await;
}
