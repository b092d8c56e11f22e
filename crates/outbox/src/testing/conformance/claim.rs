use std::time::Duration;

use chrono::{SubsecRound, Utc};

use super::{Harness, LONG, claim, claim_one, dead, event, events, fetch, settle_one, until, write, write_one};
use crate::event::{Event, EventError};
use crate::store::{BadRow, Claim, Claimed, Status, Store};

async fn claim_some(store: &dyn Store, limit: usize, skip_recent: Duration, after: Option<(i64, i64)>) -> Vec<Claimed> {
    let claim = Claim {
        owner: "node",
        lease: LONG,
        limit,
        skip_recent,
        after,
    };
    store.claim(&claim).await.unwrap()
}

/// Events that became due so many minutes ago.
fn due_ago(minutes: &[u64]) -> Vec<Event> {
    let now = Utc::now().trunc_subsecs(6);
    minutes
        .iter()
        .map(|minutes| {
            Event::builder("Due")
                .aggregate_id(minutes.to_string())
                .occurred_at(now - Duration::from_secs(7_200))
                .available_at(now - Duration::from_secs(60 * minutes))
                .json("{}")
                .build()
                .unwrap()
        })
        .collect()
}

fn minutes(claimed: &[Claimed]) -> Vec<&str> {
    claimed
        .iter()
        .map(|row| row.event.as_ref().unwrap().aggregate_id().unwrap())
        .collect()
}

/// Rows due at the same time go by `seq`.
pub async fn claim_takes_the_longest_due_first<H: Harness>(h: &H) {
    let store = h.store();
    write(h, &due_ago(&[5, 60, 10, 60, 1, 30])).await;
    let claimed = claim(&*store, "node", LONG).await;
    assert_eq!(minutes(&claimed), ["60", "60", "30", "10", "5", "1"]);
    assert!(claimed[0].lease.seq < claimed[1].lease.seq);
    assert!(claimed.windows(2).all(|pair| pair[0].due_at <= pair[1].due_at));
}

/// The rest is left for the next claim, which gets it.
pub async fn claim_takes_no_more_than_asked_for<H: Harness>(h: &H) {
    let store = h.store();
    write(h, &due_ago(&[1, 2, 3, 4, 5])).await;
    assert_eq!(minutes(&claim_some(&*store, 2, Duration::ZERO, None).await), ["5", "4"]);
    assert_eq!(minutes(&claim_some(&*store, 2, Duration::ZERO, None).await), ["3", "2"]);
    assert_eq!(minutes(&claim_some(&*store, 2, Duration::ZERO, None).await), ["1"]);
    assert!(claim_some(&*store, 2, Duration::ZERO, None).await.is_empty());
}

/// A place is the `due_at` and the `seq` of an earlier claim; of rows due at that very instant those that come after it.
pub async fn claim_starts_after_a_place<H: Harness>(h: &H) {
    let store = h.store();
    write(h, &due_ago(&[10, 20, 30, 20, 40])).await;
    let all = claim(&*store, "node", LONG).await;
    let leases: Vec<_> = all.iter().map(|row| row.lease).collect();
    store.release(&leases).await.unwrap();

    let [due_at, seq] = [all[2].due_at, all[2].lease.seq];
    let after_the_first = claim_some(&*store, 10, Duration::ZERO, Some((due_at, seq))).await;
    assert_eq!(minutes(&after_the_first), ["20", "10"]);
    assert!(after_the_first[0].lease.seq > seq);
    let at_that_time = claim_some(&*store, 10, Duration::ZERO, Some((due_at, 0))).await;
    assert_eq!(minutes(&at_that_time), ["20"]);
    assert_eq!(
        minutes(&claim_some(&*store, 10, Duration::ZERO, None).await),
        ["40", "30"]
    );
}

/// What was written a moment ago is its writer's to deliver.
pub async fn claim_leaves_recent_rows_alone<H: Harness>(h: &H) {
    let store = h.store();
    // Due for an hour, and yet just written.
    write(h, &due_ago(&[60])).await;
    assert!(claim_some(&*store, 10, LONG, None).await.is_empty());
    let recent = Duration::from_millis(200);
    let claimed = until("the row to be old enough", async || {
        claim_some(&*store, 10, recent, None).await.pop()
    })
    .await;
    let id = crate::event::EventId::new(claimed.event_id()).unwrap();
    let stored = fetch(&*store, &id).await;
    let claimed_at = stored.lease_until.unwrap() - LONG;
    assert!(claimed_at - stored.created_at >= chrono::Duration::from_std(recent).unwrap());
}

/// A claim sets the owner and the lease, raises the token by one, and changes nothing else.
pub async fn claimed_row_is_not_claimed_again<H: Harness>(h: &H) {
    let (store, other) = (h.store(), h.store());
    let id = write_one(h).await;
    let claimed = claim_one(&*store, "node-1", LONG).await;
    assert_eq!(claimed.event_id(), id.as_str());
    assert!(claim(&*store, "node-1", LONG).await.is_empty());
    assert!(claim(&*other, "node-2", LONG).await.is_empty());

    let stored = fetch(&*store, &id).await;
    assert_eq!(stored.status, Status::New);
    assert_eq!(stored.locked_by.as_deref(), Some("node-1"));
    assert_eq!((stored.seq, stored.token), (claimed.lease.seq, claimed.lease.token));
    assert_eq!((stored.token, stored.attempts), (1, 0));
    let lease = stored.lease_until.unwrap() - stored.created_at;
    assert!(lease >= chrono::Duration::from_std(LONG).unwrap());
    assert!(lease < chrono::Duration::from_std(LONG * 2).unwrap());
}

/// In the database's own time.
pub async fn claim_counts_the_lag_from_when_the_row_was_due<H: Harness>(h: &H) {
    let store = h.store();
    write(h, &due_ago(&[60])).await;
    let old = claim_one(&*store, "node", LONG).await;
    assert!(
        old.lag >= Duration::from_secs(3_590) && old.lag < Duration::from_secs(3_700),
        "{:?}",
        old.lag
    );
    write(h, &events(1)).await;
    let new = claim_one(&*store, "node", LONG).await;
    assert!(new.lag < Duration::from_secs(30), "{:?}", new.lag);
    assert!(new.due_at > old.due_at);
}

/// A row that another program has spoilt is handed out with the reason, so that it can be buried, and stops nothing.
pub async fn undecodable_row_can_be_settled<H: Harness>(h: &H) {
    let store = h.store();
    let (spoilt, sound) = (event("Spoilt"), event("Sound"));
    write(h, &[spoilt.clone(), sound.clone()]).await;
    h.overwrite_headers(spoilt.id(), "[1, 2]").await;

    let claimed = claim(&*store, "node", LONG).await;
    assert_eq!(claimed.len(), 2);
    assert_eq!(claimed[0].event_id(), spoilt.id().as_str());
    assert!(
        matches!(
            claimed[0].event,
            Err(BadRow {
                error: EventError::HeadersNotJson { .. },
                ..
            })
        ),
        "{:?}",
        claimed[0].event
    );
    assert_eq!(claimed[1].event.as_ref().unwrap(), &sound);

    settle_one(&*store, claimed[0].lease, dead("cannot be read")).await;
    let stored = fetch(&*store, spoilt.id()).await;
    assert_eq!(stored.status, Status::Dead);
    assert!(stored.event.is_err());
    assert_eq!(stored.last_error.as_deref(), Some("cannot be read"));
}
