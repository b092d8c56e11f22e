use std::collections::HashSet;
use std::time::Duration;

use super::{Harness, LONG, claim, claim_one, dead, event, events, fetch, retry, settle, settle_all, settle_one};
use super::{until, write, write_dead, write_one};
use crate::event::{Event, EventId};
use crate::store::{Filter, Lease, Page, Status, Store, StoredEvent, Verdict};

const FIRST: Page = Page { after: 0, limit: 100 };

async fn found(store: &dyn Store, filter: &Filter) -> Vec<String> {
    let found = store.find(filter, FIRST).await.unwrap();
    assert_eq!(store.count(filter, 100).await.unwrap(), found.len() as u64);
    found.into_iter().map(|stored| stored.event_id).collect()
}

fn ids<'a>(events: impl IntoIterator<Item = &'a Event>) -> Vec<String> {
    events.into_iter().map(|event| event.id().to_string()).collect()
}

/// Each field by itself, all together, and none.
pub async fn find_keeps_to_the_filter<H: Harness>(h: &H) {
    let store = h.store();
    let build = |event_type: &'static str, aggregate: &'static str, id: &str, tenant: &str| {
        Event::builder(event_type)
            .aggregate(aggregate, id)
            .tenant(tenant)
            .json("{}")
            .build()
            .unwrap()
    };
    let a = build("Placed", "Order", "1", "blue");
    let b = build("Placed", "Order", "2", "red");
    let c = build("Paid", "Invoice", "1", "red");
    write(h, std::slice::from_ref(&a)).await;
    write(h, std::slice::from_ref(&b)).await;
    write(h, std::slice::from_ref(&c)).await;
    // Written in a later moment than the first, by a clock that may tick slowly.
    let first = fetch(&*store, a.id()).await.created_at;
    let d = until("the clock to tick", async || {
        let d = event("Plain");
        write(h, std::slice::from_ref(&d)).await;
        if fetch(&*store, d.id()).await.created_at > first {
            return Some(d);
        }
        store.discard(&Filter::id(d.id()), 1).await.unwrap();
        None
    })
    .await;
    let claimed = claim(&*store, "node", LONG).await;
    let lease = |event: &Event| {
        claimed
            .iter()
            .find(|row| row.event_id() == event.id().as_str())
            .unwrap()
            .lease
    };
    settle_one(&*store, lease(&a), Verdict::Done).await;
    settle_one(&*store, lease(&b), retry(LONG, "timed out after 30 s")).await;
    settle_one(&*store, lease(&c), dead("refused: 100% sure_thing")).await;

    assert_eq!(found(&*store, &Filter::all()).await, ids([&a, &b, &c, &d]));
    assert_eq!(found(&*store, &Filter::id(c.id())).await, ids([&c]));
    for (status, event) in [
        (Status::Done, &a),
        (Status::Retry, &b),
        (Status::Dead, &c),
        (Status::New, &d),
    ] {
        assert_eq!(found(&*store, &Filter::status(status)).await, ids([event]), "{status}");
    }
    let mut filter = Filter::all();
    filter.statuses = vec![Status::New, Status::Retry];
    assert_eq!(found(&*store, &filter).await, ids([&b, &d]));
    filter.statuses = vec![Status::Dead, Status::Done];
    assert_eq!(found(&*store, &filter).await, ids([&a, &c]));

    let set = |change: fn(&mut Filter)| {
        let mut filter = Filter::all();
        change(&mut filter);
        filter
    };
    let by_type = set(|filter| filter.event_type = Some("Placed".into()));
    assert_eq!(found(&*store, &by_type).await, ids([&a, &b]));
    let by_aggregate = set(|filter| filter.aggregate_type = Some("Invoice".into()));
    assert_eq!(found(&*store, &by_aggregate).await, ids([&c]));
    let by_key = set(|filter| filter.aggregate_id = Some("1".into()));
    assert_eq!(found(&*store, &by_key).await, ids([&a, &c]));
    let by_tenant = set(|filter| filter.tenant_id = Some("red".into()));
    assert_eq!(found(&*store, &by_tenant).await, ids([&b, &c]));
    let by_error = set(|filter| filter.error_contains = Some("after 30".into()));
    assert_eq!(found(&*store, &by_error).await, ids([&b]));
    let by_all = set(|filter| {
        filter.statuses = vec![Status::Dead];
        filter.event_type = Some("Paid".into());
        filter.aggregate_type = Some("Invoice".into());
        filter.aggregate_id = Some("1".into());
        filter.tenant_id = Some("red".into());
        filter.error_contains = Some("refused".into());
    });
    assert_eq!(found(&*store, &by_all).await, ids([&c]));
    let by_contradiction = set(|filter| {
        filter.event_type = Some("Paid".into());
        filter.tenant_id = Some("blue".into());
    });
    assert!(found(&*store, &by_contradiction).await.is_empty());

    let last = fetch(&*store, d.id()).await.created_at;
    let mut filter = Filter::all();
    filter.created_from = Some(last);
    assert!(found(&*store, &filter).await.contains(&d.id().to_string()));
    assert!(!found(&*store, &filter).await.contains(&a.id().to_string()));
    filter.created_from = Some(first);
    filter.created_until = Some(last);
    assert!(found(&*store, &filter).await.contains(&a.id().to_string()));
    assert!(!found(&*store, &filter).await.contains(&d.id().to_string()));
}

/// What is a pattern in SQL is plain text here.
pub async fn find_matches_error_text_literally<H: Harness>(h: &H) {
    let store = h.store();
    let texts = [
        "100% sure",
        "100 times sure",
        "a_b",
        "axb",
        "wow!",
        "c:\\dir",
        "it's \"quoted\"",
    ];
    let events = events(texts.len());
    write(h, &events).await;
    let claimed = claim(&*store, "node", LONG).await;
    for (row, text) in claimed.iter().zip(texts) {
        settle_one(&*store, row.lease, dead(text)).await;
    }
    let expected = [("0% s", 0), ("a_b", 2), ("ow!", 4), ("c:\\d", 5), ("it's \"", 6)];
    for (part, at) in expected {
        let mut filter = Filter::dead();
        filter.error_contains = Some(part.to_owned());
        assert_eq!(found(&*store, &filter).await, ids([&events[at]]), "{part}");
    }
}

/// In the order of `seq`, none left out, none twice.
pub async fn find_goes_page_by_page<H: Harness>(h: &H) {
    let store = h.store();
    let mut all = events(25);
    all[7] = event("Other");
    write(h, &all).await;
    let mut filter = Filter::all();
    filter.event_type = Some("Counted".to_owned());
    let mut read: Vec<StoredEvent> = Vec::new();
    let mut sizes = Vec::new();
    loop {
        let after = read.last().map_or(0, |stored| stored.seq);
        let page = store.find(&filter, Page { after, limit: 10 }).await.unwrap();
        sizes.push(page.len());
        if page.is_empty() {
            break;
        }
        read.extend(page);
    }
    assert_eq!(sizes, [10, 10, 4, 0]);
    let expected: Vec<_> = ids(all.iter().filter(|event| event.event_type().as_str() == "Counted"));
    assert_eq!(
        read.into_iter().map(|stored| stored.event_id).collect::<Vec<_>>(),
        expected
    );
}

/// A count of millions would read millions.
pub async fn count_ends_at_the_bound<H: Harness>(h: &H) {
    let store = h.store();
    write(h, &events(12)).await;
    assert_eq!(store.count(&Filter::all(), 100).await.unwrap(), 12);
    assert_eq!(store.count(&Filter::all(), 12).await.unwrap(), 12);
    assert_eq!(store.count(&Filter::all(), 5).await.unwrap(), 5);
    assert_eq!(store.count(&Filter::dead(), 5).await.unwrap(), 0);
}

/// The oldest first, with the node, the reason and the time.
pub async fn failed_attempts_are_remembered<H: Harness>(h: &H) {
    let store = h.store();
    let id = write_one(h).await;
    let other = write_one(h).await;
    assert!(store.attempts(&id).await.unwrap().is_empty());
    let mut leases = Vec::new();
    for row in claim(&*store, "node", LONG).await {
        if row.event_id() == id.as_str() {
            leases.push(row.lease);
        }
    }
    for error in ["first", "second", "third"] {
        let lease = match leases.pop() {
            Some(lease) => lease,
            None => {
                until("the retry to be due", async || claim(&*store, "node", LONG).await.pop())
                    .await
                    .lease
            }
        };
        let verdict = match error {
            "third" => dead(error),
            _ => retry(Duration::ZERO, error),
        };
        settle_one(&*store, lease, verdict).await;
    }
    let attempts = store.attempts(&id).await.unwrap();
    let told: Vec<_> = attempts
        .iter()
        .map(|a| (a.attempt, a.node.as_str(), a.error.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            (1, "settler", "first"),
            (2, "settler", "second"),
            (3, "settler", "third")
        ]
    );
    assert!(attempts.windows(2).all(|pair| pair[0].failed_at <= pair[1].failed_at));
    let created = fetch(&*store, &id).await.created_at;
    assert!(attempts[0].failed_at >= created && attempts[0].failed_at < created + LONG);
    assert!(store.attempts(&other).await.unwrap().is_empty());
}

/// With no attempts and no error, due at once, fenced against whoever held it, its history kept.
pub async fn replay_makes_a_dead_event_new<H: Harness>(h: &H) {
    let store = h.store();
    let id = write_one(h).await;
    let old = claim_one(&*store, "node", LONG).await;
    settle_one(&*store, old.lease, dead("hopeless")).await;
    let buried = fetch(&*store, &id).await;
    assert_eq!(store.replay(&Filter::id(&id), 10).await.unwrap(), 1);

    let stored = fetch(&*store, &id).await;
    assert_eq!((stored.status, stored.attempts), (Status::New, 0));
    assert_eq!((stored.last_error, stored.dead_at, stored.done_at), (None, None, None));
    assert_eq!((stored.locked_by, stored.lease_until), (None, None));
    assert!(stored.available_at >= buried.dead_at.unwrap());
    assert!(stored.token > buried.token);
    assert_eq!(store.attempts(&id).await.unwrap().len(), 1);

    for token in [old.lease.token, buried.token] {
        let stale = Lease { seq: stored.seq, token };
        assert_eq!(settle(&*store, &[(stale, Verdict::Done)]).await.stale, 1);
    }
    let again = until("the replayed event to be due", async || {
        claim(&*store, "node", LONG).await.pop()
    })
    .await;
    assert_eq!((again.event_id(), again.attempts), (id.as_str(), 0));
    assert_eq!(store.replay(&Filter::id(&id), 10).await.unwrap(), 0);
}

/// All that match, as many as asked for at a time, the first written first.
pub async fn replay_goes_batch_by_batch<H: Harness>(h: &H) {
    let store = h.store();
    let mut all = events(23);
    for event in &mut all[20..] {
        *event = super::event("Other");
    }
    write_dead(h, &*store, &all, "hopeless").await;
    let mut filter = Filter::dead();
    filter.event_type = Some("Counted".to_owned());
    assert_eq!(store.replay(&filter, 8).await.unwrap(), 8);
    let replayed = store.find(&Filter::status(Status::New), FIRST).await.unwrap();
    let expected = ids(&all[..8]);
    assert_eq!(
        replayed.into_iter().map(|stored| stored.event_id).collect::<Vec<_>>(),
        expected
    );
    assert_eq!(store.replay(&filter, 8).await.unwrap(), 8);
    assert_eq!(store.replay(&filter, 8).await.unwrap(), 4);
    assert_eq!(store.replay(&filter, 8).await.unwrap(), 0);
    assert_eq!(found(&*store, &Filter::dead()).await, ids(&all[20..]));
}

/// Even if the filter asks for them.
pub async fn replay_leaves_other_events_alone<H: Harness>(h: &H) {
    let store = h.store();
    let all = events(4);
    write(h, &all).await;
    let claimed = claim(&*store, "node", LONG).await;
    settle_one(&*store, claimed[0].lease, Verdict::Done).await;
    settle_one(&*store, claimed[1].lease, retry(LONG, "later")).await;
    settle_one(&*store, claimed[2].lease, dead("hopeless")).await;
    let mut before = Vec::new();
    for at in [0, 1, 3] {
        before.push(super::snapshot(&*store, all[at].id()).await);
    }
    assert_eq!(store.replay(&Filter::all(), 100).await.unwrap(), 1);
    assert_eq!(store.replay(&Filter::status(Status::Done), 100).await.unwrap(), 0);
    for (at, before) in [0, 1, 3].into_iter().zip(before) {
        assert_eq!(super::snapshot(&*store, all[at].id()).await, before);
    }
    assert_eq!(fetch(&*store, all[2].id()).await.status, Status::New);
}

/// At most as many as asked for, the first written first, with their history.
pub async fn discard_deletes_what_matches<H: Harness>(h: &H) {
    let store = h.store();
    let buried = events(5);
    write_dead(h, &*store, &buried, "hopeless").await;
    let pending = write_one(h).await;
    assert_eq!(store.discard(&Filter::dead(), 2).await.unwrap(), 2);
    assert_eq!(found(&*store, &Filter::dead()).await, ids(&buried[2..]));
    assert!(store.attempts(buried[0].id()).await.unwrap().is_empty());
    assert_eq!(store.discard(&Filter::id(buried[4].id()), 10).await.unwrap(), 1);
    assert_eq!(store.discard(&Filter::dead(), 100).await.unwrap(), 2);
    assert_eq!(store.discard(&Filter::dead(), 100).await.unwrap(), 0);
    assert_eq!(found(&*store, &Filter::all()).await, [pending.to_string()]);
}

/// Somebody may be delivering it this very moment.
pub async fn discard_leaves_leased_events_alone<H: Harness>(h: &H) {
    let store = h.store();
    let leased = write_one(h).await;
    let claimed = claim_one(&*store, "node", LONG).await;
    let free = write_one(h).await;
    assert_eq!(store.discard(&Filter::all(), 100).await.unwrap(), 1);
    assert!(store.fetch(&free).await.unwrap().is_none());
    settle_one(&*store, claimed.lease, Verdict::Done).await;
    assert_eq!(store.discard(&Filter::id(&leased), 100).await.unwrap(), 1);
}

/// Without DONE, which is history.
pub async fn stats_count_by_status_and_type<H: Harness>(h: &H) {
    let store = h.store();
    let stats = store.stats(1_000).await.unwrap();
    assert!(stats.counts.is_empty() && !stats.at_least && stats.oldest_lag.is_none());

    write(h, &[event("A"), event("A"), event("B")]).await;
    settle_all(&*store, Verdict::Done).await;
    write(h, &[event("A"), event("B"), event("B")]).await;
    settle_all(&*store, dead("hopeless")).await;
    write(h, &[event("B")]).await;
    settle_all(&*store, retry(LONG, "later")).await;
    let stats = store.stats(1_000).await.unwrap();
    assert_eq!(stats.oldest_lag, None, "nothing is due");
    write(h, &[event("A"), event("A"), event("C")]).await;
    let old = Event::builder("C")
        .occurred_at(chrono::Utc::now() - LONG * 3)
        .available_at(chrono::Utc::now() - LONG * 2)
        .json("{}")
        .build()
        .unwrap();
    write(h, &[old]).await;

    let stats = store.stats(1_000).await.unwrap();
    let counts: HashSet<_> = stats
        .counts
        .iter()
        .map(|count| (count.status, count.event_type.as_str(), count.count))
        .collect();
    let expected = HashSet::from([
        (Status::New, "A", 2),
        (Status::New, "C", 2),
        (Status::Retry, "B", 1),
        (Status::Dead, "A", 1),
        (Status::Dead, "B", 2),
    ]);
    assert_eq!(counts, expected);
    assert!(!stats.at_least);
    assert_eq!((stats.total(Status::New), stats.total(Status::Dead)), (4, 3));
    let lag = stats.oldest_lag.unwrap();
    assert!(lag >= LONG * 2 - Duration::from_secs(10) && lag < LONG * 3, "{lag:?}");
}

/// And say so.
pub async fn stats_end_at_the_bound<H: Harness>(h: &H) {
    let store = h.store();
    write(h, &events(9)).await;
    let stats = store.stats(4).await.unwrap();
    assert!(stats.at_least);
    assert_eq!(stats.total(Status::New), 4);
    settle_all(&*store, dead("hopeless")).await;
    let stats = store.stats(4).await.unwrap();
    assert!(stats.at_least);
    assert_eq!((stats.total(Status::New), stats.total(Status::Dead)), (0, 4));
    assert!(!store.stats(10).await.unwrap().at_least);
}

/// What the harness opened is what the library needs; and the store says who it is.
pub async fn schema_is_up_to_date<H: Harness>(h: &H) {
    let store = h.store();
    assert_eq!(store.schema_version().await.unwrap(), crate::migrate::LATEST);
    assert!(!store.name().is_empty());
    let nobody = EventId::new("nobody").unwrap();
    assert!(store.fetch(&nobody).await.unwrap().is_none());
}
