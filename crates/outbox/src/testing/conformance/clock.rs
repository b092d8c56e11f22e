use std::time::{Duration, SystemTime};

use chrono::{DateTime, SubsecRound, Utc};

use super::{Harness, LONG, SHORT, claim, fetch, until, write};
use crate::event::Event;
use crate::store::Verdict;

const TEN_MINUTES: Duration = Duration::from_secs(600);

/// By the database's clock, whatever ours says.
pub async fn delayed_row_is_not_claimed_before_it_is_due<H: Harness>(h: &H) {
    let store = h.store();
    let soon = Event::builder("Soon").deliver_after(SHORT).json("{}").build().unwrap();
    let later = Event::builder("Later").deliver_after(LONG).json("{}").build().unwrap();
    write(h, &[later.clone(), soon.clone()]).await;
    let claimed = until("the delay to be over", async || {
        let claimed = claim(&*store, "node", LONG).await;
        (!claimed.is_empty()).then_some(claimed)
    })
    .await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].event_id(), soon.id().as_str());

    let stored = fetch(&*store, soon.id()).await;
    assert!(close_to(stored.available_at, stored.created_at + SHORT));
    assert!(
        stored.lease_until.unwrap() - LONG >= stored.available_at,
        "claimed before it was due"
    );
    let stored = fetch(&*store, later.id()).await;
    assert!(close_to(stored.available_at, stored.created_at + LONG));
    assert_eq!(stored.locked_by, None);
}

/// An instant that the user named is taken as it is.
pub async fn row_available_at_an_instant_is_not_claimed_before<H: Harness>(h: &H) {
    let store = h.store();
    let at = (Utc::now() + SHORT).trunc_subsecs(6);
    let soon = Event::builder("Soon").available_at(at).json("{}").build().unwrap();
    let later = Event::builder("Later")
        .available_at(at + LONG)
        .json("{}")
        .build()
        .unwrap();
    write(h, &[later.clone(), soon.clone()]).await;
    assert_eq!(fetch(&*store, later.id()).await.available_at, at + LONG);
    assert_eq!(fetch(&*store, soon.id()).await.available_at, at);
    let claimed = until("the instant to come", async || {
        let claimed = claim(&*store, "node", LONG).await;
        (!claimed.is_empty()).then_some(claimed)
    })
    .await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].event_id(), soon.id().as_str());
    assert!(fetch(&*store, soon.id()).await.lease_until.unwrap() - LONG >= at);
}

/// Writers whose clocks are ten minutes off, in either direction: claims, order, leases and delays are as ever.
pub async fn application_clock_does_not_matter<H: Harness>(h: &H) {
    let store = h.store();
    let now = SystemTime::now();
    let mut written = Vec::new();
    // By these clocks, the events are written in the wrong order.
    for clock in [now + TEN_MINUTES, now, now - TEN_MINUTES] {
        let build = |event_type: &'static str| {
            Event::builder(event_type)
                .id(ulid::Ulid::from_datetime(clock).to_string())
                .occurred_at(DateTime::<Utc>::from(clock))
                .json("{}")
        };
        let at_once = build("AtOnce").build_at(clock.into()).unwrap();
        let delayed = build("Delayed").deliver_after(SHORT).build_at(clock.into()).unwrap();
        write(h, std::slice::from_ref(&at_once)).await;
        write(h, std::slice::from_ref(&delayed)).await;
        written.push((at_once, delayed));
    }

    // At once means at once, in the order of writing.
    let claimed = claim(&*store, "node-1", SHORT).await;
    let at_once: Vec<_> = claimed
        .iter()
        .filter(|row| row.event.as_ref().unwrap().event_type().as_str() == "AtOnce")
        .collect();
    let ids: Vec<_> = at_once.iter().map(|row| row.event_id()).collect();
    assert_eq!(
        ids,
        written.iter().map(|(event, _)| event.id().as_str()).collect::<Vec<_>>()
    );
    assert!(at_once.iter().all(|row| row.lag < Duration::from_secs(60)));

    // Delays and leases last as long as they should.
    let mut again = claimed;
    again.clear();
    until("the delays and leases to be over", async || {
        again.extend(claim(&*store, "node-2", LONG).await);
        (again.len() >= 6).then_some(())
    })
    .await;
    assert_eq!(again.len(), 6);
    for (at_once, delayed) in &written {
        let stored = fetch(&*store, delayed.id()).await;
        assert!(close_to(stored.available_at, stored.created_at + SHORT));
        assert!(stored.lease_until.unwrap() - LONG >= stored.available_at);
        let first = fetch(&*store, at_once.id()).await;
        assert!(close_to(first.available_at, first.created_at));
        let drift = stored.created_at - first.created_at;
        assert!(drift < chrono::Duration::seconds(60) && drift >= chrono::Duration::zero());
    }
    let batch: Vec<_> = again.iter().map(|row| (row.lease, Verdict::Done)).collect();
    assert_eq!(super::settle(&*store, &batch).await.applied, 6);
}

/// Within what reading a clock twice makes of one instant.
fn close_to(one: DateTime<Utc>, other: DateTime<Utc>) -> bool {
    (one - other).abs() < chrono::Duration::milliseconds(50)
}
