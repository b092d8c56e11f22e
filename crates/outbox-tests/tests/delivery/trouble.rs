//! What goes wrong at night: full queues, cut connections, shutdowns in the middle.

crate::on_every_database_both_ways! {
    status_update_that_fails_does_not_run_the_listener_again
    shutdown_gives_back_what_it_cannot_deliver
    exhausted_pool_of_the_application_does_not_stop_delivery
}

mod shutdown_ends_in_time_when_the_database_does_not_answer {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sqlite() {
        super::tests::shutdown_ends_in_time::<sqlx::Sqlite, crate::way::RowClaims>("begin exclusive", "rollback").await;
        super::tests::shutdown_ends_in_time::<sqlx::Sqlite, crate::way::Lanes>("begin exclusive", "rollback").await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn postgres() {
        let lock = "begin; lock table outbox_event in access exclusive mode";
        super::tests::shutdown_ends_in_time::<sqlx::Postgres, crate::way::RowClaims>(lock, "rollback").await;
        super::tests::shutdown_ends_in_time::<sqlx::Postgres, crate::way::Lanes>(lock, "rollback").await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn mariadb() {
        super::tests::shutdown_ends_in_time::<sqlx::MySql, crate::way::RowClaims>(
            "lock tables outbox_event write",
            "unlock tables",
        )
        .await;
        super::tests::shutdown_ends_in_time::<sqlx::MySql, crate::way::Lanes>(
            "lock tables outbox_event write",
            "unlock tables",
        )
        .await;
    }
}

/// What `ready` observes is the loop, not the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_not_ready_while_polls_keep_failing() {
    tests::health_is_not_ready_while_polls_keep_failing::<sqlx::Sqlite, crate::way::RowClaims>().await;
    tests::health_is_not_ready_while_polls_keep_failing::<sqlx::Sqlite, crate::way::Lanes>().await;
}

mod cut_connections_lose_nothing {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn postgres() {
        let kill = "select count(pg_terminate_backend(pid)) from pg_stat_activity
                    where datname = current_database() and application_name = 'outbox'";
        super::tests::cut_connections_lose_nothing::<sqlx::Postgres, crate::way::RowClaims>(kill).await;
        super::tests::cut_connections_lose_nothing::<sqlx::Postgres, crate::way::Lanes>(kill).await;
    }
}

mod tests {
    use std::time::Duration;

    use outbox::retry::Fixed;
    use outbox::store::Status;
    use outbox::{Delivery, Event, Outbox};
    use outbox_tests::{Database, On, SqlDatabase, script};

    use outbox_testbed::eventually;

    use crate::heard::{Answer, DEADLINE, Heard, drained, event, publish, settled};
    use crate::way::Way;

    pub(super) async fn status_update_that_fails_does_not_run_the_listener_again<D, W: Way>()
    where
        D: SqlDatabase,
    {
        let on = On::<D>::open("status_update").await;
        let heard = Heard::default();
        let outbox = W::single_node(&on.pool)
            .lease(Duration::from_secs(2))
            .poll_interval(Duration::from_millis(50))
            .retry(Fixed::new(Duration::from_millis(10), 2))
            .subscribe(outbox::Subscription::to("__GLOBAL__", "Placed", {
                let (heard, pool) = (heard.clone(), on.pool.clone());
                move |delivery: Delivery| {
                    let (heard, pool) = (heard.clone(), pool.clone());
                    async move {
                        // From here on nothing can be written about the event.
                        script(&pool, "alter table outbox_event rename to hidden").await;
                        outbox::Handler::handle(&heard.listener(), delivery).await
                    }
                }
            }))
            .build()
            .await
            .unwrap();
        let id = publish(&outbox, &on.pool, &event("Placed")).await;
        heard.wait(1).await;
        // Longer than a lease, with polls all the while.
        tokio::time::sleep(Duration::from_secs(3)).await;
        script(&on.pool, "alter table hidden rename to outbox_event").await;
        let row = settled(&**outbox.store(), &id, Status::Done).await;
        assert_eq!(row.attempts, 0, "a failing write is no failed attempt");
        outbox.shutdown().await.unwrap();
        assert_eq!(heard.count(), 1, "the listener had succeeded");
    }

    pub(super) async fn cut_connections_lose_nothing<D, W: Way>(kill: &'static str)
    where
        D: SqlDatabase,
    {
        let on = On::<D>::open("cut_connections").await;
        let heard = Heard::default();
        let outbox = W::single_node(&on.pool)
            .poll_interval(Duration::from_millis(100))
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let killer = {
            let pool = on.pool.clone();
            tokio::spawn(async move {
                for _ in 0..20 {
                    script(&pool, kill).await;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            })
        };
        let mut ids = Vec::new();
        while !killer.is_finished() {
            ids.push(publish(&outbox, &on.pool, &event("Placed")).await);
        }
        killer.await.unwrap();
        for id in &ids {
            let row = settled(&**outbox.store(), id, Status::Done).await;
            assert_eq!(row.attempts, 0);
        }
        assert_eq!(
            heard.count(),
            ids.len(),
            "delivered once each, since this node lived on"
        );
        outbox.shutdown().await.unwrap();
    }

    pub(super) async fn shutdown_gives_back_what_it_cannot_deliver<D: Database, W: Way>() {
        let on = On::<D>::open("shutdown").await;
        let writer = Outbox::writer_only(&on.pool).build().await.unwrap();
        let events: Vec<Event> = (0..10_000).map(|_| event("Placed")).collect();
        for chunk in events.chunks(2_500) {
            let mut tx = writer.begin(&on.pool).await.unwrap();
            writer.publish_all(&mut tx, chunk).await.unwrap();
            tx.commit().await.unwrap();
        }
        let slow = Heard::always(Answer::Hang);
        let first = W::multi_node(&on.pool)
            .lease(Duration::from_secs(600))
            .drain_timeout(Duration::from_secs(1))
            .listen("Placed", slow.listener())
            .build()
            .await
            .unwrap();
        slow.wait(4).await;
        let started = std::time::Instant::now();
        let report = first.shutdown().await.unwrap();
        assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
        assert!(report.released > 0 && !report.drained, "{report:?}");

        // Long before the lease of ten minutes ends.
        let heard = Heard::default();
        let second = W::multi_node(&on.pool)
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        drained(&**second.store()).await;
        second.shutdown().await.unwrap();
        assert_eq!(heard.count(), 10_000);
        writer.shutdown().await.unwrap();
    }

    pub(super) async fn shutdown_ends_in_time<D: SqlDatabase, W: Way>(lock: &'static str, unlock: &'static str) {
        let on = On::<D>::open("shutdown_in_time").await;
        let heard = Heard::default();
        let outbox = W::multi_node(&on.pool)
            .poll_interval(Duration::from_millis(20))
            .drain_timeout(Duration::from_secs(1))
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        publish(&outbox, &on.pool, &event("Placed")).await;
        drained(&**outbox.store()).await;

        let mut blocker = on.pool.acquire().await.unwrap();
        D::script(&mut blocker, lock.to_owned()).await.unwrap();
        let started = std::time::Instant::now();
        // Everything hangs: the poller in its claim, and whatever is to be given back.
        let _ = outbox.shutdown().await;
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        assert!(!outbox.health().ready);
        D::script(&mut blocker, unlock.to_owned()).await.unwrap();
    }

    pub(super) async fn health_is_not_ready_while_polls_keep_failing<D: SqlDatabase, W: Way>() {
        let on = On::<D>::open("health").await;
        let outbox = W::single_node(&on.pool)
            .poll_interval(Duration::from_millis(50))
            .build()
            .await
            .unwrap();
        assert!(outbox.health().ready);
        script(&on.pool, "alter table outbox_event rename to hidden").await;
        let ready = async |ready: bool| {
            let what = format!("ready to be {ready}");
            eventually(&what, DEADLINE, async || (outbox.health().ready == ready).then_some(())).await;
        };
        ready(false).await;
        assert_eq!(outbox.health().tasks["poller"], outbox::Condition::Stuck);
        script(&on.pool, "alter table hidden rename to outbox_event").await;
        ready(true).await;
        outbox.shutdown().await.unwrap();
    }

    pub(super) async fn exhausted_pool_of_the_application_does_not_stop_delivery<D, W: Way>()
    where
        D: SqlDatabase,
    {
        let on = On::<D>::open("exhausted").await;
        let heard = Heard::default();
        let writer = Outbox::writer_only(&on.pool).build().await.unwrap();
        let outbox = W::single_node(&on.pool)
            .poll_interval(Duration::from_millis(50))
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let id = publish(&writer, &on.pool, &event("Placed")).await;
        let mut taken = Vec::new();
        for _ in 0..on.pool.options().get_max_connections() {
            taken.push(on.pool.acquire().await.unwrap());
        }
        settled(&**outbox.store(), &id, Status::Done).await;
        drop(taken);
        outbox.shutdown().await.unwrap();
        writer.shutdown().await.unwrap();
    }
}
