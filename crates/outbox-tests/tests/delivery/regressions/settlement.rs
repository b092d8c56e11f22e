//! An outcome is that of one delivery, and of no other.

crate::on_every_database! {
    an_event_deferred_by_nothing_does_not_rest_for_a_lease
    the_outcome_of_an_event_let_go_is_not_that_of_its_next_delivery
}

mod tests {
    use std::collections::HashMap;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::{Duration, Instant};

    use outbox::retry::Fixed;
    use outbox::store::Status;
    use outbox::{Delivery, EventId, Failure, Outbox};
    use outbox_testbed::eventually;
    use outbox_tests::{Database, On};
    use tokio::sync::Semaphore;

    use crate::heard::{Answer, DEADLINE, Heard, drained, event, publish, settled};
    use crate::regressions::slow_store::{Fault, Pool};

    const POLL: Duration = Duration::from_millis(10);

    /// Claimed again before the answer to its settlement is here, an event must not be forgotten until its lease ends.
    pub(super) async fn an_event_deferred_by_nothing_does_not_rest_for_a_lease<D: Database>() {
        const LEASE: Duration = Duration::from_secs(600);
        let on = On::<D>::open("zero_delay").await;
        let seen: Arc<Mutex<HashMap<EventId, Vec<Instant>>>> = Arc::default();
        let listener = {
            let seen = Arc::clone(&seen);
            move |delivery: Delivery| {
                let mut seen = seen.lock().unwrap();
                let times = seen.entry(delivery.id().clone()).or_default();
                times.push(Instant::now());
                let again = times.len() < 10;
                async move {
                    match again {
                        true => Err(Failure::defer(Duration::ZERO)),
                        false => Ok(()),
                    }
                }
            }
        };
        let outbox = Outbox::single_node(&on.pool)
            .row_claims()
            .lease(LEASE)
            .poll_interval(Duration::from_millis(1))
            .poll_batch(5)
            .listen("Placed", listener)
            .build()
            .await
            .unwrap();
        for _ in 0..4 {
            let mut tx = outbox.begin(&on.pool).await.unwrap();
            let events = (0..50).map(|_| event("Placed"));
            outbox.publish_all(&mut tx, events).await.unwrap();
            tx.commit().await.unwrap();
        }
        drained(&**outbox.store()).await;
        outbox.shutdown().await.unwrap();
        let seen = seen.lock().unwrap();
        let gaps = seen
            .values()
            .flat_map(|times| times.windows(2).map(|two| two[1] - two[0]));
        let longest = gaps.max().unwrap();
        assert!(longest < LEASE / 2, "{longest:?}");
    }

    /// The first delivery outlives its time and fails; the second succeeds.
    pub(super) async fn the_outcome_of_an_event_let_go_is_not_that_of_its_next_delivery<D: Database>() {
        let on = On::<D>::open("let_go").await;
        let calls = Arc::new(AtomicUsize::new(0));
        let gates = Arc::new([Semaphore::new(0), Semaphore::new(0)]);
        let listener = {
            let (calls, gates) = (Arc::clone(&calls), Arc::clone(&gates));
            move |_: Delivery| {
                let (call, gates) = (calls.fetch_add(1, Ordering::SeqCst), Arc::clone(&gates));
                async move {
                    if let Some(gate) = gates.get(call) {
                        gate.acquire().await.unwrap().forget();
                    }
                    match call {
                        0 => Err(Failure::permanent("the first, late")),
                        _ => Ok(()),
                    }
                }
            }
        };
        let outbox = Outbox::multi_node(&on.pool)
            .row_claims()
            .lease(Duration::from_secs(1))
            .in_flight_ttl(Duration::from_millis(500))
            .poll_interval(POLL)
            .listen("Placed", listener)
            .build()
            .await
            .unwrap();
        let id = publish(&outbox, &on.pool, &event("Placed")).await;
        eventually("the second delivery", DEADLINE, async || {
            (calls.load(Ordering::SeqCst) >= 2).then_some(())
        })
        .await;
        gates[0].add_permits(1);
        // For the first one's outcome to be written, which must not be.
        tokio::time::sleep(Duration::from_millis(300)).await;
        gates[1].add_permits(1);
        let row = eventually("the event to be settled", DEADLINE, async || {
            let row = outbox.store().fetch(&id).await.unwrap();
            row.filter(|row| matches!(row.status, Status::Done | Status::Dead))
        })
        .await;
        assert_eq!((row.status, row.last_error), (Status::Done, None));
        outbox.shutdown().await.unwrap();
    }

    /// A job waits in its queue while another node has its row for a while.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_job_that_lost_its_lease_in_the_queue_is_not_delivered_twice_at_once() {
        let on = On::<sqlx::Postgres>::open("lost_lease").await;
        let gate = Arc::new(Semaphore::new(0));
        // How many are at it now, and the most there ever were.
        let calls: Arc<Mutex<HashMap<EventId, (usize, usize)>>> = Arc::default();
        let listener = {
            let (gate, calls) = (Arc::clone(&gate), Arc::clone(&calls));
            move |delivery: Delivery| {
                let (gate, calls) = (Arc::clone(&gate), Arc::clone(&calls));
                async move {
                    {
                        let mut calls = calls.lock().unwrap();
                        let (now, most) = calls.entry(delivery.id().clone()).or_default();
                        *now += 1;
                        *most = (*most).max(*now);
                    }
                    gate.acquire().await.unwrap().forget();
                    // Long enough to meet another delivery of the same event.
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    calls.lock().unwrap().get_mut(delivery.id()).unwrap().0 -= 1;
                    Ok(())
                }
            }
        };
        let outbox = Outbox::multi_node(&on.pool)
            .row_claims()
            .lease(Duration::from_secs(1))
            .poll_interval(POLL)
            .workers(2)
            .listen("Placed", listener)
            .build()
            .await
            .unwrap();
        for _ in 0..2 {
            publish(&outbox, &on.pool, &event("Placed")).await;
        }
        eventually("both workers to be busy", DEADLINE, async || {
            (calls.lock().unwrap().len() == 2).then_some(())
        })
        .await;
        let third = publish(&outbox, &on.pool, &event("Placed")).await;
        let taken = sqlx::query(
            "update outbox_event set token = token + 1, locked_by = 'other', lease_until = now() + interval '2 seconds'
             where event_id = $1",
        );
        let taken = taken.bind(third.as_str()).execute(&on.pool).await.unwrap();
        assert_eq!(taken.rows_affected(), 1);
        eventually("this node to have it again", DEADLINE, async || {
            let row = outbox.store().fetch(&third).await.unwrap().unwrap();
            row.locked_by.filter(|owner| owner != "other")
        })
        .await;
        gate.add_permits(100);
        drained(&**outbox.store()).await;
        outbox.shutdown().await.unwrap();
        let most: Vec<_> = calls.lock().unwrap().values().map(|(_, most)| *most).collect();
        assert_eq!(most, [1; 3], "one event with two workers at once");
    }

    /// Nothing can be written until the lease has ended and this very node has claimed the row again.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_outage_longer_than_the_lease_does_not_run_the_listener_again() {
        let on = On::<sqlx::Postgres>::open("outage").await;
        let pool = Pool::new(&on.pool, Fault::Outage);
        let heard = Heard::default();
        let outbox = Outbox::multi_node(&pool)
            .row_claims()
            .lease(Duration::from_secs(1))
            .poll_interval(POLL)
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let id = publish(&outbox, &pool, &event("Placed")).await;
        let row = settled(&**outbox.store(), &id, Status::Done).await;
        outbox.shutdown().await.unwrap();
        assert_eq!((heard.count(), row.attempts), (1, 0));
    }

    /// The settlement is in the table, and its answer comes later than that of the next claim.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_late_answer_to_a_settlement_does_not_delay_the_next_delivery() {
        let on = On::<sqlx::Postgres>::open("late_answer").await;
        let pool = Pool::new(&on.pool, Fault::LateAnswers);
        let heard = Heard::answering([Answer::Defer(Duration::from_millis(20))]);
        let outbox = Outbox::multi_node(&pool)
            .row_claims()
            .lease(Duration::from_secs(60))
            .poll_interval(POLL)
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let id = publish(&outbox, &pool, &event("Placed")).await;
        // Long before the lease ends.
        settled(&**outbox.store(), &id, Status::Done).await;
        assert_eq!(heard.count(), 2);
        outbox.shutdown().await.unwrap();
    }

    /// The settlement is in the table, and its answer is lost: it is repeated, and counts once.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_settlement_whose_answer_is_lost_counts_once() {
        let on = On::<sqlx::Postgres>::open("lost_answer").await;
        let pool = Pool::new(&on.pool, Fault::LostAnswerOnce);
        let heard = Heard::answering([Answer::Fail]);
        let outbox = Outbox::multi_node(&pool)
            .row_claims()
            .lease(Duration::from_secs(3))
            .poll_interval(POLL)
            .retry(Fixed::new(Duration::from_millis(20), 10))
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let id = publish(&outbox, &pool, &event("Placed")).await;
        let row = settled(&**outbox.store(), &id, Status::Done).await;
        let calls: Vec<_> = heard.deliveries().iter().map(|one| one.attempt).collect();
        let attempts = outbox.store().attempts(&id).await.unwrap();
        assert_eq!((row.attempts, &*calls, attempts.len()), (1, &[1, 2][..], 1));
        outbox.shutdown().await.unwrap();
    }
}
