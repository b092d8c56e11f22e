//! What listeners can answer, and what becomes of the event.

crate::on_every_database_both_ways! {
    permanent_is_dead_at_once
    no_listener_is_dead_with_a_clear_error
    undecodable_row_is_dead_and_others_flow_on
    panic_is_a_failed_attempt_and_the_worker_lives_on
    timeout_is_a_failed_attempt
    limit_of_a_listener_is_kept
    named_listeners_run_again_only_where_they_have_not_succeeded
    batch_listener_answers_for_each
    receipt_delivers_and_a_rolled_back_savepoint_does_not
    policy_per_event_type
    error_text_is_cut
    deleted_when_done
}

mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use async_trait::async_trait;
    use outbox::retry::{Fixed, NoRetry};
    use outbox::store::Status;
    use outbox::{Delivery, Event, Failure, Handled, Listener, Outbox, Path, Subscription};
    use outbox_tests::{Database, On, SqlDatabase};

    use crate::heard::{Answer, Heard, drained, event, publish, settled};
    use crate::way::Way;

    pub(super) async fn permanent_is_dead_at_once<D: Database, W: Way>() {
        let on = On::<D>::open("permanent").await;
        let heard = Heard::always(Answer::Permanent);
        let outbox = W::single_node(&on.pool)
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let id = publish(&outbox, &on.pool, &event("Placed")).await;
        let row = settled(&**outbox.store(), &id, Status::Dead).await;
        assert_eq!((row.attempts, row.last_error.as_deref()), (1, Some("never")));
        outbox.shutdown().await.unwrap();
        assert_eq!(heard.count(), 1);
    }

    pub(super) async fn no_listener_is_dead_with_a_clear_error<D: Database, W: Way>() {
        let on = On::<D>::open("no_listener").await;
        let outbox = W::single_node(&on.pool).build().await.unwrap();
        let id = publish(&outbox, &on.pool, &event("Placed")).await;
        let row = settled(&**outbox.store(), &id, Status::Dead).await;
        assert_eq!(
            row.last_error.as_deref(),
            Some("no listener for __GLOBAL__ Placed: add one and replay the event")
        );
        outbox.shutdown().await.unwrap();
    }

    pub(super) async fn undecodable_row_is_dead_and_others_flow_on<D: Database, W: Way>() {
        let on = On::<D>::open("undecodable").await;
        let writer = Outbox::writer_only(&on.pool).build().await.unwrap();
        let bad = publish(&writer, &on.pool, &event("Placed")).await;
        D::overwrite_headers(&on.pool, &bad, "[1, 2]").await;
        let good = publish(&writer, &on.pool, &event("Placed")).await;
        let heard = Heard::default();
        let outbox = W::single_node(&on.pool)
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        settled(&**outbox.store(), &good, Status::Done).await;
        let row = settled(&**outbox.store(), &bad, Status::Dead).await;
        let error = row.last_error.unwrap();
        assert!(
            error.starts_with("the row cannot be decoded: the headers are not a JSON object of strings"),
            "{error}"
        );
        assert_eq!(heard.count(), 1);
        outbox.shutdown().await.unwrap();
        writer.shutdown().await.unwrap();
    }

    pub(super) async fn panic_is_a_failed_attempt_and_the_worker_lives_on<D: Database, W: Way>() {
        let on = On::<D>::open("panic").await;
        let heard = Heard::answering([Answer::Panic]);
        let outbox = W::single_node(&on.pool)
            .workers(1)
            .retry(Fixed::new(Duration::from_millis(10), 5))
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let id = publish(&outbox, &on.pool, &event("Placed")).await;
        let row = settled(&**outbox.store(), &id, Status::Done).await;
        assert_eq!(
            (row.attempts, row.last_error.as_deref()),
            (1, Some("the listener panicked: the listener panicked on purpose"))
        );
        assert!(outbox.health().ready, "{:?}", outbox.health());
        outbox.shutdown().await.unwrap();
    }

    pub(super) async fn timeout_is_a_failed_attempt<D: Database, W: Way>() {
        let on = On::<D>::open("timeout").await;
        let heard = Heard::answering([Answer::Hang]);
        let outbox = W::single_node(&on.pool)
            .retry(Fixed::new(Duration::from_millis(10), 5))
            .subscribe(Subscription::to("__GLOBAL__", "Placed", heard.listener()).timeout(Duration::from_millis(100)))
            .build()
            .await
            .unwrap();
        let id = publish(&outbox, &on.pool, &event("Placed")).await;
        let row = settled(&**outbox.store(), &id, Status::Done).await;
        assert_eq!(
            (row.attempts, row.last_error.as_deref()),
            (1, Some("the listener took longer than 100ms"))
        );
        outbox.shutdown().await.unwrap();
    }

    pub(super) async fn limit_of_a_listener_is_kept<D: Database, W: Way>() {
        let on = On::<D>::open("limit").await;
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let listener = {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            move |_: Delivery| {
                let (now, most) = (Arc::clone(&now), Arc::clone(&most));
                async move {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    // Others get their chance to come in.
                    for _ in 0..50 {
                        tokio::task::yield_now().await;
                    }
                    now.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                }
            }
        };
        let outbox = W::single_node(&on.pool)
            .workers(8)
            .subscribe(Subscription::to("__GLOBAL__", "Placed", listener).at_once(2))
            .build()
            .await
            .unwrap();
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        outbox
            .publish_all(&mut tx, (0..100).map(|_| event("Placed")))
            .await
            .unwrap();
        tx.commit().await.unwrap();
        drained(&**outbox.store()).await;
        outbox.shutdown().await.unwrap();
        assert_eq!(most.load(Ordering::SeqCst), 2, "as many as allowed, and no more");
    }

    pub(super) async fn named_listeners_run_again_only_where_they_have_not_succeeded<D: Database, W: Way>() {
        let on = On::<D>::open("named").await;
        let (mail, stock, audit) = (
            Heard::default(),
            Heard::answering([Answer::Fail, Answer::Fail]),
            Heard::default(),
        );
        let outbox = W::single_node(&on.pool)
            .retry(Fixed::new(Duration::from_millis(10), 5))
            .subscribe(Subscription::to("__GLOBAL__", "Placed", mail.listener()).named("mail"))
            .subscribe(Subscription::to("__GLOBAL__", "Placed", stock.listener()).named("stock"))
            .subscribe(Subscription::all("audit", audit.listener()))
            .build()
            .await
            .unwrap();
        let id = publish(&outbox, &on.pool, &event("Placed")).await;
        let row = settled(&**outbox.store(), &id, Status::Done).await;
        assert_eq!(
            (row.attempts, row.last_error.as_deref()),
            (2, Some("stock: the listener failed"))
        );
        assert_eq!((mail.count(), stock.count(), audit.count()), (1, 3, 1));
        outbox.shutdown().await.unwrap();
    }

    struct Batches(Arc<Mutex<Vec<usize>>>);

    #[async_trait]
    impl Listener for Batches {
        async fn deliver(&self, batch: &[Delivery]) -> Vec<Handled> {
            self.0.lock().unwrap().push(batch.len());
            batch
                .iter()
                .map(|delivery| match delivery.aggregate_id() {
                    Some("poison") => Err(Failure::permanent("poison")),
                    _ => Ok(()),
                })
                .collect()
        }

        fn max_batch(&self) -> usize {
            10
        }
    }

    pub(super) async fn batch_listener_answers_for_each<D: Database, W: Way>() {
        let on = On::<D>::open("batch").await;
        let writer = Outbox::writer_only(&on.pool).build().await.unwrap();
        let mut events: Vec<Event> = (0..40)
            .map(|n| {
                Event::builder("Placed")
                    .aggregate("Order", n.to_string())
                    .json("{}")
                    .build()
                    .unwrap()
            })
            .collect();
        events.insert(
            20,
            Event::builder("Placed")
                .aggregate("Order", "poison")
                .json("{}")
                .build()
                .unwrap(),
        );
        let mut tx = writer.begin(&on.pool).await.unwrap();
        writer.publish_all(&mut tx, &events).await.unwrap();
        tx.commit().await.unwrap();

        let sizes = Arc::new(Mutex::new(Vec::new()));
        let outbox = W::single_node(&on.pool)
            .workers(1)
            .subscribe(Subscription::batches("Order", "Placed", Batches(Arc::clone(&sizes))))
            .build()
            .await
            .unwrap();
        for event in &events {
            let expected = if event.aggregate_id() == Some("poison") {
                Status::Dead
            } else {
                Status::Done
            };
            settled(&**outbox.store(), event.id(), expected).await;
        }
        outbox.shutdown().await.unwrap();
        let sizes = sizes.lock().unwrap().clone();
        assert_eq!(sizes.iter().sum::<usize>(), 41);
        assert!(sizes.iter().all(|size| *size <= 10), "{sizes:?}");
        assert!(sizes.iter().any(|size| *size > 1), "{sizes:?}");
        writer.shutdown().await.unwrap();
    }

    pub(super) async fn receipt_delivers_and_a_rolled_back_savepoint_does_not<D: SqlDatabase, W: Way>() {
        let on = On::<D>::open("receipt").await;
        let heard = Heard::default();
        let outbox = W::single_node(&on.pool)
            .poll_interval(Duration::from_secs(3600))
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let mut tx = on.pool.begin().await.unwrap();
        let (kept, undone) = (event("Placed"), event("Placed"));
        let mut savepoint = sqlx::Connection::begin(&mut *tx).await.unwrap();
        let lost = outbox.publish(&mut savepoint, &undone).await.unwrap();
        savepoint.rollback().await.unwrap();
        let receipt = outbox.publish(&mut tx, &kept).await.unwrap();
        tx.commit().await.unwrap();
        lost.committed();
        receipt.committed();
        settled(&**outbox.store(), kept.id(), Status::Done).await;

        // Without a word the events are looked up as well.
        let mut tx = on.pool.begin().await.unwrap();
        let silent = event("Placed");
        let receipt = outbox.publish(&mut tx, &silent).await.unwrap();
        tx.commit().await.unwrap();
        drop(receipt);
        settled(&**outbox.store(), silent.id(), Status::Done).await;
        outbox.shutdown().await.unwrap();
        let deliveries = heard.deliveries();
        let heard: Vec<_> = deliveries.iter().map(|delivery| delivery.id()).collect();
        assert_eq!(heard, [kept.id(), silent.id()]);
        assert!(deliveries.iter().all(|delivery| delivery.path == Path::Cold));
    }

    pub(super) async fn policy_per_event_type<D: Database, W: Way>() {
        let on = On::<D>::open("policy").await;
        let outbox = W::single_node(&on.pool)
            .retry(Fixed::new(Duration::from_millis(10), 3))
            .retry_for("Fragile", NoRetry)
            .listen("Placed", Heard::always(Answer::Fail).listener())
            .listen("Fragile", Heard::always(Answer::Fail).listener())
            .build()
            .await
            .unwrap();
        let placed = publish(&outbox, &on.pool, &event("Placed")).await;
        let fragile = publish(&outbox, &on.pool, &event("Fragile")).await;
        assert_eq!(settled(&**outbox.store(), &fragile, Status::Dead).await.attempts, 1);
        assert_eq!(settled(&**outbox.store(), &placed, Status::Dead).await.attempts, 3);
        outbox.shutdown().await.unwrap();
    }

    pub(super) async fn error_text_is_cut<D: Database, W: Way>() {
        let on = On::<D>::open("error_text").await;
        let outbox = W::single_node(&on.pool)
            .listen("Placed", |_: Delivery| async {
                Err(Failure::permanent("ä\0".repeat(10_000)))
            })
            .build()
            .await
            .unwrap();
        let id = publish(&outbox, &on.pool, &event("Placed")).await;
        let row = settled(&**outbox.store(), &id, Status::Dead).await;
        assert_eq!(row.last_error.unwrap().chars().count(), 4000);
        outbox.shutdown().await.unwrap();
    }

    pub(super) async fn deleted_when_done<D: Database, W: Way>() {
        let on = On::<D>::open("deleted").await;
        let heard = Heard::default();
        let outbox = W::single_node(&on.pool)
            .delete_when_done()
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let id = publish(&outbox, &on.pool, &event("Placed")).await;
        heard.wait(1).await;
        outbox.shutdown().await.unwrap();
        assert!(outbox.store().fetch(&id).await.unwrap().is_none());
    }
}
