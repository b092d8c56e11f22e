//! The next batch is read before the last one is queued: what became of the one must not be the end of the other.

crate::on_every_database_both_ways! {
    what_was_read_ahead_at_a_shutdown_is_given_back
}

mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use outbox::Outbox;
    use outbox_tests::{Database, On, script};

    use crate::heard::{DEADLINE, Heard, drained, event};
    use crate::regressions::slow_store::{Fault, Pool};
    use crate::way::Way;

    /// Only who gives events back lets others have them in time.
    const LONG: Duration = Duration::from_secs(600);
    const POLL: Duration = Duration::from_millis(20);

    pub(super) async fn what_was_read_ahead_at_a_shutdown_is_given_back<D: Database, W: Way>() {
        const EVENTS: usize = 2_000;
        let on = On::<D>::open("read_ahead").await;
        let writer = Outbox::writer_only(&on.pool).build().await.unwrap();
        let mut tx = writer.begin(&on.pool).await.unwrap();
        writer
            .publish_all(&mut tx, (0..EVENTS).map(|_| event("Placed")))
            .await
            .unwrap();
        tx.commit().await.unwrap();
        let heard = Heard::default();
        for seen in [1, 300, 700, EVENTS] {
            let node = W::own(Outbox::multi_node(&on.pool))
                .lease(LONG)
                .poll_interval(POLL)
                .poll_batch(50)
                .listen("Placed", heard.listener())
                .build()
                .await
                .unwrap();
            heard.wait(seen).await;
            if seen == EVENTS {
                drained(&**node.store()).await;
            }
            node.shutdown().await.unwrap();
        }
        let ids: HashSet<_> = heard.deliveries().iter().map(|one| one.id().clone()).collect();
        assert_eq!((ids.len(), heard.count()), (EVENTS, EVENTS), "each once");
    }

    /// The first batch has a row whose lease has ended, and which cannot be taken from its owner at the first try; the second was
    /// read meanwhile.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_was_read_ahead_is_delivered_although_the_batch_before_it_failed() {
        let on = On::<sqlx::Postgres>::open("ahead_of_failure").await;
        script(
            &on.pool,
            "insert into outbox_event (event_id, event_type, payload, locked_by, lease_until)
             select n::text, 'Placed', '{}', case n when 5 then 'another' end,
                    case n when 5 then now() - interval '1 minute' end
             from generate_series(1, 500) as n",
        )
        .await;
        let pool = Pool::new(&on.pool, Fault::ReleaseFailsOnce);
        let heard = Heard::default();
        let outbox = Outbox::multi_node(&pool)
            .lease(LONG)
            .poll_interval(POLL)
            .poll_batch(100)
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        heard.wait(500).await;
        drained(&**outbox.store()).await;
        assert_eq!(heard.count(), 500, "each once");
        let report = tokio::time::timeout(DEADLINE, outbox.shutdown())
            .await
            .unwrap()
            .unwrap();
        assert!(report.drained);
    }
}
