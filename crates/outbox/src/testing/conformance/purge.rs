use std::time::Duration;

use super::{
    Harness, LONG, claim, dead, event, events, retry, settle, settle_all, until, write, write_dead, write_one,
};
use crate::event::Event;
use crate::store::{Filter, Page, Purge, Purged, Status, Store, Verdict};

fn finished(statuses: &[Status]) -> Purge {
    Purge {
        statuses: statuses.to_vec(),
        older_than: Duration::ZERO,
        event_type: None,
        by_age_alone: false,
        limit: 100,
    }
}

/// Step by step to the end.
async fn run(store: &dyn Store, purge: &Purge) -> Vec<Purged> {
    let mut steps = Vec::new();
    let mut after = 0;
    loop {
        let purged = store.purge(purge, after).await.unwrap();
        steps.push(purged);
        assert!(purged.deleted <= purge.limit as u64);
        assert!(steps.len() < 1_000, "the purge does not end");
        match purged.next {
            Some(next) => {
                assert!(next > after, "the purge does not go on");
                after = next;
            }
            None => return steps,
        }
    }
}

/// Rows finished within the clock's last tick are not older than zero: purges until `expected` are gone.
async fn purge_until(store: &dyn Store, purge: &Purge, expected: u64) {
    let mut deleted = 0;
    until("the rows to be old enough", async || {
        deleted += run(store, purge).await.iter().map(|step| step.deleted).sum::<u64>();
        assert!(deleted <= expected, "{deleted} rows were deleted, not {expected}");
        (deleted == expected).then_some(())
    })
    .await;
}

/// Two of each status: the ids of NEW, DONE, RETRY, DEAD.
async fn two_of_each<H: Harness>(h: &H, store: &dyn Store) -> Vec<Event> {
    let all = events(8);
    write(h, &all[2..4]).await;
    settle_all(store, Verdict::Done).await;
    write(h, &all[4..6]).await;
    settle_all(store, retry(LONG, "later")).await;
    write(h, &all[6..8]).await;
    settle_all(store, dead("hopeless")).await;
    write(h, &all[..2]).await;
    all
}

async fn counts(store: &dyn Store) -> [u64; 4] {
    let mut counts = [0; 4];
    for status in Status::ALL {
        counts[status.code() as usize] = store.count(&Filter::status(status), 10_000).await.unwrap();
    }
    counts
}

/// One, the other, both.
pub async fn purge_deletes_by_status<H: Harness>(h: &H) {
    let store = h.store();
    two_of_each(h, &*store).await;
    purge_until(&*store, &finished(&[Status::Done]), 2).await;
    assert_eq!(counts(&*store).await, [2, 0, 2, 2]);
    purge_until(&*store, &finished(&[Status::Dead]), 2).await;
    assert_eq!(counts(&*store).await, [2, 0, 2, 0]);
    settle_all(&*store, Verdict::Done).await;
    write_dead(h, &*store, &events(3), "hopeless").await;
    purge_until(&*store, &finished(&[Status::Done, Status::Dead]), 5).await;
    assert_eq!(counts(&*store).await, [0, 0, 2, 0]);
}

/// Age counts from the finish, by the database's clock.
pub async fn purge_deletes_by_age<H: Harness>(h: &H) {
    let store = h.store();
    two_of_each(h, &*store).await;
    let both = finished(&[Status::Done, Status::Dead]);
    let old = Purge {
        older_than: LONG,
        ..both.clone()
    };
    assert_eq!(run(&*store, &old).await, [Purged { deleted: 0, next: None }]);
    assert_eq!(counts(&*store).await, [2, 2, 2, 2]);

    let moment = Duration::from_millis(200);
    purge_until(
        &*store,
        &Purge {
            older_than: moment,
            ..both
        },
        4,
    )
    .await;
    assert_eq!(counts(&*store).await, [2, 0, 2, 0]);
}

/// Of the finished rows, those of one type.
pub async fn purge_deletes_by_type<H: Harness>(h: &H) {
    let store = h.store();
    write(h, &[event("A"), event("B"), event("A")]).await;
    settle_all(&*store, Verdict::Done).await;
    write(h, &[event("A")]).await;
    let purge = Purge {
        event_type: Some("A".to_owned()),
        ..finished(&[Status::Done])
    };
    purge_until(&*store, &purge, 2).await;
    let left = store.find(&Filter::all(), Page { after: 0, limit: 10 }).await.unwrap();
    let left: Vec<_> = left
        .iter()
        .map(|stored| (stored.status, stored.event.as_ref().unwrap().event_type().as_str()))
        .collect();
    assert_eq!(left, [(Status::Done, "B"), (Status::New, "A")]);
}

/// Each step looks at so many rows, finished or not, and says where the next one begins.
pub async fn purge_goes_step_by_step<H: Harness>(h: &H) {
    let store = h.store();
    write(h, &events(25)).await;
    settle_all(&*store, Verdict::Done).await;
    write(h, &events(3)).await;
    let purge = Purge {
        limit: 10,
        ..finished(&[Status::Done])
    };
    // Once the clock has ticked, the steps are exactly these.
    write_until_the_clock_ticks(h, &*store).await;
    let steps = run(&*store, &purge).await;
    let deleted: Vec<_> = steps.iter().map(|step| step.deleted).collect();
    assert_eq!(&deleted[..3], [10, 10, 5], "{steps:?}");
    assert_eq!(counts(&*store).await[1], 0);
    assert_eq!(
        run(&*store, &purge).await.iter().map(|step| step.deleted).sum::<u64>(),
        0
    );
}

async fn write_until_the_clock_ticks<H: Harness>(h: &H, store: &dyn Store) {
    let now = async || {
        let id = write_one(h).await;
        let now = super::fetch(store, &id).await.created_at;
        store.discard(&Filter::id(&id), 1).await.unwrap();
        now
    };
    let start = now().await;
    until("the clock to tick", async || (now().await > start).then_some(())).await;
}

/// Whatever is asked for.
pub async fn purge_never_deletes_pending_rows<H: Harness>(h: &H) {
    let store = h.store();
    two_of_each(h, &*store).await;
    let leased = claim(&*store, "node", LONG).await;
    purge_until(&*store, &finished(&Status::ALL), 4).await;
    run(&*store, &finished(&[Status::New, Status::Retry])).await;
    run(&*store, &finished(&[])).await;
    assert_eq!(counts(&*store).await, [2, 0, 2, 0]);
    let batch: Vec<_> = leased.iter().map(|row| (row.lease, Verdict::Done)).collect();
    assert_eq!(settle(&*store, &batch).await.applied, 2);
}

/// The history of what is gone goes with it; that of others stays.
pub async fn purge_forgets_the_attempts<H: Harness>(h: &H) {
    let store = h.store();
    let (gone, kept) = (event("Gone"), event("Kept"));
    write(h, std::slice::from_ref(&gone)).await;
    settle_all(&*store, dead("hopeless")).await;
    write(h, std::slice::from_ref(&kept)).await;
    settle_all(&*store, retry(LONG, "later")).await;
    assert_eq!(store.attempts(gone.id()).await.unwrap().len(), 1);
    purge_until(&*store, &finished(&[Status::Dead]), 1).await;
    assert!(store.attempts(gone.id()).await.unwrap().is_empty());
    assert_eq!(store.attempts(kept.id()).await.unwrap().len(), 1);
}

/// For tables that something else reads: age from the writing, every status.
pub async fn purge_by_age_alone_asks_for_no_status<H: Harness>(h: &H) {
    let store = h.store();
    two_of_each(h, &*store).await;
    let by_age = Purge {
        by_age_alone: true,
        ..finished(&[])
    };
    let old = Purge {
        older_than: LONG,
        ..by_age.clone()
    };
    assert_eq!(run(&*store, &old).await, [Purged { deleted: 0, next: None }]);
    purge_until(&*store, &by_age, 8).await;
    assert_eq!(store.count(&Filter::all(), 10).await.unwrap(), 0);
}
