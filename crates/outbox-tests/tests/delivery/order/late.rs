//! What is committed late comes first all the same, however long others have gone on meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox::store::{Filter, Status};
use outbox::{Event, Outbox};
use outbox_testbed::eventually;
use outbox_tests::{Database, On};

use super::tests::{hears, moved, numbers, ordered};
use crate::heard::{Answer, DEADLINE, Heard, drained, publish, settled};

mod late_commit_is_not_overtaken {
    crate::cases!(late_commit_is_not_overtaken: postgres = sqlx::Postgres, mariadb = sqlx::MySql);
}

mod replay_of_a_parked_key_is_not_overtaken {
    crate::cases!(replay_of_a_parked_key_is_not_overtaken: postgres = sqlx::Postgres, mariadb = sqlx::MySql);
}

mod replayed_event_that_fails_holds_back_its_key {
    crate::cases!(replayed_event_that_fails_holds_back_its_key: postgres = sqlx::Postgres, mariadb = sqlx::MySql);
}

mod tests {
    use super::{Database, Heard, On, hears, ordered};

    // SQLite has one writer at a time: nothing is committed late there.

    pub(super) async fn late_commit_is_not_overtaken<D: Database>() {
        let on = On::<D>::open("late_commit").await;
        super::late_commit_is_not_overtaken(&on).await;
    }

    pub(super) async fn replay_of_a_parked_key_is_not_overtaken<D: Database>() {
        let on = On::<D>::open("late_replay").await;
        super::replay_of_a_parked_key_is_not_overtaken(&on).await;
    }

    pub(super) async fn replayed_event_that_fails_holds_back_its_key<D: Database>() {
        let on = On::<D>::open("late_failure").await;
        super::replayed_event_that_fails_holds_back_its_key(&on).await;
    }

    /// While the remains of what was delivered cannot be cleared away, most passes start behind them.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_is_overtaken_while_a_transaction_is_held() {
        let on = On::<sqlx::Postgres>::open("late_held").await;
        let mut held = on.pool.begin().await.unwrap();
        sqlx::raw_sql("set transaction isolation level repeatable read; select count(*) from pg_class")
            .execute(&mut *held)
            .await
            .unwrap();
        // The tables are there when the first outbox is.
        hears(ordered(&on), &Heard::default()).await.shutdown().await.unwrap();
        let remains = "insert into outbox_event (event_id, event_type, payload)
                       select 'remains-' || n, 'Remains', '{}' from generate_series(1, 150000) as n;
                       update outbox_event set status = 1, done_at = now()";
        sqlx::raw_sql(remains).execute(&on.pool).await.unwrap();
        super::late_commit_is_not_overtaken(&on).await;
        super::replay_of_a_parked_key_is_not_overtaken(&on).await;
        super::replayed_event_that_fails_holds_back_its_key(&on).await;
        held.rollback().await.unwrap();
    }
}

/// Passes start at a floor that is raised every second: this long, it has gone well beyond what was written before.
const A_WHILE: Duration = Duration::from_millis(3_500);

/// Publishes events of other keys, a few at a time, so that one pass follows the other.
struct Traffic<'a, D: Database> {
    on: &'a On<D>,
    writer: Outbox<D>,
    ends: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl<'a, D: Database> Traffic<'a, D> {
    /// Begins, and goes on for [a while](A_WHILE): no signal tells that the floor has risen, only time does it.
    async fn flow(on: &'a On<D>, writer: Outbox<D>) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let (end, pool, outbox) = (Arc::clone(&ends), on.pool.clone(), writer.clone());
        let task = tokio::spawn(async move {
            for round in 0.. {
                if end.load(Ordering::Relaxed) {
                    return;
                }
                let events: Vec<_> = (0..5).map(|n| moved(&format!("other-{n}"), round)).collect();
                let mut tx = outbox.begin(&pool).await.unwrap();
                outbox.publish_all(&mut tx, events).await.unwrap();
                tx.commit().await.unwrap();
                // The pace of the traffic.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        tokio::time::sleep(A_WHILE).await;
        Self { on, writer, ends, task }
    }

    async fn publish(&self, event: &Event) {
        publish(&self.writer, &self.on.pool, event).await;
    }

    /// Ends, and with it `outbox` when all is delivered.
    async fn end(self, outbox: Outbox<D>) {
        self.ends.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
        drained(&**outbox.store()).await;
        outbox.shutdown().await.unwrap();
        self.writer.shutdown().await.unwrap();
    }
}

async fn late_commit_is_not_overtaken<D: Database>(on: &On<D>) {
    let heard = Heard::default();
    let outbox = hears(ordered(on), &heard).await;
    let writer = Outbox::writer_only(&on.pool).build().await.unwrap();
    let keys = ["a", "b", "c", "d", "e"];
    let mut late = Vec::new();
    for key in keys {
        let mut tx = writer.begin(&on.pool).await.unwrap();
        writer.publish(&mut tx, moved(key, 0)).await.unwrap();
        late.push((key, tx));
    }
    let traffic = Traffic::flow(on, writer).await;
    for (key, tx) in late {
        tx.commit().await.unwrap();
        traffic.publish(&moved(key, 1)).await;
    }
    for key in keys {
        eventually("both events of the key", DEADLINE, async || {
            (numbers(&heard, key).len() == 2).then_some(())
        })
        .await;
    }
    traffic.end(outbox).await;
    for key in keys {
        assert_eq!(numbers(&heard, key), [0, 1], "{key}");
    }
}

async fn replay_of_a_parked_key_is_not_overtaken<D: Database>(on: &On<D>) {
    let heard = Heard::answering([Answer::Permanent]);
    let outbox = hears(ordered(on).park_on_death(), &heard).await;
    let writer = Outbox::writer_only(&on.pool).build().await.unwrap();
    let dead = publish(&writer, &on.pool, &moved("parked", 0)).await;
    settled(&**outbox.store(), &dead, Status::Dead).await;
    let traffic = Traffic::flow(on, writer).await;
    traffic.publish(&moved("parked", 1)).await;
    assert_eq!(outbox.admin().replay(&Filter::id(&dead), |_| ()).await.unwrap(), 1);
    eventually("all events of the key", DEADLINE, async || {
        (numbers(&heard, "parked").len() == 3).then_some(())
    })
    .await;
    traffic.end(outbox).await;
    assert_eq!(numbers(&heard, "parked"), [0, 0, 1]);
}

/// Its key has gone on without it, long ago; from the replay on it is an event like any other.
async fn replayed_event_that_fails_holds_back_its_key<D: Database>(on: &On<D>) {
    let heard = Heard::default();
    let failing = Heard::answering([
        Answer::Permanent,
        Answer::RetryAfter(Duration::from_millis(500)),
        Answer::Done,
    ]);
    let builder = ordered(on).listen_to("Account", "Failing", failing.listener());
    let outbox = hears(builder, &heard).await;
    let writer = Outbox::writer_only(&on.pool).build().await.unwrap();
    let event = Event::builder("Failing").aggregate("Account", "again").json("0");
    let dead = publish(&writer, &on.pool, &event.build().unwrap()).await;
    settled(&**outbox.store(), &dead, Status::Dead).await;
    let traffic = Traffic::flow(on, writer).await;
    assert_eq!(outbox.admin().replay(&Filter::id(&dead), |_| ()).await.unwrap(), 1);
    failing.wait(2).await;
    traffic.publish(&moved("again", 1)).await;
    let before = eventually("the next event of the key", DEADLINE, async || {
        (!numbers(&heard, "again").is_empty()).then(|| failing.count())
    })
    .await;
    assert_eq!(before, 3, "the next one waits while it is tried again");
    traffic.end(outbox).await;
}
