use std::sync::Arc;
use std::time::Duration;

use super::{Harness, LONG, SHORT, defer, event, fetch, retry, settle_one, until, write, write_born};
use crate::event::Event;
use crate::store::{
    Born, LaneRead, LaneRows, LaneSet, LaneShare, Lease, NewRow, Ownership, Page, Settlement, Status, Store, Verdict,
    Wanted,
};
use crate::write::Backend;

const IN_ORDER: Wanted<'static> = Wanted::InOrder {
    since: None,
    up_to: None,
    keys: None,
    without: &[],
};

const DELIVERABLE: Wanted<'static> = Wanted::Deliverable {
    skip_recent: Duration::ZERO,
};

async fn share(store: &dyn Store, member: &str, joining: bool, lease: Duration) -> Option<LaneShare> {
    store.share_lanes(member, joining, lease, true).await.unwrap()
}

async fn join(store: &dyn Store, member: &str) -> LaneShare {
    share(store, member, true, LONG).await.unwrap()
}

async fn read(store: &dyn Store, lanes: LaneSet, wanted: Wanted<'_>) -> LaneRows {
    let read = LaneRead {
        lanes,
        after: 0,
        limit: 1000,
        wanted,
    };
    store.read_lanes(&read).await.unwrap()
}

fn seqs(rows: &LaneRows) -> Vec<i64> {
    rows.rows.iter().map(|row| row.row.lease.seq).collect()
}

fn keyed(id: &str) -> Event {
    let builder = Event::builder("Keyed").aggregate_type("Order").aggregate_id(id);
    builder.json("{}").build().unwrap()
}

async fn settle_as(store: &dyn Store, member: &str, by: Ownership, lease: Lease, verdict: Verdict) -> u64 {
    let settled = store
        .settle(member, by, &[Settlement::new(lease, verdict)])
        .await
        .unwrap();
    assert_eq!(settled.applied + settled.stale, 1);
    settled.applied
}

fn parked() -> Verdict {
    Verdict::DeadAndParked {
        error: "no more".to_owned(),
        done_by: Vec::new(),
    }
}

async fn blocked(store: &dyn Store) -> Vec<String> {
    let page = Page { after: 0, limit: 100 };
    let keys = store.blocked_keys(page).await.unwrap();
    keys.into_iter().map(|key| key.aggregate_id).collect()
}

/// Every lane has an owner, and all own as many as they should.
pub async fn members_share_the_lanes<H: Harness>(h: &H) {
    let store = h.store();
    let alone = join(&*store, "a").await;
    assert_eq!((alone.held, alone.members), (LaneSet::ALL, 1));
    assert_eq!(join(&*store, "b").await.held, LaneSet::NONE, "they are all taken");
    // The first has too many, and gives them up.
    let first = share(&*store, "a", false, LONG).await.unwrap();
    assert_eq!(first.members, 2);
    let excess = first.held.without(first.held.first(first.fair));
    store.give_up_lanes("a", excess).await.unwrap();
    let second = share(&*store, "b", false, LONG).await.unwrap();
    let first = share(&*store, "a", false, LONG).await.unwrap();
    assert_eq!((first.held.len(), second.held.len()), (first.fair, second.fair));
    assert_eq!(first.held.len() + second.held.len(), 64);
    assert!(first.held.and(second.held).is_empty());
}

/// Something after the first step was refused, and all of it is tried again.
pub async fn joining_can_be_tried_again<H: Harness>(h: &H) {
    let store = h.store();
    let first = join(&*store, "member").await;
    assert_eq!(join(&*store, "member").await, first);
    assert_eq!(first.members, 1);
}

/// Without `take` a member only shows that it lives.
pub async fn member_that_does_not_take_gets_nothing<H: Harness>(h: &H) {
    let store = h.store();
    let share = store.share_lanes("a", true, LONG, false).await.unwrap().unwrap();
    assert_eq!((share.held, share.fair), (LaneSet::NONE, 64));
}

/// Whoever does not renew is struck off, and cannot come back under the same name.
pub async fn dead_member_is_struck_off<H: Harness>(h: &H) {
    let store = h.store();
    share(&*store, "dead", true, SHORT).await.unwrap();
    let heir = until("the lanes to be taken over", async || {
        let joining = store.share_lanes("heir", false, LONG, true).await.unwrap().is_none();
        let share = share(&*store, "heir", joining, LONG).await.unwrap();
        (share.held == LaneSet::ALL).then_some(share)
    })
    .await;
    assert_eq!(heir.members, 1);
    assert_eq!(share(&*store, "dead", false, LONG).await, None);
}

/// A member that leaves frees its lanes at once.
pub async fn member_that_leaves_frees_its_lanes<H: Harness>(h: &H) {
    let store = h.store();
    join(&*store, "a").await;
    join(&*store, "b").await;
    store.leave("a").await.unwrap();
    assert_eq!(share(&*store, "b", false, LONG).await.unwrap().held, LaneSet::ALL);
    assert_eq!(share(&*store, "a", false, LONG).await, None);
}

/// Many ask at once, over several stores; no lane ever has two owners.
pub async fn no_lane_has_two_owners<H: Harness>(h: &H) {
    let stores: Vec<_> = (0..3).map(|_| h.store()).collect();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..6 {
        let store = Arc::clone(&stores[task % 3]);
        tasks.spawn(async move {
            let member = format!("node-{task}");
            let mut share = join(&*store, &member).await;
            for _ in 0..5 {
                let excess = share.held.without(share.held.first(share.fair));
                store.give_up_lanes(&member, excess).await.unwrap();
                share = store.share_lanes(&member, false, LONG, true).await.unwrap().unwrap();
            }
            share.held.without(share.held.without(share.held.first(share.fair)))
        });
    }
    let held = tasks.join_all().await;
    let total: usize = held.iter().map(|lanes| lanes.len()).sum();
    let all: LaneSet = held.iter().flat_map(|lanes| lanes.iter()).collect();
    assert_eq!(all.len(), total, "{held:?}");
}

/// In the order of writing, each row in one lane, nothing claimed.
pub async fn lanes_are_read_in_the_order_of_writing<H: Harness>(h: &H) {
    let store = h.store();
    let events: Vec<Event> = (0..200).map(|n| keyed(&format!("key-{n}"))).collect();
    let written = write(h, &events).await;
    for wanted in [DELIVERABLE, IN_ORDER] {
        assert_eq!(seqs(&read(&*store, LaneSet::ALL, wanted.clone()).await), written);
        let half = LaneSet::ALL.first(32);
        let mut parts = seqs(&read(&*store, half, wanted.clone()).await);
        assert!(
            !parts.is_empty() && parts.len() < 200,
            "{} of 200 in half of the lanes",
            parts.len()
        );
        parts.extend(seqs(&read(&*store, LaneSet::ALL.without(half), wanted.clone()).await));
        parts.sort_unstable();
        assert_eq!(parts, written);
        let page = LaneRead {
            lanes: LaneSet::ALL,
            after: written[49],
            limit: 50,
            wanted,
        };
        assert_eq!(seqs(&store.read_lanes(&page).await.unwrap()), written[50..100]);
    }
}

/// A key is in one lane, whatever its events are.
pub async fn key_is_in_one_lane<H: Harness>(h: &H) {
    let store = h.store();
    write(h, &[keyed("one"), keyed("one"), event("Other"), keyed("one")]).await;
    let rows = read(&*store, LaneSet::ALL, IN_ORDER).await.rows;
    let lanes: Vec<u8> = rows
        .iter()
        .filter(|row| row.row.event.as_ref().unwrap().aggregate_id().is_some())
        .map(|row| row.lane)
        .collect();
    assert_eq!(lanes, [lanes[0]; 3]);
}

/// Rows that belong to a living hot path are left alone; those whose lease has ended are shown as such.
pub async fn leased_rows_are_left_to_their_owner<H: Harness>(h: &H) {
    let store = h.store();
    let born = |lease| Born {
        owner: "hot",
        lease,
        token: 7,
    };
    write_born(h, &[keyed("living")], Some(born(LONG))).await;
    let ended = write_born(h, &[keyed("dead")], Some(born(SHORT))).await;
    let rows = until("the lease to end", async || {
        let rows = read(&*store, LaneSet::ALL, DELIVERABLE).await.rows;
        (!rows.is_empty()).then_some(rows)
    })
    .await;
    assert_eq!(rows.iter().map(|row| row.row.lease.seq).collect::<Vec<_>>(), ended);
    assert!(rows[0].row.recovered);
    let in_order = read(&*store, LaneSet::ALL, IN_ORDER).await.rows;
    assert_eq!(in_order.len(), 2);
    assert!(!in_order[0].rests.is_zero() && !in_order[0].row.recovered);
}

/// The fence: what a member that was struck off says about a row changes nothing, and neither does a stale token.
pub async fn member_that_was_struck_off_settles_nothing<H: Harness>(h: &H) {
    let store = h.store();
    let events: Vec<Event> = (0..6).map(|n| keyed(&format!("key-{n}"))).collect();
    write(h, &events).await;
    join(&*store, "member").await;
    let rows = read(&*store, LaneSet::ALL, IN_ORDER).await.rows;
    let verdicts = [
        Verdict::Done,
        Verdict::DoneAndDeleted,
        retry(Duration::ZERO, "x"),
        defer(Duration::ZERO),
        parked(),
    ];
    for by in [Ownership::Lanes, Ownership::Keys] {
        for (row, verdict) in rows.iter().zip(&verdicts) {
            assert_eq!(
                settle_as(&*store, "stranger", by, row.row.lease, verdict.clone()).await,
                0
            );
        }
    }
    assert!(blocked(&*store).await.is_empty());
    for event in &events {
        assert_eq!(fetch(&*store, event.id()).await.status, Status::New);
    }
    let stale = Lease {
        token: rows[5].row.lease.token - 1,
        ..rows[5].row.lease
    };
    assert_eq!(
        settle_as(&*store, "member", Ownership::Keys, stale, Verdict::Done).await,
        0
    );
    for (row, verdict) in rows.iter().zip(verdicts) {
        assert_eq!(
            settle_as(&*store, "member", Ownership::Keys, row.row.lease, verdict).await,
            1
        );
    }
}

/// Taking over and settling race: whoever is struck off first has written nothing.
pub async fn takeover_and_settlement_do_not_overlap<H: Harness>(h: &H) {
    for round in 0..10 {
        let (store, other) = (h.store(), h.store());
        let member = format!("member-{round}");
        let event = keyed(&format!("key-{round}"));
        write(h, std::slice::from_ref(&event)).await;
        share(&*store, &member, true, Duration::from_millis(1)).await.unwrap();
        let lease = read(&*store, LaneSet::ALL, IN_ORDER).await.rows[0].row.lease;
        let heir = format!("heir-{round}");
        let (applied, _) = tokio::join!(
            settle_as(&*store, &member, Ownership::Keys, lease, Verdict::Done),
            until("the takeover", async || {
                let joining = other.share_lanes(&heir, false, LONG, true).await.unwrap().is_none();
                let share = share(&*other, &heir, joining, LONG).await.unwrap();
                (share.held == LaneSet::ALL).then_some(())
            })
        );
        // Who takes over sees whatever was written.
        let left = read(&*other, LaneSet::ALL, IN_ORDER).await.rows;
        assert_eq!(left.len() as u64 + applied, 1);
        if applied == 0 {
            let share = share(&*other, &heir, false, LONG).await.unwrap();
            assert_eq!(share.held, LaneSet::ALL);
            assert_eq!(
                settle_as(&*other, &heir, Ownership::Keys, lease, Verdict::Done).await,
                1
            );
        }
        other.leave(&heir).await.unwrap();
    }
}

/// A failed event holds back its key, and no other, until it is due.
pub async fn failed_event_holds_back_its_key<H: Harness>(h: &H) {
    let store = h.store();
    let written = write(h, &[keyed("bad"), keyed("bad"), keyed("good"), event("Keyless")]).await;
    join(&*store, "member").await;
    let rows = read(&*store, LaneSet::ALL, IN_ORDER).await;
    for verdict in [retry(LONG, "x"), defer(LONG)] {
        let lease = read(&*store, LaneSet::ALL, IN_ORDER).await.rows[0].row.lease;
        assert_eq!(settle_as(&*store, "member", Ownership::Keys, lease, verdict).await, 1);
        assert_eq!(seqs(&read(&*store, LaneSet::ALL, IN_ORDER).await), written[2..]);
        assert_eq!(blocked(&*store).await, ["bad"]);
        assert!(store.unblock_key("Order", "bad").await.unwrap());
        assert!(!store.unblock_key("Order", "bad").await.unwrap());
        assert!(blocked(&*store).await.is_empty());
        // A pass that had begun before leaves it out to its end, and so does one that begins while this becomes visible.
        let since = read(&*store, LaneSet::ALL, IN_ORDER).await.now;
        for since in [rows.now, since, since + 500_000] {
            let pass = Wanted::InOrder {
                since: Some(since),
                up_to: None,
                keys: None,
                without: &[],
            };
            assert_eq!(seqs(&read(&*store, LaneSet::ALL, pass).await), written[2..]);
        }
        // A later one sees it, and it is due.
        until("a later pass", async || {
            let later = read(&*store, LaneSet::ALL, IN_ORDER).await;
            let first = later.rows.first()?;
            (first.row.lease.seq == written[0] && first.rests.is_zero()).then_some(())
        })
        .await;
    }
}

/// A key that is blocked for a while is free when that is over.
pub async fn key_is_free_when_its_event_is_due<H: Harness>(h: &H) {
    let store = h.store();
    let written = write(h, &[keyed("bad"), keyed("bad")]).await;
    join(&*store, "member").await;
    let lease = read(&*store, LaneSet::ALL, IN_ORDER).await.rows[0].row.lease;
    settle_as(&*store, "member", Ownership::Keys, lease, retry(SHORT, "x")).await;
    assert!(read(&*store, LaneSet::ALL, IN_ORDER).await.rows.is_empty());
    until("the key to be free", async || {
        let rows = read(&*store, LaneSet::ALL, IN_ORDER).await;
        (seqs(&rows) == written && rows.rows[0].rests.is_zero()).then_some(())
    })
    .await;
    assert!(blocked(&*store).await.is_empty());
}

/// A parked key waits for an operator: who unblocks it, or replays or discards its event.
pub async fn parked_key_waits_for_an_operator<H: Harness>(h: &H) {
    use crate::store::Filter;
    let store = h.store();
    join(&*store, "member").await;
    for (n, way) in ["unblock", "replay", "discard"].into_iter().enumerate() {
        let (first, second) = (keyed(way), keyed(way));
        let written = write(h, &[first.clone(), second.clone()]).await;
        let lease = read(&*store, LaneSet::ALL, IN_ORDER).await.rows[0].row.lease;
        assert_eq!(lease.seq, written[0], "round {n}");
        settle_as(&*store, "member", Ownership::Keys, lease, parked()).await;
        assert_eq!(fetch(&*store, first.id()).await.status, Status::Dead);
        assert!(read(&*store, LaneSet::ALL, IN_ORDER).await.rows.is_empty());
        let keys = store.blocked_keys(Page { after: 0, limit: 10 }).await.unwrap();
        assert_eq!(keys.len(), 1);
        assert_eq!(
            (keys[0].event_id.as_deref(), keys[0].until),
            (Some(first.id().as_str()), None)
        );
        assert_eq!(keys[0].last_error.as_deref(), Some("no more"));
        let expected: &[i64] = match way {
            "unblock" => {
                assert!(store.unblock_key("Order", way).await.unwrap());
                &written[1..]
            }
            "replay" => {
                assert_eq!(store.replay(&Filter::id(first.id()), 1).await.unwrap(), 1);
                &written
            }
            _ => {
                assert_eq!(store.discard(&Filter::id(first.id()), 1).await.unwrap(), 1);
                &written[1..]
            }
        };
        until("the key to go on", async || {
            (seqs(&read(&*store, LaneSet::ALL, IN_ORDER).await) == expected).then_some(())
        })
        .await;
        assert!(blocked(&*store).await.is_empty());
        for row in read(&*store, LaneSet::ALL, IN_ORDER).await.rows {
            settle_as(&*store, "member", Ownership::Keys, row.row.lease, Verdict::Done).await;
        }
    }
}

/// An event that its producer has delayed holds nobody back, and joins in when it is due.
pub async fn delayed_event_holds_nobody_back<H: Harness>(h: &H) {
    let store = h.store();
    let delayed = Event::builder("Keyed")
        .aggregate_type("Order")
        .aggregate_id("one")
        .deliver_after(SHORT)
        .json("{}")
        .build()
        .unwrap();
    let written = write(h, &[delayed, keyed("one")]).await;
    assert_eq!(seqs(&read(&*store, LaneSet::ALL, IN_ORDER).await), written[1..]);
    until("it to be due", async || {
        (seqs(&read(&*store, LaneSet::ALL, IN_ORDER).await) == written).then_some(())
    })
    .await;
}

/// Only these keys, or all but these.
pub async fn keys_can_be_asked_for_or_left_out<H: Harness>(h: &H) {
    let store = h.store();
    let written = write(h, &[keyed("a"), keyed("b"), event("Keyless"), keyed("c"), keyed("a")]).await;
    let keys = [
        ("Order".to_owned(), "a".to_owned()),
        ("Order".to_owned(), "c".to_owned()),
    ];
    let wanted = |only: bool, up_to| Wanted::InOrder {
        since: None,
        up_to,
        keys: only.then_some(&keys[..]),
        without: if only { &[] } else { &keys },
    };
    let only = read(&*store, LaneSet::ALL, wanted(true, None)).await;
    assert_eq!(seqs(&only), [written[0], written[3], written[4]]);
    assert_eq!(only.last_seq, written[4]);
    let others = read(&*store, LaneSet::ALL, wanted(false, None)).await;
    assert_eq!(seqs(&others), [written[1], written[2]]);
    let bounded = read(&*store, LaneSet::ALL, wanted(true, Some(written[3]))).await;
    assert_eq!(seqs(&bounded), [written[0], written[3]]);
}

/// What a row of a lane is settled with counts like any other outcome.
pub async fn row_of_a_lane_is_settled_like_any_other<H: Harness>(h: &H) {
    let store = h.store();
    let event = keyed("one");
    write(h, std::slice::from_ref(&event)).await;
    join(&*store, "member").await;
    let lease = read(&*store, LaneSet::ALL, DELIVERABLE).await.rows[0].row.lease;
    settle_as(&*store, "member", Ownership::Lanes, lease, retry(Duration::ZERO, "x")).await;
    assert!(blocked(&*store).await.is_empty(), "only order holds keys back");
    let row = fetch(&*store, event.id()).await;
    assert_eq!((row.status, row.attempts), (Status::Retry, 1));
    let attempts = store.attempts(event.id()).await.unwrap();
    assert_eq!(attempts[0].node, "member");
    let lease = super::claim_one(&*store, "node", LONG).await.lease;
    settle_one(&*store, lease, Verdict::Done).await;
}

/// Lanes side by side or not: what lies between them is left alone.
pub async fn rows_are_read_and_settled_by_whatever_lanes<H: Harness>(h: &H) {
    let store = h.store();
    join(&*store, "member").await;
    let third = |of: u8| -> LaneSet { (0..64).filter(|lane| lane % 3 == of).collect() };
    let side_by_side = LaneSet::ALL.first(20);
    for (parts, done) in [
        (vec![third(0), third(1), third(2)], Verdict::Done),
        (
            vec![side_by_side, LaneSet::ALL.without(side_by_side)],
            Verdict::DoneAndDeleted,
        ),
    ] {
        let events: Vec<Event> = (0..200).map(|n| keyed(&format!("key-{n}"))).collect();
        let mut left = write(h, &events).await;
        for lanes in parts {
            let rows = read(&*store, lanes, DELIVERABLE).await.rows;
            let settlements = rows.iter().map(|row| Settlement {
                lease: row.row.lease,
                verdict: done.clone(),
                lane: Some(row.lane),
            });
            let settlements: Vec<_> = settlements.collect();
            let settled = store.settle("member", Ownership::Lanes, &settlements).await.unwrap();
            assert_eq!((settled.applied, settled.stale), (rows.len() as u64, 0), "{lanes:?}");
            left.retain(|seq| !rows.iter().any(|row| row.row.lease.seq == *seq));
            assert_eq!(seqs(&read(&*store, LaneSet::ALL, DELIVERABLE).await), left, "{lanes:?}");
        }
        assert!(left.is_empty());
    }
}

/// Delayed rows are not done with, nor those that park their key; those that were tried again are, once they are delivered.
pub async fn unsettled_row_is_pending_or_parks_its_key<H: Harness>(h: &H) {
    use crate::store::Filter;
    let store = h.store();
    let first = async |after| store.unsettled(after).await.unwrap().first;
    let replays = async || store.unsettled(0).await.unwrap().replays;
    assert_eq!(first(0).await, None);
    join(&*store, "member").await;
    let (stuck, next) = (keyed("stuck"), keyed("stuck"));
    let delayed = Event::builder("Keyed").deliver_after(LONG).json("{}").build().unwrap();
    let written = write(h, &[keyed("a"), stuck.clone(), next, delayed]).await;
    let [again, parks, waits, delayed] = written[..] else {
        panic!("{written:?}")
    };
    assert_eq!(first(0).await, Some(again));
    assert_eq!(first(again).await, Some(parks));
    assert_eq!(first(waits).await, Some(delayed));
    assert_eq!(first(delayed).await, None);
    for row in read(&*store, LaneSet::ALL, IN_ORDER).await.rows.drain(..2) {
        let lease = row.row.lease;
        let verdict = if lease.seq == parks {
            parked()
        } else {
            retry(Duration::ZERO, "once more")
        };
        settle_as(&*store, "member", Ownership::Keys, lease, verdict).await;
    }
    assert_eq!(first(0).await, Some(again), "to be tried again");
    let lease = until("the row to be due", async || {
        let rows = read(&*store, LaneSet::ALL, DELIVERABLE).await.rows;
        rows.iter().map(|row| row.row.lease).find(|lease| lease.seq == again)
    })
    .await;
    settle_as(&*store, "member", Ownership::Keys, lease, Verdict::Done).await;
    assert_eq!(first(0).await, Some(parks), "dead, and not done with");
    let before = replays().await;
    assert_eq!(store.replay(&Filter::id(stuck.id()), 1).await.unwrap(), 1);
    assert_eq!(first(0).await, Some(parks), "to be delivered again");
    assert!(replays().await > before, "a replay is told of");
    for row in read(&*store, LaneSet::ALL, DELIVERABLE).await.rows {
        settle_as(&*store, "member", Ownership::Keys, row.row.lease, Verdict::Done).await;
    }
    assert_eq!(first(0).await, Some(delayed));
}

/// Whoever has a `seq` is among them, and everybody who was listed is seen to have ended.
pub async fn writers_are_told_of_until_they_have_ended<H: Harness>(h: &H) {
    let store = h.store();
    let Some(nobody) = store.writers().await.unwrap() else {
        return;
    };
    assert_eq!((nobody.last_seq, nobody.transactions.len()), (0, 0));
    let statements = H::Database::statements(&h.table());
    for commits in [true, false] {
        let late = keyed("late");
        let born = Born {
            owner: "late",
            lease: LONG,
            token: 1,
        };
        let rows = [NewRow {
            event: &late,
            born: Some(born),
        }];
        let mut tx = H::Database::begin(h.pool(), &statements).await.unwrap();
        let inserted = H::Database::insert(&mut tx, &statements, &[&rows]).await.unwrap();
        let visible = write(h, &[keyed("early")]).await;
        assert!(inserted.seqs < visible);
        let writers = store.writers().await.unwrap().unwrap();
        assert_eq!((writers.last_seq, writers.transactions.len()), (visible[0], 1));
        assert_eq!(store.writers().await.unwrap().unwrap(), writers, "it is still there");
        match commits {
            true => H::Database::commit(tx).await.unwrap(),
            false => H::Database::rollback(tx).await.unwrap(),
        }
        let after = store.writers().await.unwrap().unwrap();
        assert!(after.transactions.is_disjoint(&writers.transactions));
        let read = read(&*store, LaneSet::ALL, IN_ORDER).await;
        assert_eq!(
            seqs(&read).contains(&inserted.seqs[0]),
            commits,
            "and what it wrote, or not, is seen"
        );
    }
}
