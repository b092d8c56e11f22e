//! The acceptance tests of the contract, by their names.

crate::on_every_database_both_ways! {
    atomicity
    commit_and_fast_path
    overflow_downgrade
    retry_then_dead
    typed_event
    typed_aggregate
    delayed_delivery
    deferred_retry
    dead_replay
    writer_only
    purge
    multi_node_claims
    interceptors
}

mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use outbox::retry::Fixed;
    use outbox::store::{Filter, Status};
    use outbox::{Delivery, DomainEvent, Event, Failure, Interceptor, Outbox, Path, PurgePolicy};
    use outbox_tests::{Database, On};

    use crate::heard::{Answer, DEADLINE, Heard, drained, event, publish, settled};
    use crate::way::Way;

    pub(super) async fn atomicity<D: Database, W: Way>() {
        let on = On::<D>::open("atomicity").await;
        let heard = Heard::default();
        let outbox = W::single_node(&on.pool)
            .poll_interval(Duration::from_millis(20))
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();

        let mut tx = outbox.begin(&on.pool).await.unwrap();
        let rolled_back = event("Placed");
        outbox.publish(&mut tx, &rolled_back).await.unwrap();
        tx.rollback().await.unwrap();

        let mut tx = outbox.begin(&on.pool).await.unwrap();
        let mut savepoint = tx.savepoint().await.unwrap();
        let undone = event("Placed");
        outbox.publish(&mut savepoint, &undone).await.unwrap();
        savepoint.rollback().await.unwrap();
        let kept = event("Placed");
        outbox.publish(&mut tx, &kept).await.unwrap();
        tx.commit().await.unwrap();

        settled(&**outbox.store(), kept.id(), Status::Done).await;
        outbox.shutdown().await.unwrap();
        let heard: Vec<_> = heard
            .deliveries()
            .iter()
            .map(|delivery| delivery.id().clone())
            .collect();
        assert_eq!(heard, [kept.id().clone()]);
        assert!(outbox.store().fetch(rolled_back.id()).await.unwrap().is_none());
        assert!(outbox.store().fetch(undone.id()).await.unwrap().is_none());
    }

    pub(super) async fn commit_and_fast_path<D: Database, W: Way>() {
        let on = On::<D>::open("commit_and_fast_path").await;
        let heard = Heard::default();
        let outbox = W::single_node(&on.pool)
            // Long enough that only the hot path can have delivered it.
            .poll_interval(Duration::from_secs(3600))
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let id = publish(&outbox, &on.pool, &event("Placed")).await;
        let delivery = heard.wait(1).await.remove(0);
        assert_eq!((delivery.id(), delivery.path, delivery.attempt), (&id, Path::Hot, 1));
        assert_eq!(delivery.payload().as_json(), Some(r#"{"total": 42}"#));
        let row = settled(&**outbox.store(), &id, Status::Done).await;
        assert_eq!((row.attempts, row.locked_by, row.lease_until), (0, None, None));
        assert!(row.done_at.is_some());
        outbox.shutdown().await.unwrap();
        assert_eq!(heard.count(), 1);
    }

    pub(super) async fn overflow_downgrade<D: Database, W: Way>() {
        let on = On::<D>::open("overflow_downgrade").await;
        let heard = Heard::default();
        // Nobody takes anything from the hot queue but one worker, which hangs.
        let stuck = W::multi_node(&on.pool)
            .workers(1)
            .hot_capacity(1)
            .without_poller()
            .lease(Duration::from_secs(2))
            .drain_timeout(Duration::from_millis(500))
            .listen("Placed", Heard::always(Answer::Hang).listener())
            .build()
            .await
            .unwrap();
        let mut ids = Vec::new();
        for _ in 0..10 {
            ids.push(publish(&stuck, &on.pool, &event("Placed")).await);
        }
        for id in &ids {
            assert_eq!(stuck.store().fetch(id).await.unwrap().unwrap().status, Status::New);
        }
        stuck.shutdown().await.unwrap();

        let outbox = W::multi_node(&on.pool)
            .poll_interval(Duration::from_millis(50))
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        for id in &ids {
            settled(&**outbox.store(), id, Status::Done).await;
        }
        assert!(heard.deliveries().iter().all(|delivery| delivery.path == Path::Cold));
        outbox.shutdown().await.unwrap();
    }

    pub(super) async fn retry_then_dead<D: Database, W: Way>() {
        let on = On::<D>::open("retry_then_dead").await;
        let heard = Heard::always(Answer::Fail);
        let outbox = W::single_node(&on.pool)
            .retry(Fixed::new(Duration::from_millis(20), 3))
            .poll_interval(Duration::from_secs(1))
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let id = publish(&outbox, &on.pool, &event("Placed")).await;
        let row = settled(&**outbox.store(), &id, Status::Dead).await;
        assert_eq!(
            (row.attempts, row.last_error.as_deref()),
            (3, Some("the listener failed"))
        );
        assert!(row.dead_at.is_some() && row.locked_by.is_none());
        let attempts: Vec<_> = heard.deliveries().iter().map(|delivery| delivery.attempt).collect();
        assert_eq!(attempts, [1, 2, 3]);
        let history = outbox.admin().attempts(&id).await.unwrap();
        assert_eq!(history.iter().map(|one| one.attempt).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(history.iter().all(|one| one.error == "the listener failed"));
        outbox.shutdown().await.unwrap();
        assert_eq!(heard.count(), 3);
    }

    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize, outbox::Event)]
    #[event(type = "OrderPlaced", aggregate = "Order", version = 2)]
    struct OrderPlaced {
        #[event(key)]
        order_id: u64,
        total: u64,
    }

    pub(super) async fn typed_event<D: Database, W: Way>() {
        let on = On::<D>::open("typed_event").await;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let outbox = W::single_node(&on.pool)
            .on::<OrderPlaced>({
                let seen = Arc::clone(&seen);
                move |order: OrderPlaced, delivery: Delivery| {
                    seen.lock().unwrap().push((order, delivery.version()));
                    std::future::ready(Ok(()))
                }
            })
            .build()
            .await
            .unwrap();
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        let order = OrderPlaced { order_id: 7, total: 42 };
        let published = outbox.publish(&mut tx, &order).await.unwrap();
        tx.commit().await.unwrap();
        settled(&**outbox.store(), &published.ids()[0], Status::Done).await;
        assert_eq!(*seen.lock().unwrap(), [(order, 2)]);

        // What cannot be decoded is dead at once.
        let bad = Event::builder("OrderPlaced")
            .aggregate("Order", "7")
            .json(r#"{"order_id": "x"}"#)
            .build()
            .unwrap();
        let id = publish(&outbox, &on.pool, &bad).await;
        let row = settled(&**outbox.store(), &id, Status::Dead).await;
        assert_eq!(row.attempts, 1);
        assert!(
            row.last_error
                .unwrap()
                .starts_with("OrderPlaced (version 1) cannot be decoded: ")
        );
        outbox.shutdown().await.unwrap();
    }

    #[derive(Clone, Copy, outbox::AggregateType)]
    enum Aggregates {
        Order,
    }

    #[derive(Clone, Copy, outbox::EventType)]
    enum Orders {
        Placed,
    }

    pub(super) async fn typed_aggregate<D: Database, W: Way>() {
        let on = On::<D>::open("typed_aggregate").await;
        let heard = Heard::default();
        // Typed and string registration of the same names meet.
        let outbox = W::single_node(&on.pool)
            .listen_to("Order", Orders::Placed, heard.listener())
            .build()
            .await
            .unwrap();
        let typed = Event::builder(Orders::Placed)
            .aggregate(Aggregates::Order, "1")
            .json("{}")
            .build()
            .unwrap();
        let strings = Event::builder("Placed")
            .aggregate("Order", "1")
            .json("{}")
            .build()
            .unwrap();
        publish(&outbox, &on.pool, &typed).await;
        publish(&outbox, &on.pool, &strings).await;
        for delivery in heard.wait(2).await {
            assert_eq!(delivery.aggregate_type().as_str(), "Order");
            assert_eq!(delivery.event_type().as_str(), "Placed");
        }
        outbox.shutdown().await.unwrap();
    }

    pub(super) async fn delayed_delivery<D: Database, W: Way>() {
        let on = On::<D>::open("delayed_delivery").await;
        let heard = Heard::default();
        let outbox = W::single_node(&on.pool)
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let delay = Duration::from_millis(300);
        let later = Event::builder("Placed")
            .json("{}")
            .deliver_after(delay)
            .build()
            .unwrap();
        let started = std::time::Instant::now();
        let id = publish(&outbox, &on.pool, &later).await;
        assert_eq!(heard.count(), 0);
        let delivery = heard.wait(1).await.remove(0);
        assert!(started.elapsed() >= delay, "{:?}", started.elapsed());
        assert!(
            started.elapsed() < Duration::from_secs(4),
            "woken when it is due, not by the poll interval"
        );
        assert_eq!(delivery.path, Path::Cold);
        let row = settled(&**outbox.store(), &id, Status::Done).await;
        assert!(row.available_at - row.created_at >= chrono::TimeDelta::milliseconds(299));
        outbox.shutdown().await.unwrap();
    }

    pub(super) async fn deferred_retry<D: Database, W: Way>() {
        let on = On::<D>::open("deferred_retry").await;
        let heard = Heard::answering([
            Answer::Defer(Duration::from_millis(50)),
            Answer::Defer(Duration::from_millis(50)),
            Answer::RetryAfter(Duration::from_millis(50)),
        ]);
        let outbox = W::single_node(&on.pool)
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let id = publish(&outbox, &on.pool, &event("Placed")).await;
        let row = settled(&**outbox.store(), &id, Status::Done).await;
        // Only the failure counts, not the deferrals.
        assert_eq!(row.attempts, 1);
        let attempts: Vec<_> = heard.deliveries().iter().map(|delivery| delivery.attempt).collect();
        assert_eq!(attempts, [1, 1, 1, 2]);
        outbox.shutdown().await.unwrap();
    }

    pub(super) async fn dead_replay<D: Database, W: Way>() {
        let on = On::<D>::open("dead_replay").await;
        let heard = Heard::always(Answer::Permanent);
        let outbox = W::single_node(&on.pool)
            .poll_interval(Duration::from_millis(50))
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let mut ids = Vec::new();
        for _ in 0..3 {
            let id = publish(&outbox, &on.pool, &event("Placed")).await;
            settled(&**outbox.store(), &id, Status::Dead).await;
            ids.push(id);
        }
        let admin = outbox.admin();
        assert_eq!(admin.count(&Filter::dead(), 100).await.unwrap(), 3);
        heard.then(Answer::Done);

        assert_eq!(admin.replay(&Filter::id(&ids[0]), |_| ()).await.unwrap(), 1);
        let row = settled(&**outbox.store(), &ids[0], Status::Done).await;
        assert_eq!((row.attempts, row.last_error, row.dead_at), (0, None, None));
        assert_eq!(admin.replay(&Filter::dead(), |_| ()).await.unwrap(), 2);
        drained(&**outbox.store()).await;
        assert_eq!(admin.count(&Filter::dead(), 100).await.unwrap(), 0);
        outbox.shutdown().await.unwrap();
    }

    pub(super) async fn writer_only<D: Database, W: Way>() {
        let on = On::<D>::open("writer_only").await;
        let writer = Outbox::writer_only(&on.pool).build().await.unwrap();
        let id = publish(&writer, &on.pool, &event("Placed")).await;
        let row = writer.store().fetch(&id).await.unwrap().unwrap();
        assert_eq!((row.status, row.locked_by, row.token), (Status::New, None, 0));
        // Whoever delivers finds it.
        let heard = Heard::default();
        let outbox = W::multi_node(&on.pool)
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        settled(&**outbox.store(), &id, Status::Done).await;
        outbox.shutdown().await.unwrap();
        writer.shutdown().await.unwrap();
    }

    pub(super) async fn purge<D: Database, W: Way>() {
        let on = On::<D>::open("purge").await;
        let heard = Heard::answering([Answer::Permanent]);
        let outbox = W::single_node(&on.pool)
            .workers(1)
            .purge(
                PurgePolicy::keep(Duration::ZERO)
                    .batch(2)
                    .every(Duration::from_millis(100)),
            )
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let waiting = Event::builder("Placed")
            .json("{}")
            .deliver_after(Duration::from_secs(3600))
            .build()
            .unwrap();
        let waiting = publish(&outbox, &on.pool, &waiting).await;
        for _ in 0..5 {
            publish(&outbox, &on.pool, &event("Placed")).await;
        }
        heard.wait(5).await;
        outbox_testbed::eventually("finished events to be purged", DEADLINE, async || {
            let left = outbox.admin().count(&Filter::all(), 100).await.unwrap();
            (left == 1).then_some(())
        })
        .await;
        assert!(
            outbox.store().fetch(&waiting).await.unwrap().is_some(),
            "a pending event is never purged"
        );
        outbox.shutdown().await.unwrap();
    }

    pub(super) async fn multi_node_claims<D: Database, W: Way>() {
        let on = On::<D>::open("multi_node_claims").await;
        let writer = Outbox::writer_only(&on.pool).build().await.unwrap();
        let events: Vec<Event> = (0..500).map(|_| event("Placed")).collect();
        let mut tx = writer.begin(&on.pool).await.unwrap();
        writer.publish_all(&mut tx, &events).await.unwrap();
        tx.commit().await.unwrap();

        let heard = Heard::default();
        let mut nodes = Vec::new();
        for _ in 0..3 {
            let node = W::multi_node(&on.pool)
                .poll_batch(20)
                .poll_interval(Duration::from_millis(20))
                .listen("Placed", heard.listener())
                .build();
            nodes.push(node.await.unwrap());
        }
        drained(&**writer.store()).await;
        for node in &nodes {
            node.shutdown().await.unwrap();
        }
        let mut ids: Vec<_> = heard
            .deliveries()
            .iter()
            .map(|delivery| delivery.id().clone())
            .collect();
        assert_eq!(ids.len(), 500, "every event once, by one of the nodes");
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 500);
        writer.shutdown().await.unwrap();
    }

    struct Recorder {
        name: &'static str,
        log: Arc<Mutex<Vec<String>>>,
        fails: bool,
    }

    #[async_trait::async_trait]
    impl Interceptor for Recorder {
        async fn before(&self, delivery: &Delivery) -> Result<(), Failure> {
            self.log
                .lock()
                .unwrap()
                .push(format!("{} before {}", self.name, delivery.attempt));
            if self.fails && delivery.attempt == 1 {
                Err(Failure::retry("not yet"))
            } else {
                Ok(())
            }
        }

        async fn after(&self, _delivery: &Delivery, failure: Option<&Failure>) {
            self.log.lock().unwrap().push(format!(
                "{} after {}",
                self.name,
                failure.map_or("ok".to_owned(), Failure::to_string)
            ));
            panic!("an after hook that panics harms nobody");
        }
    }

    pub(super) async fn interceptors<D: Database, W: Way>() {
        let on = On::<D>::open("interceptors").await;
        let heard = Heard::default();
        let log = Arc::new(Mutex::new(Vec::new()));
        let recorder = |name, fails| Recorder {
            name,
            log: Arc::clone(&log),
            fails,
        };
        let outbox = W::single_node(&on.pool)
            .retry(Fixed::new(Duration::from_millis(10), 5))
            .interceptor(recorder("outer", false))
            .interceptor(recorder("inner", true))
            .on::<OrderPlaced>(|_: OrderPlaced, _: Delivery| std::future::ready(Ok(())))
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let id = publish(&outbox, &on.pool, &event("Placed")).await;
        let row = settled(&**outbox.store(), &id, Status::Done).await;
        assert_eq!(row.attempts, 1, "a failing before hook is a failed attempt");
        assert_eq!(heard.count(), 1, "and the listener is not run for it");
        outbox.shutdown().await.unwrap();
        assert_eq!(
            *log.lock().unwrap(),
            [
                "outer before 1",
                "inner before 1",
                "inner after not yet",
                "outer after not yet",
                "outer before 2",
                "inner before 2",
                "inner after ok",
                "outer after ok"
            ]
        );
        assert_eq!(OrderPlaced::VERSION, 2);
    }
}
