use std::time::Duration;

use chrono::{SubsecRound, TimeDelta, Utc};

use super::{Harness, LONG, claim, event, events, fetch, write};
use crate::event::{Event, Payload};
use crate::store::{Born, Filter, NewRow, Status};
use crate::write::Backend;

/// What is written is what is read, in every field.
pub async fn every_field_comes_back<H: Harness>(h: &H) {
    let store = h.store();
    let occurred_at = (Utc::now() - Duration::from_secs(86_400 * 400)).trunc_subsecs(6);
    let full = Event::builder("Ünusual \"type\" 'quoted'")
        .id("an-id-of-my-own")
        .aggregate("Order \\ \u{1F600}", "4711/\u{fc}%_")
        .tenant("tenant-\u{e4}")
        .occurred_at(occurred_at)
        .header("a", "1")
        .header("quote", "\" ' \\ \u{20ac} \u{1F600}")
        .header("empty", "")
        .json(r#"{"total": 42}"#)
        .build()
        .unwrap();
    let bare = Event::builder("Bare").bytes(vec![1, 2, 3]).build().unwrap();
    let seqs = write(h, &[full.clone(), bare.clone()]).await;

    let stored = fetch(&*store, full.id()).await;
    assert_eq!(stored.event.as_ref().unwrap(), &full);
    assert_eq!(stored.event.as_ref().unwrap().occurred_at(), occurred_at);
    assert_eq!(stored.event_id, "an-id-of-my-own");
    assert_eq!(stored.seq, seqs[0]);
    assert_eq!(stored.status, Status::New);
    assert_eq!((stored.attempts, stored.token), (0, 0));
    assert!(stored.available_at <= stored.created_at + Duration::from_millis(10));
    assert_eq!((stored.done_at, stored.dead_at, stored.lease_until), (None, None, None));
    assert_eq!((stored.last_error, stored.locked_by), (None, None));
    assert!((0..64).contains(&stored.lane));
    assert!(stored.done_by.is_empty());

    let stored = fetch(&*store, bare.id()).await;
    assert_eq!(stored.event.unwrap(), bare);
    assert_eq!(stored.seq, seqs[1]);

    let claimed = claim(&*store, "node", LONG).await;
    let read: Vec<_> = claimed.iter().map(|row| row.event.as_ref().unwrap()).collect();
    assert_eq!(read, [&full, &bare]);
    assert_eq!(claimed[0].event_id(), "an-id-of-my-own");
    assert_eq!(claimed[0].attempts, 0);
    assert!(claimed[0].done_by.is_empty());

    let unknown = event("Unknown");
    assert!(store.fetch(unknown.id()).await.unwrap().is_none());
}

/// One row or several, free, leased or delayed, from the first insert of a writer to its later ones: what a row does not say is
/// the same, however it was written.
pub async fn every_way_of_writing_is_the_same<H: Harness>(h: &H) {
    const LATER: Duration = Duration::from_secs(3_600);
    let store = h.store();
    let statements = H::Database::statements(&h.table());
    let born = Born {
        owner: "writer",
        lease: LONG,
        token: 7,
    };
    let delayed = |event: &Event| event.to_builder().deliver_after(LATER).build().unwrap();
    for rows in [1, 1, 2] {
        for (born, later) in [(None, false), (Some(born), false), (None, true)] {
            let full = |_| {
                let event = Event::builder("Full").aggregate("Order", "4711").tenant("tenant");
                let event = event.header("a", "1").json("{}").build().unwrap();
                if later { delayed(&event) } else { event }
            };
            let events: Vec<Event> = (0..rows).map(full).collect();
            let rows: Vec<_> = events.iter().map(|event| NewRow { event, born }).collect();
            let mut tx = H::Database::begin(h.pool(), &statements).await.unwrap();
            let inserted = H::Database::insert(&mut tx, &statements, &[&rows]).await.unwrap();
            H::Database::commit(tx).await.unwrap();

            for (at, event) in events.iter().enumerate() {
                let stored = fetch(&*store, event.id()).await;
                if born.is_some() || !inserted.seqs.is_empty() {
                    assert_eq!(stored.seq, inserted.seqs[at]);
                }
                let read = stored.event.as_ref().unwrap();
                assert_eq!((read.aggregate_id(), read.tenant_id()), (Some("4711"), Some("tenant")));
                assert_eq!((read.headers(), read.payload()), (event.headers(), event.payload()));
                assert_eq!(read.occurred_at(), event.occurred_at());
                assert_eq!((stored.status, stored.attempts), (Status::New, 0));
                assert_eq!(stored.token, born.map_or(0, |born| born.token));
                assert_eq!(stored.locked_by.as_deref(), born.map(|born| born.owner));
                let close = |found: TimeDelta, wanted: Duration| {
                    (found - TimeDelta::from_std(wanted).unwrap()).abs() < TimeDelta::seconds(1)
                };
                let due = stored.available_at - stored.created_at;
                assert!(close(due, if later { LATER } else { Duration::ZERO }), "{due}");
                assert_eq!(stored.lease_until.is_some(), born.is_some());
                if let Some(until) = stored.lease_until {
                    assert!(close(until - stored.created_at, LONG), "{until}");
                }
            }
        }
    }
    assert_eq!(
        claim(&*store, "node", LONG).await.len(),
        4,
        "those that are free and due"
    );
}

/// JSON text is not normalized on its way: not its spaces, its order, its doubles, its numbers, its escapes.
pub async fn json_comes_back_byte_for_byte<H: Harness>(h: &H) {
    let texts = [
        " {\t\"b\" : 1 ,\n \"a\":2,\r\n\"b\":   3 }\n",
        r#"{"big":123456789012345678901234567890.12345678901234567890,"e":1E+400,"z":-0.0,"i":18446744073709551616}"#,
        r#"{"escaped":"\u00fc\/\ud83d\ude00\u0000\\","plain":"ü/😀"}"#,
        "null",
        "  42 ",
        "\"\"",
        "[[],{},[ ]]",
        r#"{"":{"":""}}"#,
    ];
    let events: Vec<_> = texts.iter().map(|text| Event::json("Json", *text).unwrap()).collect();
    assert_payloads(h, &events).await;
}

/// Every value of a byte, none at all, and what looks like text.
pub async fn bytes_come_back_byte_for_byte<H: Harness>(h: &H) {
    let all: Vec<u8> = (0..=255).collect();
    let twice: Vec<u8> = all.iter().rev().chain(&all).copied().collect();
    let payloads = [all, twice, Vec::new(), vec![0], b"{}".to_vec(), b"\\x00'\"".to_vec()];
    let events: Vec<_> = payloads
        .into_iter()
        .map(|bytes| Event::builder("Bytes").bytes(bytes).build().unwrap())
        .collect();
    assert_payloads(h, &events).await;
}

/// The largest payload, as JSON and as bytes.
pub async fn payload_at_the_limit_comes_back<H: Harness>(h: &H) {
    let json = format!("\"{}\"", "x".repeat(Payload::MAX_BYTES - 2));
    let bytes: Vec<u8> = (0..Payload::MAX_BYTES).map(|at| (at % 251) as u8).collect();
    let events = [
        Event::json("Large", json).unwrap(),
        Event::builder("Large").bytes(bytes).build().unwrap(),
    ];
    assert_payloads(h, &events).await;
}

/// One by one and as a batch, by fetching and by claiming.
async fn assert_payloads<H: Harness>(h: &H, events: &[Event]) {
    let store = h.store();
    write(h, events).await;
    let alone: Vec<_> = events
        .iter()
        .map(|event| event.to_builder().id(format!("{}-alone", event.id())).build().unwrap())
        .collect();
    for event in &alone {
        write(h, std::slice::from_ref(event)).await;
    }
    for event in events.iter().chain(&alone) {
        let stored = fetch(&*store, event.id()).await.event.unwrap();
        assert!(
            stored.payload() == event.payload(),
            "{:?} is not {:?}",
            stored.payload(),
            event.payload()
        );
    }
    let claimed = claim(&*store, "node", LONG).await;
    assert_eq!(claimed.len(), events.len() * 2);
    for row in claimed {
        let read = row.event.unwrap();
        let written = events
            .iter()
            .chain(&alone)
            .find(|event| event.id() == read.id())
            .unwrap();
        assert!(
            read.payload() == written.payload(),
            "{:?} is not {:?}",
            read.payload(),
            written.payload()
        );
    }
}

/// Within a batch of several inserts, and from one transaction to the next.
pub async fn seq_is_the_order_of_writing<H: Harness>(h: &H) {
    let events = events(1_200);
    let mut seqs = write(h, &events[..1_100]).await;
    for event in &events[1_100..] {
        seqs.extend(write(h, std::slice::from_ref(event)).await);
    }
    assert_eq!(seqs.len(), events.len());
    assert!(seqs.windows(2).all(|pair| pair[0] < pair[1]), "{seqs:?}");
    let store = h.store();
    for at in [0, 1, 499, 500, 501, 999, 1_000, 1_099, 1_100, 1_199] {
        assert_eq!(fetch(&*store, events[at].id()).await.seq, seqs[at]);
    }
}

/// Rolled back or dropped, nothing is there; and nobody sees it before the commit.
pub async fn rolled_back_rows_are_not_there<H: Harness>(h: &H) {
    let store = h.store();
    let statements = H::Database::statements(&h.table());
    for explicitly in [true, false] {
        let event = event("Never");
        let rows = [NewRow {
            event: &event,
            born: None,
        }];
        let mut tx = H::Database::begin(h.pool(), &statements).await.unwrap();
        H::Database::insert(&mut tx, &statements, &[&rows]).await.unwrap();
        assert_eq!(store.count(&Filter::all(), 10).await.unwrap(), 0, "before the commit");
        if explicitly {
            H::Database::rollback(tx).await.unwrap();
        } else {
            drop(tx);
        }
        assert_eq!(store.count(&Filter::all(), 10).await.unwrap(), 0);
    }
    assert!(claim(&*store, "node", LONG).await.is_empty());
    write(h, &events(1)).await;
    assert_eq!(claim(&*store, "node", LONG).await.len(), 1);
}

/// A savepoint that is released shares the fate of its transaction; one that is not leaves nothing.
pub async fn rows_of_a_rolled_back_savepoint_are_not_there<H: Harness>(h: &H) {
    let store = h.store();
    let statements = H::Database::statements(&h.table());
    let kept = [event("Kept"), event("Kept"), event("Kept")];
    let never = [event("Never"), event("Never")];
    fn row(event: &Event) -> [NewRow<'_>; 1] {
        [NewRow { event, born: None }]
    }
    let mut tx = H::Database::begin(h.pool(), &statements).await.unwrap();
    H::Database::insert(&mut tx, &statements, &[&row(&kept[0])])
        .await
        .unwrap();
    H::Database::set_savepoint(&mut tx).await.unwrap();
    H::Database::insert(&mut tx, &statements, &[&row(&kept[1])])
        .await
        .unwrap();
    H::Database::set_savepoint(&mut tx).await.unwrap();
    H::Database::insert(&mut tx, &statements, &[&row(&never[0])])
        .await
        .unwrap();
    H::Database::rollback_savepoint(&mut tx).await.unwrap();
    H::Database::release_savepoint(&mut tx).await.unwrap();

    H::Database::set_savepoint(&mut tx).await.unwrap();
    H::Database::insert(&mut tx, &statements, &[&row(&never[1])])
        .await
        .unwrap();
    H::Database::abandon_savepoint(&mut tx);
    H::Database::insert(&mut tx, &statements, &[&row(&kept[2])])
        .await
        .unwrap();
    H::Database::commit(tx).await.unwrap();

    for event in &kept {
        fetch(&*store, event.id()).await;
    }
    assert_eq!(store.count(&Filter::all(), 10).await.unwrap(), 3);
}

/// An id that is committed, or written earlier in the same transaction, is a unique violation.
pub async fn duplicate_id_is_refused<H: Harness>(h: &H) {
    let statements = H::Database::statements(&h.table());
    let first = event("First");
    write(h, std::slice::from_ref(&first)).await;
    let twin = first.to_builder().header("twin", "yes").build().unwrap();
    let other = event("Other");
    let row = |event| [NewRow { event, born: None }];

    let mut tx = H::Database::begin(h.pool(), &statements).await.unwrap();
    let error = H::Database::insert(&mut tx, &statements, &[&row(&twin)])
        .await
        .unwrap_err();
    assert!(
        error
            .as_database_error()
            .is_some_and(|error| error.is_unique_violation()),
        "{error}"
    );
    H::Database::rollback(tx).await.unwrap();

    let mut tx = H::Database::begin(h.pool(), &statements).await.unwrap();
    H::Database::insert(&mut tx, &statements, &[&row(&other)])
        .await
        .unwrap();
    let error = H::Database::insert(&mut tx, &statements, &[&row(&other)])
        .await
        .unwrap_err();
    assert!(
        error
            .as_database_error()
            .is_some_and(|error| error.is_unique_violation()),
        "{error}"
    );
    H::Database::rollback(tx).await.unwrap();

    let store = h.store();
    assert_eq!(fetch(&*store, first.id()).await.event.unwrap(), first);
    assert_eq!(store.count(&Filter::all(), 10).await.unwrap(), 1);
}

/// A batch of several inserts of which the last fails.
pub async fn failed_batch_leaves_nothing<H: Harness>(h: &H) {
    let statements = H::Database::statements(&h.table());
    let taken = event("Taken");
    write(h, std::slice::from_ref(&taken)).await;
    let mut batch = events(700);
    batch.push(taken);
    let rows: Vec<_> = batch.iter().map(|event| NewRow { event, born: None }).collect();
    let chunks: Vec<_> = rows.chunks(300).collect();

    let mut tx = H::Database::begin(h.pool(), &statements).await.unwrap();
    H::Database::insert(&mut tx, &statements, &chunks).await.unwrap_err();
    // The caller may go on, where the database lets it: the failure took back what the batch had written.
    let _ = H::Database::commit(tx).await;
    assert_eq!(h.store().count(&Filter::all(), 1_000).await.unwrap(), 1);
}
