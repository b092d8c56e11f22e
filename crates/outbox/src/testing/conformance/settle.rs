use std::time::Duration;

use super::{Harness, LONG, SHORT, claim, claim_one, dead, defer, event, events, fetch, retry, settle, settle_one};
use super::{settle_all, snapshot, until, write, write_one};
use crate::event::Event;
use crate::store::{Filter, Lease, MAX_ERROR_CHARS, Ownership, Settled, Settlement, Status, Verdict};

/// Every verdict in one call, one of them stale: each stands for itself.
pub async fn settle_writes_mixed_outcomes<H: Harness>(h: &H) {
    let store = h.store();
    let events = events(6);
    write(h, &events).await;
    let claimed = claim(&*store, "node", LONG).await;
    let lease = |at: usize| claimed[at].lease;
    let stale = Lease {
        token: lease(5).token + 1,
        ..lease(5)
    };
    let untouched = snapshot(&*store, events[5].id()).await;
    let verdicts = [
        (lease(0), Verdict::Done),
        (lease(1), retry(LONG, "try again")),
        (stale, dead("must not be written")),
        (lease(2), dead("hopeless")),
        (lease(3), defer(LONG)),
        (lease(4), Verdict::DoneAndDeleted),
    ];
    let settled = settle(&*store, &verdicts).await;
    assert_eq!(settled, Settled { applied: 5, stale: 1 });

    let done = fetch(&*store, events[0].id()).await;
    assert_eq!((done.status, done.attempts), (Status::Done, 0));
    assert!(done.done_at.unwrap() >= done.created_at);
    assert_eq!((done.dead_at, done.last_error), (None, None));
    assert_eq!((done.locked_by, done.lease_until), (None, None));

    let retried = fetch(&*store, events[1].id()).await;
    assert_eq!((retried.status, retried.attempts), (Status::Retry, 1));
    assert_eq!(retried.last_error.as_deref(), Some("try again"));
    assert!(retried.available_at >= retried.created_at + LONG);
    assert_eq!((retried.done_at, retried.dead_at), (None, None));
    assert_eq!((retried.locked_by, retried.lease_until), (None, None));
    assert!(retried.token > lease(1).token);

    let buried = fetch(&*store, events[2].id()).await;
    assert_eq!((buried.status, buried.attempts), (Status::Dead, 1));
    assert_eq!(buried.last_error.as_deref(), Some("hopeless"));
    assert!(buried.dead_at.unwrap() >= buried.created_at);
    assert_eq!(
        (buried.locked_by, buried.lease_until, buried.done_at),
        (None, None, None)
    );

    let deferred = fetch(&*store, events[3].id()).await;
    assert_eq!((deferred.status, deferred.attempts), (Status::New, 0));
    assert_eq!(deferred.last_error, None);
    assert!(deferred.available_at >= deferred.created_at + LONG);
    assert_eq!((deferred.locked_by, deferred.lease_until), (None, None));
    assert!(deferred.token > lease(3).token);

    assert!(store.fetch(events[4].id()).await.unwrap().is_none());
    assert_eq!(snapshot(&*store, events[5].id()).await, untouched);
    assert_eq!(store.attempts(events[5].id()).await.unwrap(), []);
    assert!(claim(&*store, "node", LONG).await.is_empty());
}

/// Whatever is written under a token that is not the row's changes nothing.
pub async fn stale_token_is_refused<H: Harness>(h: &H) {
    let (store, other) = (h.store(), h.store());
    let id = write_one(h).await;
    let first = claim_one(&*store, "node-1", LONG).await;
    store.release(&[first.lease]).await.unwrap();
    claim_one(&*other, "node-2", LONG).await;
    let before = snapshot(&*store, &id).await;

    let verdicts = [
        Verdict::Done,
        Verdict::DoneAndDeleted,
        retry(Duration::ZERO, "stale"),
        dead("stale"),
        defer(Duration::ZERO),
    ];
    for verdict in verdicts {
        let settled = settle(&*store, &[(first.lease, verdict.clone())]).await;
        assert_eq!(settled, Settled { applied: 0, stale: 1 }, "{verdict:?}");
        assert_eq!(snapshot(&*store, &id).await, before, "{verdict:?}");
    }
    assert!(store.renew(&[first.lease], LONG * 2).await.unwrap().is_empty());
    assert_eq!(store.release(&[first.lease]).await.unwrap(), 0);
    assert!(
        store
            .read_leased(&[first.lease], Duration::ZERO)
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(snapshot(&*store, &id).await, before);
    assert!(store.attempts(&id).await.unwrap().is_empty());
}

/// Delivered rows that have one token, and those that have several: each is settled by its own, and only by that.
pub async fn tokens_are_compared_row_by_row<H: Harness>(h: &H) {
    let store = h.store();
    for done in [Verdict::Done, Verdict::DoneAndDeleted] {
        let written = events(4);
        write(h, &written).await;
        let claimed = claim(&*store, "node", LONG).await;
        let mut leases: Vec<Lease> = claimed.iter().map(|row| row.lease).collect();
        // Two were let go, and taken again: their token is another one.
        store.release(&leases[2..]).await.unwrap();
        let again = claim(&*store, "node", LONG).await;
        let before = leases[2];
        for lease in &mut leases[2..] {
            *lease = again.iter().find(|row| row.lease.seq == lease.seq).unwrap().lease;
        }
        let batch = |leases: &[Lease]| leases.iter().map(|lease| (*lease, done.clone())).collect::<Vec<_>>();

        // Of one token, which one of them no longer has.
        let settled = settle(&*store, &batch(&[leases[0], before])).await;
        assert_eq!(settled, Settled { applied: 1, stale: 1 }, "{done:?}");
        // Of several, which are exchanged for two of them.
        let exchanged = |one: Lease, other: Lease| Lease {
            seq: one.seq,
            token: other.token,
        };
        let wrong = [exchanged(leases[1], leases[2]), exchanged(leases[2], leases[1])];
        let settled = settle(&*store, &batch(&wrong)).await;
        assert_eq!(settled, Settled { applied: 0, stale: 2 }, "{done:?}");
        let settled = settle(&*store, &batch(&leases[1..])).await;
        assert_eq!(settled, Settled { applied: 3, stale: 0 }, "{done:?}");
    }
}

/// Rows of one hand and one token: some are settled, near each other and far apart, and those among them are not.
pub async fn rows_between_the_settled_ones_are_left_alone<H: Harness>(h: &H) {
    let store = h.store();
    for done in [Verdict::Done, Verdict::DoneAndDeleted] {
        write(h, &events(60)).await;
        let mut ours: Vec<Lease> = claim(&*store, "node", LONG).await.iter().map(|row| row.lease).collect();
        ours.sort_by_key(|lease| lease.seq);
        let all = ours.clone();
        for settled in [vec![3, 11, 4, 0, 19], vec![59, 8, 7, 2], vec![20, 58], vec![40]] {
            let settled: Vec<Lease> = settled.into_iter().map(|at: usize| all[at]).collect();
            let batch: Vec<_> = settled.iter().map(|&lease| (lease, done.clone())).collect();
            let written = settle(&*store, &batch).await;
            assert_eq!((written.applied, written.stale), (batch.len() as u64, 0), "{done:?}");

            ours.retain(|lease| !settled.contains(lease));
            let left = store.read_leased(&all, Duration::ZERO).await.unwrap();
            let mut left: Vec<Lease> = left.iter().map(|row| row.lease).collect();
            left.sort_by_key(|lease| lease.seq);
            assert_eq!(left, ours, "{done:?} {settled:?}");
        }
        store.release(&ours).await.unwrap();
        settle_all(&*store, done).await;
    }
}

/// The answer to a settlement was lost, and it is sent again.
pub async fn repeated_settlement_changes_nothing<H: Harness>(h: &H) {
    let store = h.store();
    let events = events(5);
    write(h, &events).await;
    let claimed = claim(&*store, "node", LONG).await;
    let verdicts = [
        Verdict::Done,
        retry(Duration::ZERO, "again"),
        dead("hopeless"),
        defer(Duration::ZERO),
        Verdict::DoneAndDeleted,
    ];
    let batch: Vec<_> = claimed.iter().map(|row| row.lease).zip(verdicts).collect();
    assert_eq!(settle(&*store, &batch).await, Settled { applied: 5, stale: 0 });
    let mut before = Vec::new();
    for event in &events[..4] {
        before.push(snapshot(&*store, event.id()).await);
    }

    assert_eq!(settle(&*store, &batch).await, Settled { applied: 0, stale: 5 });
    for (event, before) in events.iter().zip(before) {
        assert_eq!(snapshot(&*store, event.id()).await, before);
    }
    assert!(store.fetch(events[4].id()).await.unwrap().is_none());
    for (event, attempts) in events.iter().zip([0, 1, 1, 0]) {
        assert_eq!(fetch(&*store, event.id()).await.attempts, attempts);
        assert_eq!(store.attempts(event.id()).await.unwrap().len(), attempts as usize);
    }
}

/// A late word counts as long as nobody else has the row: the event was delivered, after all.
pub async fn settlement_after_the_lease_is_written_if_nobody_took_over<H: Harness>(h: &H) {
    let store = h.store();
    let id = write_one(h).await;
    let claimed = claim_one(&*store, "node", Duration::from_millis(1)).await;
    let probe = Event::builder("Probe")
        .deliver_after(Duration::from_millis(50))
        .json("{}")
        .build()
        .unwrap();
    write(h, std::slice::from_ref(&probe)).await;
    // Looks at nothing but the probe, which is due after the lease has ended.
    let due = fetch(&*store, probe.id()).await.available_at.timestamp_micros();
    until("the probe to be due", async || {
        let claim = crate::store::Claim {
            owner: "prober",
            lease: LONG,
            limit: 1,
            skip_recent: Duration::ZERO,
            after: Some((due, 0)),
        };
        store.claim(&claim).await.unwrap().pop()
    })
    .await;
    settle_one(&*store, claimed.lease, Verdict::Done).await;
    assert_eq!(fetch(&*store, &id).await.status, Status::Done);
}

/// For a retention of zero.
pub async fn done_and_deleted_row_is_gone<H: Harness>(h: &H) {
    let store = h.store();
    let id = write_one(h).await;
    let failed = claim_one(&*store, "node", LONG).await;
    settle_one(&*store, failed.lease, retry(Duration::ZERO, "once")).await;
    let claimed = until("the retry to be due", async || claim(&*store, "node", LONG).await.pop()).await;
    settle_one(&*store, claimed.lease, Verdict::DoneAndDeleted).await;
    assert!(store.fetch(&id).await.unwrap().is_none());
    assert!(store.attempts(&id).await.unwrap().is_empty());
    assert!(claim(&*store, "node", LONG).await.is_empty());
}

/// Not before its time by the database's clock, and then with the attempt counted.
pub async fn retried_row_is_due_later<H: Harness>(h: &H) {
    let store = h.store();
    let id = write_one(h).await;
    let first = claim_one(&*store, "node", LONG).await;
    settle_one(&*store, first.lease, retry(SHORT, "not yet")).await;
    let due = fetch(&*store, &id).await.available_at;
    let second = until("the retry to be due", async || claim(&*store, "node", LONG).await.pop()).await;
    assert_eq!(second.attempts, 1);
    assert!(second.lease.token > first.lease.token);
    assert_eq!(second.due_at, due.timestamp_micros());
    assert!(fetch(&*store, &id).await.lease_until.unwrap() - LONG >= due);

    settle_one(&*store, second.lease, retry(Duration::ZERO, "still not")).await;
    let third = until("the retry to be due", async || claim(&*store, "node", LONG).await.pop()).await;
    assert_eq!(third.attempts, 2);
    settle_one(&*store, third.lease, Verdict::Done).await;
    let stored = fetch(&*store, &id).await;
    assert_eq!((stored.status, stored.attempts), (Status::Done, 2));
}

/// A row that is put off keeps its status and its history as they were.
pub async fn deferred_row_counts_no_attempt<H: Harness>(h: &H) {
    let store = h.store();
    let id = write_one(h).await;
    let first = claim_one(&*store, "node", LONG).await;
    settle_one(&*store, first.lease, retry(Duration::ZERO, "failed once")).await;
    let second = until("the retry to be due", async || claim(&*store, "node", LONG).await.pop()).await;
    settle_one(&*store, second.lease, defer(SHORT)).await;

    let stored = fetch(&*store, &id).await;
    assert_eq!((stored.status, stored.attempts), (Status::Retry, 1));
    assert_eq!(stored.last_error.as_deref(), Some("failed once"));
    let third = until("the deferred row to be due", async || {
        claim(&*store, "node", LONG).await.pop()
    })
    .await;
    assert_eq!(third.attempts, 1);
    assert!(fetch(&*store, &id).await.lease_until.unwrap() - LONG >= stored.available_at);
    assert_eq!(store.attempts(&id).await.unwrap().len(), 1);
}

/// So that a retry runs only those that have not succeeded.
pub async fn finished_listeners_are_remembered<H: Harness>(h: &H) {
    let store = h.store();
    write_one(h).await;
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let claimed = claim_one(&*store, "node", LONG).await;
    let verdict = Verdict::Retry {
        after: Duration::ZERO,
        error: "the third failed".to_owned(),
        done_by: names(&["mailer", "search index"]),
    };
    settle_one(&*store, claimed.lease, verdict).await;
    let claimed = until("the retry to be due", async || claim(&*store, "node", LONG).await.pop()).await;
    assert_eq!(claimed.done_by, names(&["mailer", "search index"]));

    let verdict = Verdict::Defer {
        after: Duration::ZERO,
        done_by: names(&["mailer", "search index", "audit"]),
    };
    settle_one(&*store, claimed.lease, verdict).await;
    let claimed = until("the deferred row to be due", async || {
        claim(&*store, "node", LONG).await.pop()
    })
    .await;
    assert_eq!(claimed.done_by, names(&["mailer", "search index", "audit"]));

    settle_one(&*store, claimed.lease, retry(Duration::ZERO, "start over")).await;
    let claimed = until("the retry to be due", async || claim(&*store, "node", LONG).await.pop()).await;
    assert!(claimed.done_by.is_empty());

    let verdict = Verdict::Dead {
        error: "the second failed for good".to_owned(),
        done_by: names(&["mailer"]),
    };
    settle_one(&*store, claimed.lease, verdict).await;
    store.replay(&Filter::all(), 1).await.unwrap();
    let claimed = until("the replay to be due", async || {
        claim(&*store, "node", LONG).await.pop()
    })
    .await;
    assert_eq!(claimed.done_by, names(&["mailer"]));
}

/// In characters, not bytes.
pub async fn long_error_is_cut<H: Harness>(h: &H) {
    let store = h.store();
    let events = events(2);
    write(h, &events).await;
    let claimed = claim(&*store, "node", LONG).await;
    let long = "\u{1F600}\u{fc}".repeat(MAX_ERROR_CHARS);
    let batch = [(claimed[0].lease, retry(LONG, &long)), (claimed[1].lease, dead(&long))];
    assert_eq!(settle(&*store, &batch).await.applied, 2);
    let expected: String = long.chars().take(MAX_ERROR_CHARS).collect();
    for event in &events {
        assert_eq!(fetch(&*store, event.id()).await.last_error.unwrap(), expected);
        assert_eq!(store.attempts(event.id()).await.unwrap()[0].error, expected);
    }
}

/// NUL, which not every database can hold, becomes the replacement character; all else stays.
pub async fn error_with_nul_is_kept<H: Harness>(h: &H) {
    let store = h.store();
    let events = events(2);
    write(h, &events).await;
    let claimed = claim(&*store, "node", LONG).await;
    let text = "a\0b\r\n\t'\"\\ %_ \u{1b}[31m";
    let batch = [(claimed[0].lease, retry(LONG, text)), (claimed[1].lease, dead(text))];
    assert_eq!(settle(&*store, &batch).await.applied, 2);
    for event in &events {
        let error = fetch(&*store, event.id()).await.last_error.unwrap();
        assert_eq!(error, text.replace('\0', "\u{fffd}"));
    }
}

/// As many as a settler may gather, of every kind.
pub async fn large_batch_is_settled_at_once<H: Harness>(h: &H) {
    let store = h.store();
    let events = events(3_000);
    write(h, &events).await;
    let claimed = claim(&*store, "node", LONG).await;
    assert_eq!(claimed.len(), 3_000);
    let settlements: Vec<_> = claimed
        .iter()
        .enumerate()
        .map(|(at, row)| {
            let verdict = match at % 3 {
                0 => Verdict::Done,
                1 => retry(LONG, "later"),
                _ => dead("never"),
            };
            Settlement::new(row.lease, verdict)
        })
        .collect();
    let settled = store.settle("node", Ownership::Rows, &settlements).await.unwrap();
    assert_eq!(
        settled,
        Settled {
            applied: 3_000,
            stale: 0
        }
    );
    for status in [Status::Done, Status::Retry, Status::Dead] {
        let count = store.count(&Filter::status(status), 5_000).await.unwrap();
        assert_eq!(count, 1_000, "{status}");
    }
    let settled = store.settle("node", Ownership::Rows, &settlements).await.unwrap();
    assert_eq!(
        settled,
        Settled {
            applied: 0,
            stale: 3_000
        }
    );
}

/// An empty batch, and one whose rows are unknown.
pub async fn nothing_to_settle_is_no_error<H: Harness>(h: &H) {
    let store = h.store();
    write(h, &[event("Bystander")]).await;
    assert_eq!(settle(&*store, &[]).await, Settled::default());
    let unknown = Lease {
        seq: 1_000_000,
        token: 1,
    };
    assert_eq!(
        settle(&*store, &[(unknown, dead("who?"))]).await,
        Settled { applied: 0, stale: 1 }
    );
}
