use std::time::Duration;

use super::{Harness, LONG, SHORT, claim, claim_one, event, events, fetch, settle, snapshot, until, write, write_born};
use crate::event::Event;
use crate::store::{Born, Lease, Status, Verdict};

fn born(lease: Duration) -> Option<Born<'static>> {
    Some(Born {
        owner: "writer",
        lease,
        token: 8_700_000_000_000_001,
    })
}

/// A row that its writer delivers from memory is nobody else's.
pub async fn born_leased_row_belongs_to_its_writer<H: Harness>(h: &H) {
    let store = h.store();
    let event = event("Born");
    let seqs = write_born(h, std::slice::from_ref(&event), born(LONG)).await;
    assert!(claim(&*h.store(), "other", LONG).await.is_empty());

    let lease = Lease {
        seq: seqs[0],
        token: 8_700_000_000_000_001,
    };
    let read = store.read_leased(&[lease], Duration::ZERO).await.unwrap();
    assert_eq!(read.len(), 1);
    assert_eq!(read[0].lease, lease);
    assert_eq!(read[0].event.as_ref().unwrap(), &event);
    let stored = fetch(&*store, event.id()).await;
    assert_eq!(stored.locked_by.as_deref(), Some("writer"));
    assert_eq!(stored.token, lease.token);

    assert_eq!(settle(&*store, &[(lease, Verdict::Done)]).await.applied, 1);
    assert_eq!(fetch(&*store, event.id()).await.status, Status::Done);
}

/// If the writer never comes back, others take the row, and the writer's word no longer counts.
pub async fn born_lease_ends<H: Harness>(h: &H) {
    let store = h.store();
    let event = event("Born");
    let seqs = write_born(h, std::slice::from_ref(&event), born(SHORT)).await;
    let lease = Lease {
        seq: seqs[0],
        token: 8_700_000_000_000_001,
    };
    let ends = fetch(&*store, event.id()).await.lease_until.unwrap();
    let taken = until("the lease to end", async || claim(&*store, "other", LONG).await.pop()).await;
    assert_eq!(taken.lease.token, lease.token + 1);
    let claimed_at = fetch(&*store, event.id()).await.lease_until.unwrap() - LONG;
    assert!(claimed_at >= ends, "claimed at {claimed_at}, leased until {ends}");
    assert_eq!(settle(&*store, &[(lease, Verdict::Done)]).await.stale, 1);
    assert!(store.read_leased(&[lease], Duration::ZERO).await.unwrap().is_empty());
}

/// The token goes up by one, the attempts do not.
pub async fn expired_lease_is_taken_over<H: Harness>(h: &H) {
    let (store, other) = (h.store(), h.store());
    let event = event("Taken");
    write(h, std::slice::from_ref(&event)).await;
    let first = claim_one(&*store, "node-1", SHORT).await;
    let ends = fetch(&*store, event.id()).await.lease_until.unwrap();

    let second = until("the lease to end", async || claim(&*other, "node-2", LONG).await.pop()).await;
    assert_eq!(second.lease.seq, first.lease.seq);
    assert_eq!(second.lease.token, first.lease.token + 1);
    assert_eq!(second.attempts, 0);
    assert!(second.recovered && !first.recovered);
    let stored = fetch(&*store, event.id()).await;
    assert_eq!(stored.locked_by.as_deref(), Some("node-2"));
    assert_eq!((stored.attempts, stored.last_error), (0, None));
    assert!(stored.lease_until.unwrap() - LONG >= ends);
    assert!(store.attempts(event.id()).await.unwrap().is_empty());

    assert_eq!(settle(&*store, &[(first.lease, Verdict::Done)]).await.stale, 1);
    assert_eq!(settle(&*other, &[(second.lease, Verdict::Done)]).await.applied, 1);
}

/// A row that is renewed in time stays where it is, long after its first lease has ended.
pub async fn renewed_lease_does_not_end<H: Harness>(h: &H) {
    let (store, other) = (h.store(), h.store());
    write(h, &events(1)).await;
    let kept = claim_one(&*store, "node-1", SHORT).await;
    assert_eq!(store.renew(&[kept.lease], LONG).await.unwrap(), [kept.lease]);

    // Becomes due after the first lease would have ended: once it is taken, that moment has passed.
    let probe = Event::builder("Probe").deliver_after(SHORT).json("{}").build().unwrap();
    write(h, std::slice::from_ref(&probe)).await;
    let taken = until("the probe to be due", async || {
        let claimed = claim(&*other, "node-2", LONG).await;
        (!claimed.is_empty()).then_some(claimed)
    })
    .await;
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].event_id(), probe.id().as_str());
    assert_eq!(settle(&*store, &[(kept.lease, Verdict::Done)]).await.applied, 1);
}

/// Stale, finished and unknown leases are not renewed, and their rows are not touched.
pub async fn renew_returns_only_what_is_still_ours<H: Harness>(h: &H) {
    let store = h.store();
    let events = events(4);
    write(h, &events).await;
    let claimed = claim(&*store, "node", LONG).await;
    let lease = |at: usize| claimed[at].lease;
    settle(&*store, &[(lease(1), Verdict::Done)]).await;
    store.release(&[lease(2)]).await.unwrap();
    let stale = Lease {
        token: lease(3).token - 1,
        ..lease(3)
    };
    let unknown = Lease {
        seq: 1_000_000,
        token: 1,
    };
    let mut before = Vec::new();
    for event in &events[1..] {
        before.push(snapshot(&*store, event.id()).await);
    }
    let ends = fetch(&*store, events[0].id()).await.lease_until.unwrap();

    let renewed = store
        .renew(&[lease(0), lease(1), lease(2), stale, unknown], LONG * 2)
        .await;
    assert_eq!(renewed.unwrap(), [lease(0)]);
    for (event, before) in events[1..].iter().zip(before) {
        assert_eq!(snapshot(&*store, event.id()).await, before);
    }
    let stored = fetch(&*store, events[0].id()).await;
    assert!(stored.lease_until.unwrap() > ends + chrono::Duration::from_std(LONG / 2).unwrap());
    assert_eq!(stored.token, lease(0).token);
    assert!(store.renew(&[], LONG).await.unwrap().is_empty());
}

/// Nothing is counted, and the one who gave it back can no longer settle it.
pub async fn released_row_is_free_at_once<H: Harness>(h: &H) {
    let (store, other) = (h.store(), h.store());
    let events = events(2);
    write(h, &events).await;
    let claimed = claim(&*store, "node-1", LONG).await;
    let leases: Vec<_> = claimed.iter().map(|row| row.lease).collect();
    let stale = Lease {
        token: leases[1].token + 7,
        ..leases[1]
    };
    assert_eq!(store.release(&[leases[0], stale]).await.unwrap(), 1);
    let stored = fetch(&*store, events[0].id()).await;
    assert_eq!((stored.locked_by, stored.lease_until), (None, None));
    assert_eq!((stored.status, stored.attempts), (Status::New, 0));

    // Not even before somebody else has taken it.
    assert_eq!(settle(&*store, &[(leases[0], Verdict::Done)]).await.stale, 1);

    let taken = claim_one(&*other, "node-2", LONG).await;
    assert_eq!(taken.lease.seq, leases[0].seq);
    assert!(taken.lease.token > leases[0].token);
    assert_eq!(taken.attempts, 0);
    assert!(!taken.recovered, "it was given back, not taken over");
    assert_eq!(store.release(&[leases[0]]).await.unwrap(), 0);
    assert_eq!(settle(&*store, &[(leases[0], Verdict::Done)]).await.stale, 1);
    assert_eq!(store.release(&[]).await.unwrap(), 0);
}

/// For a node that starts alone: whatever is leased is nobody's any more. Nothing is counted.
pub async fn release_all_ends_every_lease<H: Harness>(h: &H) {
    let store = h.store();
    assert_eq!(store.release_all().await.unwrap(), 0);
    let (done, claimed_before, born_before, free) = (event("Done"), event("Claimed"), event("Born"), event("Free"));
    write(h, &[done.clone(), claimed_before.clone()]).await;
    let claimed = claim(&*store, "node-1", LONG).await;
    settle(&*store, &[(claimed[0].lease, Verdict::Done)]).await;
    write_born(h, std::slice::from_ref(&born_before), born(LONG)).await;
    write(h, std::slice::from_ref(&free)).await;
    let untouched = [snapshot(&*store, done.id()).await, snapshot(&*store, free.id()).await];

    assert_eq!(store.release_all().await.unwrap(), 2);
    let after = [snapshot(&*store, done.id()).await, snapshot(&*store, free.id()).await];
    assert_eq!(after, untouched);
    assert_eq!(settle(&*store, &[(claimed[1].lease, Verdict::Done)]).await.stale, 1);
    let again = claim(&*store, "node-2", LONG).await;
    assert_eq!(again.len(), 3);
    assert!(again.iter().all(|row| row.attempts == 0 && !row.recovered));
}

/// And only if the lease lasts long enough to deliver.
pub async fn read_leased_returns_only_what_is_still_ours<H: Harness>(h: &H) {
    let store = h.store();
    let events = events(3);
    let seqs = write_born(h, &events, born(LONG)).await;
    let token = born(LONG).unwrap().token;
    let lease = |at: usize| Lease { seq: seqs[at], token };
    settle(&*store, &[(lease(1), Verdict::Done)]).await;
    let stale = Lease {
        seq: seqs[2],
        token: token + 1,
    };
    let unknown = Lease { seq: 1_000_000, token };
    let before = snapshot(&*store, events[0].id()).await;
    let asked = [lease(0), lease(1), stale, unknown];
    let read = store.read_leased(&asked, LONG / 2).await.unwrap();
    assert_eq!(read.iter().map(|row| row.lease).collect::<Vec<_>>(), [lease(0)]);
    assert_eq!(snapshot(&*store, events[0].id()).await, before);
    assert!(store.read_leased(&asked, LONG * 2).await.unwrap().is_empty());
    assert!(store.read_leased(&[], LONG).await.unwrap().is_empty());
}
