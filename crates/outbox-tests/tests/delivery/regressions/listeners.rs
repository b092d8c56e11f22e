//! Listeners with odd names, odd answers and odd retry policies.

crate::on_every_database! {
    a_name_of_two_lines_is_one_name
    one_name_for_two_routes_of_an_event_is_refused
    a_retry_policy_that_panics_leaves_the_event_to_the_default_one
    an_event_deferred_forever_waits_and_the_others_go_on
}

mod tests {
    use std::time::Duration;

    use outbox::retry::{Fixed, RetryPolicy};
    use outbox::store::Status;
    use outbox::{Error, Outbox, Subscription};
    use outbox_testbed::eventually;
    use outbox_tests::{Database, On};

    use crate::heard::{Answer, DEADLINE, Heard, event, publish, settled};

    const POLL: Duration = Duration::from_millis(20);

    /// The table has one name a line: `index` must not be taken for done because `mail\nindex` is.
    pub(super) async fn a_name_of_two_lines_is_one_name<D: Database>() {
        let on = On::<D>::open("two_lines").await;
        let (first, second) = (Heard::default(), Heard::answering([Answer::Fail]));
        let outbox = Outbox::single_node(&on.pool)
            .poll_interval(POLL)
            .retry(Fixed::new(Duration::ZERO, 5))
            .subscribe(Subscription::to("__GLOBAL__", "Placed", first.listener()).named("mail\nindex"))
            .subscribe(Subscription::to("__GLOBAL__", "Placed", second.listener()).named("index"))
            .build()
            .await
            .unwrap();
        let id = publish(&outbox, &on.pool, &event("Placed")).await;
        settled(&**outbox.store(), &id, Status::Done).await;
        assert_eq!((first.count(), second.count()), (1, 2));
        outbox.shutdown().await.unwrap();
    }

    /// It is by the name that a retry knows who is done.
    pub(super) async fn one_name_for_two_routes_of_an_event_is_refused<D: Database>() {
        let on = On::<D>::open("one_name").await;
        let heard = Heard::default();
        let refused = Outbox::single_node(&on.pool)
            .subscribe(Subscription::to("__GLOBAL__", "Placed", heard.listener()).named("audit"))
            .subscribe(Subscription::all("audit", heard.listener()))
            .build()
            .await
            .err()
            .unwrap();
        assert!(matches!(refused, Error::DuplicateListener(_)), "{refused:?}");
        assert_eq!(
            refused.to_string(),
            "there are two listeners named \"audit\" for __GLOBAL__ Placed: give each a name of its own \
             (Subscription::named), or remove one"
        );
    }

    /// A table of delays that is too short.
    #[derive(Debug)]
    struct TooShort;

    impl RetryPolicy for TooShort {
        fn delay(&self, failed: u32) -> Option<Duration> {
            let delays: [Duration; 0] = [];
            Some(delays[failed as usize])
        }
    }

    pub(super) async fn a_retry_policy_that_panics_leaves_the_event_to_the_default_one<D: Database>() {
        let on = On::<D>::open("policy").await;
        let heard = Heard::answering([Answer::Fail]);
        let outbox = Outbox::multi_node(&on.pool)
            .poll_interval(POLL)
            .workers(1)
            .retry(TooShort)
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let failing = publish(&outbox, &on.pool, &event("Placed")).await;
        let row = settled(&**outbox.store(), &failing, Status::Done).await;
        assert_eq!((row.attempts, heard.count()), (1, 2));
        let health = outbox.health();
        assert!(health.ready, "{health:?}");
        outbox.shutdown().await.unwrap();
    }

    pub(super) async fn an_event_deferred_forever_waits_and_the_others_go_on<D: Database>() {
        let on = On::<D>::open("forever").await;
        let heard = Heard::answering([Answer::Defer(Duration::MAX)]);
        let outbox = Outbox::single_node(&on.pool)
            .poll_interval(POLL)
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let deferred = publish(&outbox, &on.pool, &event("Placed")).await;
        let in_50_years = chrono::Utc::now() + chrono::Duration::days(50 * 365);
        let row = eventually("the event to be deferred", DEADLINE, async || {
            let row = outbox.store().fetch(&deferred).await.unwrap();
            row.filter(|row| row.available_at > in_50_years)
        })
        .await;
        assert_eq!(row.attempts, 0, "deferred is not failed");

        let other = publish(&outbox, &on.pool, &event("Placed")).await;
        settled(&**outbox.store(), &other, Status::Done).await;
        let health = outbox.health();
        assert!(health.ready, "{health:?}");
        let stats = outbox.store().stats(100).await.unwrap();
        assert!(stats.oldest_lag.is_none(), "nothing is due: {stats:?}");
        outbox.shutdown().await.unwrap();
        assert_eq!(heard.count(), 2);
    }
}
