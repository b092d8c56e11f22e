//! How a node ends: asked to, asked to by nobody who waits, or by the death of one of its tasks.

crate::on_every_database! {
    a_shutdown_whose_future_is_dropped_goes_on
    two_shutdowns_at_once_take_as_long_as_one
    a_lost_lease_is_counted_once
}

mod tests {
    use std::sync::{Arc, Mutex, mpsc};
    use std::time::{Duration, Instant};

    use outbox::{Delivery, Outbox, telemetry};
    use outbox_testbed::eventually;
    use outbox_tests::{Database, On};

    use crate::heard::{Answer, DEADLINE, Heard, event, publish};
    use crate::regressions::counters::Counters;
    use crate::regressions::slow_store::{Fault, Pool};

    const POLL: Duration = Duration::from_millis(20);

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_shutdown_ends_in_time_although_a_listener_blocks_its_thread() {
        let on = On::<sqlx::Sqlite>::open("blocking").await;
        let (begin, begun) = tokio::sync::oneshot::channel();
        let (release, released) = mpsc::channel::<()>();
        let once = Arc::new(Mutex::new(Some((begin, released))));
        let listener = move |_: Delivery| {
            let once = Arc::clone(&once);
            async move {
                let (begin, released) = once.lock().unwrap().take().unwrap();
                begin.send(()).unwrap();
                assert!(released.recv().is_err(), "blocks until the sender is dropped");
                Ok(())
            }
        };
        let outbox = Outbox::single_node(&on.pool)
            .drain_timeout(Duration::from_millis(500))
            .listen("Placed", listener)
            .build()
            .await
            .unwrap();
        publish(&outbox, &on.pool, &event("Placed")).await;
        begun.await.unwrap();
        let started = Instant::now();
        let report = outbox.shutdown().await;
        let took = started.elapsed();
        drop(release);
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert!(!report.unwrap().drained);
    }

    pub(super) async fn a_shutdown_whose_future_is_dropped_goes_on<D: Database>() {
        let on = On::<D>::open("given_up").await;
        let hang = Heard::always(Answer::Hang);
        let first = Outbox::multi_node(&on.pool)
            // Only who gives events back lets others have them in time.
            .lease(Duration::from_secs(600))
            .drain_timeout(Duration::from_secs(1))
            .workers(1)
            .listen("Placed", hang.listener())
            .build()
            .await
            .unwrap();
        for _ in 0..5 {
            publish(&first, &on.pool, &event("Placed")).await;
        }
        hang.wait(1).await;
        let shutdown = tokio::time::timeout(Duration::from_millis(100), first.shutdown());
        assert!(shutdown.await.is_err(), "the listener hangs");

        let heard = Heard::default();
        let second = Outbox::multi_node(&on.pool)
            .poll_interval(POLL)
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        heard.wait(5).await;
        second.shutdown().await.unwrap();
    }

    pub(super) async fn two_shutdowns_at_once_take_as_long_as_one<D: Database>() {
        let on = On::<D>::open("second_shutdown").await;
        let listener = |_: Delivery| async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            Ok(())
        };
        let outbox = Outbox::single_node(&on.pool)
            .drain_timeout(Duration::from_secs(20))
            .listen("Placed", listener)
            .build()
            .await
            .unwrap();
        publish(&outbox, &on.pool, &event("Placed")).await;
        let started = Instant::now();
        let (first, second) = tokio::join!(outbox.shutdown(), outbox.shutdown());
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        first.unwrap();
        second.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_node_with_a_dead_task_leaves_its_events_to_others() {
        let on = On::<sqlx::Postgres>::open("dead_task").await;
        let writer = Outbox::writer_only(&on.pool).build().await.unwrap();
        let mut tx = writer.begin(&on.pool).await.unwrap();
        let events = (0..20).map(|_| event("Placed"));
        writer.publish_all(&mut tx, events).await.unwrap();
        tx.commit().await.unwrap();

        let first = Heard::default();
        let sick = Outbox::multi_node(&Pool::new(&on.pool, Fault::PanicOnce))
            .lease(Duration::from_secs(1))
            .poll_interval(POLL)
            .workers(1)
            .listen("Placed", first.listener())
            .build()
            .await
            .unwrap();
        eventually("the sick node to say so", DEADLINE, async || {
            (!sick.health().ready).then_some(())
        })
        .await;

        let heard = Heard::default();
        let well = Outbox::multi_node(&on.pool)
            .lease(Duration::from_secs(1))
            .poll_interval(POLL)
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        // All of them: the sick node could not write down a single one.
        heard.wait(20).await;
        assert!(well.health().ready);
        well.shutdown().await.unwrap();
        writer.shutdown().await.unwrap();
    }

    pub(super) async fn a_lost_lease_is_counted_once<D: Database>() {
        let on = On::<D>::open("counted_once").await;
        let hang = Heard::always(Answer::Hang);
        let (outbox, counters) = Counters::build(
            Outbox::multi_node(&on.pool)
                .lease(Duration::from_secs(1))
                .drain_timeout(POLL)
                .without_poller()
                .listen("Placed", hang.listener()),
        );
        publish(&outbox, &on.pool, &event("Placed")).await;
        hang.wait(1).await;
        outbox.store().release_all().await.unwrap();
        let lost = eventually("the loss to be noticed", DEADLINE, async || {
            Some(counters.take(telemetry::LEASES_LOST)).filter(|lost| *lost > 0)
        })
        .await;
        assert_eq!(lost, 1);
        // More than a lease: it is not counted with each renewal.
        tokio::time::sleep(Duration::from_millis(1200)).await;
        assert_eq!(counters.take(telemetry::LEASES_LOST), 0);
        outbox.shutdown().await.unwrap();
    }
}
