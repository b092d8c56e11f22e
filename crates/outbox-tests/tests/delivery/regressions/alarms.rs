//! Who wakes the poller, and who must not keep it awake.

crate::on_every_database! {
    a_look_up_that_fails_rests_and_is_repeated
}

mod tests {
    use std::time::{Duration, Instant};

    use outbox::store::Status;
    use outbox::{Outbox, telemetry};
    use outbox_testbed::eventually;
    use outbox_tests::{On, SqlDatabase, script};

    use crate::heard::{DEADLINE, Heard, event, settled};
    use crate::regressions::counters::Counters;

    pub(super) async fn a_look_up_that_fails_rests_and_is_repeated<D: SqlDatabase>() {
        let on = On::<D>::open("look_up").await;
        let heard = Heard::default();
        let (outbox, counters) = Counters::build(
            Outbox::single_node(&on.pool)
                .poll_interval(Duration::from_millis(500))
                .listen("Placed", heard.listener()),
        );
        let event = event("Placed");
        let mut tx = on.pool.begin().await.unwrap();
        let receipt = outbox.publish(&mut tx, &event).await.unwrap();
        tx.commit().await.unwrap();
        script(&on.pool, "alter table outbox_event rename to hidden").await;
        receipt.committed();
        // Time enough for a busy loop to fail a thousand times.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let errors = counters.take(telemetry::POLL_ERRORS);
        assert!((1..30).contains(&errors), "{errors} errors");
        script(&on.pool, "alter table hidden rename to outbox_event").await;
        settled(&**outbox.store(), event.id(), Status::Done).await;
        assert_eq!(heard.count(), 1);
        outbox.shutdown().await.unwrap();
    }

    /// A database that does not answer for more than a tenth of a lease: what is looked up meanwhile is delivered when it
    /// does, not when the lease ends.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_look_up_that_is_answered_late_delivers_all_the_same() {
        const LEASE: Duration = Duration::from_secs(20);
        let on = On::<sqlx::Postgres>::open("late_look_up").await;
        let heard = Heard::default();
        let outbox = Outbox::multi_node(&on.pool)
            .lease(LEASE)
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let event = event("Placed");
        let mut tx = on.pool.begin().await.unwrap();
        let receipt = outbox.publish(&mut tx, &event).await.unwrap();
        tx.commit().await.unwrap();
        let mut stall = on.pool.begin().await.unwrap();
        let lock = sqlx::query("lock table outbox_event in access exclusive mode");
        lock.execute(&mut *stall).await.unwrap();
        receipt.committed();
        // So long the database does not answer.
        tokio::time::sleep(LEASE / 7).await;
        stall.commit().await.unwrap();
        let answered = Instant::now();
        settled(&**outbox.store(), event.id(), Status::Done).await;
        let took = answered.elapsed();
        assert!(took < LEASE / 2, "{took:?}");
        assert_eq!(heard.count(), 1);
        outbox.shutdown().await.unwrap();
    }

    /// A commit whose future is dropped may have happened: the row is then delivered soon, not when its lease ends.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_commit_whose_future_is_dropped_is_looked_up() {
        let on = On::<sqlx::Postgres>::open("lost_commit").await;
        let heard = Heard::default();
        let outbox = Outbox::single_node(&on.pool)
            .lease(Duration::from_secs(600))
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let mut dropped = 0;
        for n in 0..100 {
            let mut tx = outbox.begin(&on.pool).await.unwrap();
            outbox.publish(&mut tx, &event("Placed")).await.unwrap();
            // A clock is too coarse: the commit is looked at so often, from once to ten thousand times.
            let patience = async {
                for _ in 0..n * n {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                biased;
                committed = tx.commit() => committed.unwrap(),
                () = patience => dropped += 1,
            }
        }
        assert!(dropped > 0, "the first is looked at once, and no answer is there yet");
        eventually("all that is in the table to be delivered", DEADLINE, async || {
            let rows = sqlx::query_scalar::<_, i64>("select count(*) from outbox_event");
            let rows = usize::try_from(rows.fetch_one(&on.pool).await.unwrap()).unwrap();
            (rows >= 100 - dropped && rows == heard.count()).then_some(())
        })
        .await;
        outbox.shutdown().await.unwrap();
    }
}
