//! Order: the events of a key, one by one, whatever happens to the others, or to the nodes.

mod late;
mod model;
mod nodes;
mod speed;

crate::on_every_database! {
    events_of_a_key_come_in_order
    failing_event_holds_back_only_its_key
    dead_event_lets_its_key_go_on
    parked_key_waits_until_it_is_unblocked
    parked_key_goes_on_with_the_event_that_is_replayed
    events_without_a_key_are_not_held_back
    delayed_event_does_not_hold_back_its_key
    deferred_event_holds_back_its_key
    busy_key_does_not_keep_others_out
    rows_of_an_earlier_way_are_taken_over
    shutdown_frees_the_lanes_at_once
}

mod tests {
    use std::time::{Duration, Instant};

    use outbox::retry::Fixed;
    use outbox::store::{Filter, Page, Status};
    use outbox::{Backend, Builder, Event, Ordered, Outbox};
    use outbox_tests::{Database, On};

    use crate::heard::{Answer, DEADLINE, Heard, drained, event, publish, settled};
    use outbox_testbed::eventually;

    pub(super) fn moved(key: &str, number: usize) -> Event {
        let builder = Event::builder("Moved").aggregate_type("Account").aggregate_id(key);
        builder.json(number.to_string()).build().unwrap()
    }

    pub(super) fn ordered<D: Database>(on: &On<D>) -> Builder<D, Ordered> {
        Outbox::ordered(&on.pool)
            .poll_interval(Duration::from_millis(50))
            .retry(Fixed::new(Duration::from_millis(5), 3))
    }

    pub(super) async fn hears<D: Database>(builder: Builder<D, Ordered>, heard: &Heard) -> Outbox<D> {
        let builder = builder.listen_to("Account", "Moved", heard.listener());
        builder.build().await.unwrap()
    }

    /// Publishes 0, 1, 2... for each key, in turns.
    async fn publish_numbers<D: Backend>(outbox: &Outbox<D>, pool: &D::Pool, keys: &[&str], count: usize) {
        let events = (0..count).flat_map(|number| keys.iter().map(move |key| moved(key, number)));
        let mut tx = outbox.begin(pool).await.unwrap();
        outbox.publish_all(&mut tx, events).await.unwrap();
        tx.commit().await.unwrap();
    }

    pub(super) fn numbers(heard: &Heard, key: &str) -> Vec<usize> {
        let deliveries = heard.deliveries();
        let of_key = deliveries
            .iter()
            .filter(|delivery| delivery.aggregate_id() == Some(key));
        of_key
            .map(|delivery| delivery.payload().as_json().unwrap().parse().unwrap())
            .collect()
    }

    pub(super) async fn events_of_a_key_come_in_order<D: Database>() {
        let on = On::<D>::open("in_order").await;
        let heard = Heard::answering((0..60).map(|n| if n % 7 == 3 { Answer::Fail } else { Answer::Done }));
        let outbox = hears(ordered(&on).workers(8), &heard).await;
        let keys = ["a", "b", "c", "d", "e"];
        publish_numbers(&outbox, &on.pool, &keys, 40).await;
        drained(&**outbox.store()).await;
        outbox.shutdown().await.unwrap();
        for key in keys {
            let mut first = numbers(&heard, key);
            // A failed one comes again, before any other.
            first.dedup();
            assert_eq!(first, (0..40).collect::<Vec<_>>(), "{key}");
        }
    }

    pub(super) async fn failing_event_holds_back_only_its_key<D: Database>() {
        let on = On::<D>::open("held_back").await;
        let (bad, good) = (
            Heard::always(Answer::RetryAfter(Duration::from_secs(3600))),
            Heard::default(),
        );
        let outbox = ordered(&on)
            .listen_to("Account", "Bad", bad.listener())
            .listen_to("Account", "Moved", good.listener())
            .build()
            .await
            .unwrap();
        let first = Event::builder("Bad")
            .aggregate_type("Account")
            .aggregate_id("bad")
            .json("0");
        publish(&outbox, &on.pool, &first.build().unwrap()).await;
        bad.wait(1).await;
        publish_numbers(&outbox, &on.pool, &["bad", "good"], 10).await;
        good.wait(10).await;
        eventually("the key to be seen as blocked", DEADLINE, async || {
            let page = Page { after: 0, limit: 10 };
            let keys = outbox.admin().blocked_keys(page).await.unwrap();
            (keys.len() == 1 && keys[0].aggregate_id == "bad" && keys[0].until.is_some()).then_some(())
        })
        .await;
        outbox.shutdown().await.unwrap();
        assert_eq!(numbers(&good, "good"), (0..10).collect::<Vec<_>>());
        assert!(numbers(&good, "bad").is_empty());
        assert_eq!(bad.count(), 1);
    }

    pub(super) async fn dead_event_lets_its_key_go_on<D: Database>() {
        let on = On::<D>::open("goes_on").await;
        let heard = Heard::answering([Answer::Permanent]);
        let outbox = hears(ordered(&on), &heard).await;
        publish_numbers(&outbox, &on.pool, &["a"], 3).await;
        drained(&**outbox.store()).await;
        outbox.shutdown().await.unwrap();
        assert_eq!(numbers(&heard, "a"), [0, 1, 2]);
    }

    pub(super) async fn parked_key_waits_until_it_is_unblocked<D: Database>() {
        let on = On::<D>::open("parked").await;
        let heard = Heard::answering([Answer::Permanent]);
        let outbox = hears(ordered(&on).park_on_death(), &heard).await;
        let dead = publish(&outbox, &on.pool, &moved("a", 0)).await;
        settled(&**outbox.store(), &dead, Status::Dead).await;
        publish_numbers(&outbox, &on.pool, &["a", "b"], 3).await;
        heard.wait(4).await;
        assert_eq!(numbers(&heard, "a"), [0]);
        assert_eq!(numbers(&heard, "b"), [0, 1, 2]);
        assert!(outbox.admin().unblock_key("Account", "a").await.unwrap());
        heard.wait(7).await;
        assert_eq!(numbers(&heard, "a"), [0, 0, 1, 2]);
        outbox.shutdown().await.unwrap();
        assert_eq!(outbox.store().fetch(&dead).await.unwrap().unwrap().status, Status::Dead);
    }

    pub(super) async fn parked_key_goes_on_with_the_event_that_is_replayed<D: Database>() {
        let on = On::<D>::open("replayed").await;
        let heard = Heard::answering([Answer::Permanent]);
        let outbox = hears(ordered(&on).park_on_death(), &heard).await;
        publish_numbers(&outbox, &on.pool, &["a"], 4).await;
        eventually("the event to be dead", DEADLINE, async || {
            let mut filter = Filter::default();
            filter.statuses = vec![Status::Dead];
            (outbox.admin().count(&filter, 10).await.unwrap() == 1).then_some(())
        })
        .await;
        assert_eq!(outbox.admin().replay(&Filter::default(), |_| ()).await.unwrap(), 1);
        drained(&**outbox.store()).await;
        outbox.shutdown().await.unwrap();
        assert_eq!(numbers(&heard, "a"), [0, 0, 1, 2, 3]);
    }

    pub(super) async fn events_without_a_key_are_not_held_back<D: Database>() {
        let on = On::<D>::open("keyless").await;
        let heard = Heard::answering([Answer::RetryAfter(Duration::from_secs(3600))]);
        let outbox = ordered(&on).listen("Placed", heard.listener()).build().await.unwrap();
        for _ in 0..5 {
            publish(&outbox, &on.pool, &event("Placed")).await;
        }
        heard.wait(5).await;
        outbox.shutdown().await.unwrap();
    }

    pub(super) async fn delayed_event_does_not_hold_back_its_key<D: Database>() {
        let on = On::<D>::open("delayed_order").await;
        let heard = Heard::default();
        let outbox = hears(ordered(&on), &heard).await;
        let delayed = Event::builder("Moved").aggregate_type("Account").aggregate_id("a");
        let delayed = delayed.deliver_after(Duration::from_secs(1)).json("0").build().unwrap();
        publish(&outbox, &on.pool, &delayed).await;
        publish(&outbox, &on.pool, &moved("a", 1)).await;
        heard.wait(2).await;
        outbox.shutdown().await.unwrap();
        assert_eq!(numbers(&heard, "a"), [1, 0]);
    }

    pub(super) async fn deferred_event_holds_back_its_key<D: Database>() {
        let on = On::<D>::open("deferred_order").await;
        let heard = Heard::answering([Answer::Defer(Duration::from_millis(300))]);
        let outbox = hears(ordered(&on), &heard).await;
        publish_numbers(&outbox, &on.pool, &["a"], 3).await;
        drained(&**outbox.store()).await;
        outbox.shutdown().await.unwrap();
        assert_eq!(numbers(&heard, "a"), [0, 0, 1, 2]);
    }

    /// More of one key than memory holds, before anything of the other.
    pub(super) async fn busy_key_does_not_keep_others_out<D: Database>() {
        let on = On::<D>::open("busy_key").await;
        let writer = Outbox::writer_only(&on.pool).build().await.unwrap();
        publish_numbers(&writer, &on.pool, &["busy"], 300).await;
        publish_numbers(&writer, &on.pool, &["other"], 1).await;
        let heard = Heard::default();
        let outbox = hears(ordered(&on).cold_capacity(32).workers(4), &heard).await;
        drained(&**outbox.store()).await;
        outbox.shutdown().await.unwrap();
        writer.shutdown().await.unwrap();
        assert_eq!(numbers(&heard, "busy"), (0..300).collect::<Vec<_>>());
        let deliveries = heard.deliveries();
        let place = deliveries
            .iter()
            .position(|delivery| delivery.aggregate_id() == Some("other"));
        assert!(place.unwrap() < 150, "{place:?}");
    }

    /// Leased by a node of the other kind that has died: its lease ends, and it keeps its place.
    pub(super) async fn rows_of_an_earlier_way_are_taken_over<D: Database>() {
        let on = On::<D>::open("earlier").await;
        let stuck = Heard::always(Answer::Hang);
        let earlier = Outbox::multi_node(&on.pool)
            .lease(Duration::from_secs(1))
            .drain_timeout(Duration::ZERO)
            .listen_to("Account", "Moved", stuck.listener())
            .build()
            .await
            .unwrap();
        publish(&earlier, &on.pool, &moved("a", 0)).await;
        stuck.wait(1).await;
        drop(earlier);
        let writer = Outbox::writer_only(&on.pool).build().await.unwrap();
        publish_numbers(&writer, &on.pool, &["a"], 3).await;
        let heard = Heard::default();
        let outbox = hears(ordered(&on), &heard).await;
        drained(&**outbox.store()).await;
        outbox.shutdown().await.unwrap();
        writer.shutdown().await.unwrap();
        assert_eq!(numbers(&heard, "a"), [0, 0, 1, 2]);
    }

    pub(super) async fn shutdown_frees_the_lanes_at_once<D: Database>() {
        let on = On::<D>::open("frees_lanes").await;
        let first = ordered(&on).lease(Duration::from_secs(600)).build().await.unwrap();
        eventually("the first to have the lanes", DEADLINE, async || {
            (D::lane_owners(&on.pool).await == [64]).then_some(())
        })
        .await;
        first.shutdown().await.unwrap();
        let heard = Heard::default();
        let started = Instant::now();
        let second = hears(ordered(&on), &heard).await;
        publish_numbers(&second, &on.pool, &["a"], 1).await;
        heard.wait(1).await;
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        second.shutdown().await.unwrap();
    }
}
