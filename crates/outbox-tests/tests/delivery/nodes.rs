//! Several processes on one table.

pub(crate) mod child;

/// Nothing lost, nothing phantom, and, since nothing was cut off, nothing twice.
mod processes_share_a_table_without_a_duplicate {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sqlite() {
        super::tests::processes_share_a_table_without_a_duplicate::<sqlx::Sqlite, crate::way::RowClaims>(2, 400).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn postgres() {
        super::tests::processes_share_a_table_without_a_duplicate::<sqlx::Postgres, crate::way::RowClaims>(4, 5000)
            .await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn mariadb() {
        super::tests::processes_share_a_table_without_a_duplicate::<sqlx::MySql, crate::way::RowClaims>(4, 5000).await;
    }

    mod lanes {
        use super::super::tests::processes_share_a_table_without_a_duplicate;
        use crate::way::Lanes;

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn sqlite() {
            processes_share_a_table_without_a_duplicate::<sqlx::Sqlite, Lanes>(2, 400).await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn postgres() {
            processes_share_a_table_without_a_duplicate::<sqlx::Postgres, Lanes>(4, 5000).await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn mariadb() {
            processes_share_a_table_without_a_duplicate::<sqlx::MySql, Lanes>(4, 5000).await;
        }
    }
}

crate::on_every_database_both_ways! {
    killed_node_is_taken_over
    stale_worker_cannot_change_a_row_that_was_taken_over
    idle_outbox_makes_one_query_per_poll_interval
}

/// A process that only writes wakes one that delivers, long before its next poll.
mod commit_elsewhere_wakes_the_poller {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn postgres() {
        super::tests::commit_elsewhere_wakes_the_poller::<crate::way::RowClaims>().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn postgres_lanes() {
        super::tests::commit_elsewhere_wakes_the_poller::<crate::way::Lanes>().await;
    }
}

mod memory_does_not_grow_with_the_backlog {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn postgres() {
        super::tests::memory_does_not_grow_with_the_backlog::<crate::way::RowClaims>().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn postgres_lanes() {
        super::tests::memory_does_not_grow_with_the_backlog::<crate::way::Lanes>().await;
    }
}

mod tests {
    use std::collections::HashMap;
    use std::time::Duration;

    use outbox::Outbox;
    use outbox::store::Status;
    use outbox_testbed::eventually;
    use outbox_tests::{Database, On, script};

    use super::child::Child;
    use crate::heard::{DEADLINE, Heard, drained, event, publish, settled};
    use crate::way::Way;

    pub(super) async fn processes_share_a_table_without_a_duplicate<D: Database, W: Way>(nodes: usize, events: u64) {
        let _turn = crate::one_at_a_time().await;
        let on = On::<D>::open("processes").await;
        let mut children: Vec<Child> = (0..nodes)
            .map(|_| Child::start::<W>("publish", &on.url(), &[&events.to_string()]))
            .collect();
        for child in &mut children {
            child.wait_for("published").await;
        }
        drained(&*on.store()).await;

        let mut said: HashMap<&str, HashMap<String, u32>> = HashMap::new();
        for child in children {
            for (fact, id) in child.end().await {
                let fact = ["committed", "rolled-back", "delivered"]
                    .into_iter()
                    .find(|known| **known == fact);
                if let Some(fact) = fact {
                    *said.entry(fact).or_default().entry(id).or_default() += 1;
                }
            }
        }
        let (committed, rolled_back, delivered) = (&said["committed"], &said["rolled-back"], &said["delivered"]);
        assert_eq!(
            committed.len() as u64 + rolled_back.len() as u64,
            nodes as u64 * (events / 4) * 4
        );
        let lost = committed.keys().filter(|id| !delivered.contains_key(*id)).count();
        let phantom = delivered.keys().filter(|id| !committed.contains_key(*id)).count();
        let twice = delivered.values().filter(|count| **count > 1).count();
        assert_eq!((lost, phantom, twice), (0, 0, 0), "lost, phantom, delivered twice");
    }

    pub(super) async fn killed_node_is_taken_over<D: Database, W: Way>() {
        let on = On::<D>::open("killed").await;
        let writer = Outbox::writer_only(&on.pool).build().await.unwrap();
        let mut child = Child::start::<W>("hold", &on.url(), &[]);
        child.wait_for("ready").await;
        let id = publish(&writer, &on.pool, &event("Placed")).await;
        child.wait_for("began").await;
        child.kill();

        let heard = Heard::default();
        let outbox = W::multi_node(&on.pool)
            .poll_interval(Duration::from_millis(50))
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let row = settled(&**outbox.store(), &id, Status::Done).await;
        assert_eq!(row.attempts, 0, "a crash is no failed attempt");
        assert_eq!(heard.count(), 1);
        outbox.shutdown().await.unwrap();
        writer.shutdown().await.unwrap();
    }

    pub(super) async fn stale_worker_cannot_change_a_row_that_was_taken_over<D: Database, W: Way>() {
        let on = On::<D>::open("stale").await;
        let writer = Outbox::writer_only(&on.pool).build().await.unwrap();
        let mut child = Child::start::<W>("hold", &on.url(), &[]);
        child.wait_for("ready").await;
        let id = publish(&writer, &on.pool, &event("Placed")).await;
        child.wait_for("began").await;
        child.signal("STOP");

        // Its lease ends; somebody else delivers.
        let heard = Heard::default();
        let outbox = W::multi_node(&on.pool)
            .poll_interval(Duration::from_millis(50))
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let before = settled(&**outbox.store(), &id, Status::Done).await;
        outbox.shutdown().await.unwrap();

        // It wakes up and says that the event is dead.
        child.signal("CONT");
        child.say("go");
        child.wait_for("answered").await;
        child.end().await;
        let after = outbox.store().fetch(&id).await.unwrap().unwrap();
        assert_eq!(format!("{before:?}"), format!("{after:?}"));
        assert!(outbox.admin().attempts(&id).await.unwrap().is_empty());
        writer.shutdown().await.unwrap();
    }

    pub(super) async fn idle_outbox_makes_one_query_per_poll_interval<D: Database, W: Way>() {
        let on = On::<D>::open("idle").await;
        let mut child = Child::start::<W>("idle", &on.url(), &["20"]);
        let statements: u64 = child.wait_for("statements").await.parse().unwrap();
        let in_all: u64 = child.wait_for("in-all").await.parse().unwrap();
        // Who has lanes shows that it lives, with three statements every two seconds.
        let most = if W::NAME == "lanes" { 20 + 9 } else { 20 };
        assert!(statements <= most, "{statements} statements in 20 poll intervals");
        assert!(
            in_all > statements,
            "the statements of the start were counted, so the counter counts"
        );
        child.end().await;
    }

    pub(super) async fn commit_elsewhere_wakes_the_poller<W: Way>() {
        let on = On::<sqlx::Postgres>::open("notification").await;
        let writer = Outbox::writer_only(&on.pool).build().await.unwrap();
        let heard = Heard::default();
        let outbox = W::multi_node(&on.pool)
            .poll_interval(Duration::from_secs(3600))
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        // It rests twice as long each time: from now on, for five seconds and more.
        tokio::time::sleep(Duration::from_secs(6)).await;
        let started = std::time::Instant::now();
        publish(&writer, &on.pool, &event("Placed")).await;
        heard.wait(1).await;
        assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
        outbox.shutdown().await.unwrap();
        writer.shutdown().await.unwrap();
    }

    pub(super) async fn memory_does_not_grow_with_the_backlog<W: Way>() {
        let _turn = crate::one_at_a_time().await;
        let on = On::<sqlx::Postgres>::open("memory").await;
        let mut idle = Child::start::<W>("drain", &on.url(), &[]);
        idle.wait_for("ready").await;
        let at_rest = eventually("the idle process to settle", DEADLINE, async || {
            let before = idle.resident_kib();
            // Between two samples.
            tokio::time::sleep(Duration::from_millis(300)).await;
            let after = idle.resident_kib();
            (before == after && before > 0).then_some(after)
        })
        .await;
        idle.end().await;

        script(
            &on.pool,
            "insert into outbox_event (event_id, event_type, payload)
             select 'e' || n, 'Placed', json_build_object('n', n, 'text', repeat('x', 200))
             from generate_series(1, 1000000) as n",
        )
        .await;
        let mut busy = Child::start::<W>("drain", &on.url(), &[]);
        busy.wait_for("ready").await;
        let mut highest = 0;
        eventually("a good part of the backlog to be delivered", DEADLINE * 4, async || {
            highest = highest.max(busy.resident_kib());
            let done: i64 = sqlx::query_scalar(
                "select count(*) from (select 1 from outbox_event where status = 1 limit 20000) as done",
            )
            .fetch_one(&on.pool)
            .await
            .unwrap();
            (done >= 20_000).then_some(())
        })
        .await;
        busy.kill();
        let grown = highest.saturating_sub(at_rest) / 1024;
        assert!(
            grown < 100,
            "{grown} MiB more than the idle process ({at_rest} KiB at rest)"
        );
    }
}
