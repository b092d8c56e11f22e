//! Options at the ends of their ranges.

crate::on_every_database! {
    endless_times_are_bounded
    a_lease_of_nothing_is_bounded_and_delivers_once
}

mod tests {
    use std::time::Duration;

    use outbox::Outbox;
    use outbox::store::Status;
    use outbox_tests::{Database, On};

    use crate::heard::{Heard, event, publish, settled};

    pub(super) async fn endless_times_are_bounded<D: Database>() {
        let on = On::<D>::open("endless").await;
        let heard = Heard::default();
        let outbox = Outbox::single_node(&on.pool)
            .drain_timeout(Duration::MAX)
            .gauges(Duration::MAX)
            .in_flight_ttl(Duration::MAX)
            .lease(Duration::MAX)
            .listener_timeout(Duration::MAX)
            .poll_interval(Duration::MAX)
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let id = publish(&outbox, &on.pool, &event("Placed")).await;
        settled(&**outbox.store(), &id, Status::Done).await;
        let health = outbox.health();
        assert!(health.ready, "{health:?}");
        outbox.shutdown().await.unwrap();
    }

    pub(super) async fn a_lease_of_nothing_is_bounded_and_delivers_once<D: Database>() {
        let on = On::<D>::open("no_lease").await;
        let heard = Heard::default();
        let outbox = Outbox::single_node(&on.pool)
            .lease(Duration::ZERO)
            .poll_interval(Duration::from_millis(20))
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let id = publish(&outbox, &on.pool, &event("Placed")).await;
        settled(&**outbox.store(), &id, Status::Done).await;
        // Many polls, none of which may deliver it again.
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(heard.count(), 1);
        outbox.shutdown().await.unwrap();
    }
}
