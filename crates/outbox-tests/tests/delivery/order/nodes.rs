//! Order with several processes that join, leave, stall and die.

/// Random keys, random failures, and nodes that join, leave, stall and die: first deliveries are in order, and nothing is
/// lost.
mod nodes_come_and_go {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sqlite() {
        super::tests::nodes_come_and_go::<sqlx::Sqlite>(2).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn postgres() {
        super::tests::nodes_come_and_go::<sqlx::Postgres>(3).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn mariadb() {
        super::tests::nodes_come_and_go::<sqlx::MySql>(3).await;
    }
}

crate::on_every_database! {
    killed_owner_is_taken_over_in_time
    stalled_owner_settles_nothing
}

/// A clean hand-over: nothing twice, nothing out of order, lanes even within ten seconds.
mod node_joins_under_load {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn postgres() {
        super::tests::node_joins_under_load::<sqlx::Postgres>().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn mariadb() {
        super::tests::node_joins_under_load::<sqlx::MySql>().await;
    }
}

mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use outbox::store::Store;
    use outbox::{Backend, Outbox};
    use outbox_testbed::eventually;
    use outbox_tests::{Database, On};
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::super::model::Model;
    use super::super::tests::moved;
    use crate::heard::{DEADLINE, drained};
    use crate::nodes::child::Child;

    /// A file that nodes append to.
    struct Log(PathBuf);

    impl Log {
        fn new() -> Self {
            let name = format!("outbox-order-{:016x}.log", rand::random::<u64>());
            Self(std::env::temp_dir().join(name))
        }

        fn node(&self, url: &str, lease: Duration) -> Child {
            let lease = lease.as_millis().to_string();
            Child::start_as("order", self.0.to_str().expect("its name is plain"), url, &[&lease])
        }

        fn read(&self) -> String {
            std::fs::read_to_string(&self.0).unwrap_or_default()
        }
    }

    impl Drop for Log {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    /// Publishes numbers for each of `keys` keys, one task a key, until `stop` or `most` events.
    struct Producers {
        tasks: tokio::task::JoinSet<usize>,
        stop: Arc<AtomicBool>,
        published: Arc<AtomicUsize>,
    }

    impl Producers {
        fn start<D: Database>(writer: &Outbox<D>, pool: &D::Pool, keys: usize, pause: Duration) -> Self {
            let (stop, published) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
            let mut tasks = tokio::task::JoinSet::new();
            // A task has several keys: as many tasks as there are keys would want as many connections.
            for task in 0..4 {
                let (writer, pool) = (writer.clone(), pool.clone());
                let (stop, published) = (Arc::clone(&stop), Arc::clone(&published));
                tasks.spawn(async move {
                    let mut number = 0;
                    while !stop.load(Ordering::Relaxed) {
                        for key in (task..keys).step_by(4) {
                            publish(&writer, &pool, &format!("key-{key}"), number).await;
                            published.fetch_add(1, Ordering::Relaxed);
                            // Its pace.
                            tokio::time::sleep(pause).await;
                        }
                        number += 1;
                    }
                    number * (task..keys).step_by(4).count()
                });
            }
            Self { tasks, stop, published }
        }

        async fn reach(&self, count: usize) {
            eventually("events to be published", DEADLINE * 4, async || {
                (self.published.load(Ordering::Relaxed) >= count).then_some(())
            })
            .await;
        }

        /// How many events there are in all.
        async fn end(self) -> usize {
            self.stop.store(true, Ordering::Relaxed);
            self.tasks.join_all().await.into_iter().sum()
        }
    }

    async fn publish<D: Backend>(writer: &Outbox<D>, pool: &D::Pool, key: &str, number: usize) {
        crate::heard::publish(writer, pool, &moved(key, number)).await;
    }

    pub(super) async fn nodes_come_and_go<D: Database>(most: usize) {
        let _turn = crate::one_at_a_time().await;
        let seed: u64 = rand::random();
        eprintln!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let on = On::<D>::open("come_and_go").await;
        let log = Log::new();
        let lease = Duration::from_secs(1);
        let writer = Outbox::writer_only(&on.pool).build().await.unwrap();
        let producers = Producers::start(&writer, &on.pool, 40, Duration::from_millis(2));
        let mut nodes = vec![log.node(&on.url(), lease)];
        nodes[0].wait_for("ready").await;
        for step in 1..=10 {
            producers.reach(step * 100).await;
            let victim = random.random_range(0..nodes.len().max(1));
            match random.random_range(0..5) {
                _ if nodes.is_empty() => nodes.push(log.node(&on.url(), lease)),
                0 | 1 if nodes.len() < most => nodes.push(log.node(&on.url(), lease)),
                2 => nodes.swap_remove(victim).kill(),
                3 => {
                    nodes.swap_remove(victim).end().await;
                }
                _ => {
                    // Past its lease, and on again.
                    nodes[victim].signal("STOP");
                    tokio::time::sleep(lease + lease / 2).await;
                    nodes[victim].signal("CONT");
                }
            }
        }
        let published = producers.end().await;
        nodes.push(log.node(&on.url(), lease));
        drained(&*on.store()).await;
        for node in nodes {
            node.end().await;
        }
        writer.shutdown().await.unwrap();
        let model = Model::of(&log.read());
        assert_eq!(model.overtaken, [""; 0], "seed {seed}");
        assert_eq!(model.delivered(), published, "seed {seed}");
    }

    /// On an idle machine it takes the lease and a few milliseconds. A busy one can only make it longer, so one of three must
    /// be in time.
    pub(super) async fn killed_owner_is_taken_over_in_time<D: Database>() {
        let _turn = crate::one_at_a_time().await;
        let lease = Duration::from_secs(2);
        let mut took = Vec::new();
        for _ in 0..3 {
            took.push(takeover::<D>(lease).await);
            if took.last() < Some(&(lease + Duration::from_secs(1))) {
                return;
            }
        }
        panic!("{took:?}");
    }

    /// How long it takes until everything is delivered after the owner was killed.
    async fn takeover<D: Database>(lease: Duration) -> Duration {
        let on = On::<D>::open("killed_owner").await;
        let log = Log::new();
        let writer = Outbox::writer_only(&on.pool).build().await.unwrap();
        let mut owner = log.node(&on.url(), lease);
        owner.wait_for("ready").await;
        let producers = Producers::start(&writer, &on.pool, 20, Duration::from_millis(2));
        eventually("the owner to deliver", DEADLINE, async || {
            (Model::of(&log.read()).deliveries > 50).then_some(())
        })
        .await;
        let mut heir = log.node(&on.url(), lease);
        heir.wait_for("ready").await;
        producers.reach(400).await;
        let published = producers.end().await;
        owner.kill();
        let killed = Instant::now();
        eventually("everything to be delivered", DEADLINE, async || {
            (Model::of(&log.read()).delivered() == published).then_some(())
        })
        .await;
        let took = killed.elapsed();
        heir.end().await;
        writer.shutdown().await.unwrap();
        assert_eq!(Model::of(&log.read()).overtaken, [""; 0]);
        took
    }

    /// It was stopped in the middle of deliveries; others have done them since. Whatever it says when it wakes up, the rows
    /// stay as they were.
    pub(super) async fn stalled_owner_settles_nothing<D: Database>() {
        let _turn = crate::one_at_a_time().await;
        let on = On::<D>::open("stalled_owner").await;
        let log = Log::new();
        let lease = Duration::from_secs(1);
        let writer = Outbox::writer_only(&on.pool).build().await.unwrap();
        let mut owner = log.node(&on.url(), lease);
        owner.wait_for("ready").await;
        let producers = Producers::start(&writer, &on.pool, 20, Duration::from_millis(1));
        eventually("the owner to deliver", DEADLINE, async || {
            (Model::of(&log.read()).deliveries > 50).then_some(())
        })
        .await;
        stop(&mut owner, &*on.store()).await;
        let mut heir = log.node(&on.url(), lease);
        heir.wait_for("ready").await;
        let published = producers.end().await;
        let store = on.store();
        drained(&*store).await;
        let before = table(&*store).await;
        owner.signal("CONT");
        // It has noticed when it shares the lanes again; and has settled, or not, what it had.
        eventually("it to join again", DEADLINE, async || {
            let shared = store.share_lanes("probe", true, lease, false).await.unwrap().unwrap();
            store.leave("probe").await.unwrap();
            (shared.members >= 3).then_some(())
        })
        .await;
        owner.end().await;
        assert_eq!(table(&*store).await, before);
        heir.end().await;
        writer.shutdown().await.unwrap();
        let model = Model::of(&log.read());
        assert_eq!((model.delivered(), model.overtaken), (published, Vec::new()));
    }

    /// Stops a process, but not while it holds the write lock of SQLite: then nobody could write.
    async fn stop(node: &mut Child, store: &dyn Store) {
        for attempt in 1.. {
            node.signal("STOP");
            let name = format!("probe-{attempt}");
            let write = async {
                store.share_lanes(&name, true, DEADLINE, false).await.unwrap();
                store.leave(&name).await.unwrap();
            };
            if tokio::time::timeout(Duration::from_millis(500), write).await.is_ok() {
                return;
            }
            node.signal("CONT");
            assert!(attempt < 20, "it holds the lock whenever it is stopped");
        }
    }

    /// Every row, with all that a settlement changes.
    async fn table(store: &dyn Store) -> Vec<String> {
        let page = outbox::store::Page {
            after: 0,
            limit: 100_000,
        };
        let rows = store.find(&outbox::store::Filter::default(), page).await.unwrap();
        rows.iter()
            .map(|row| {
                let (status, attempts, done_at) = (row.status, row.attempts, row.done_at);
                format!("{} {status} {attempts} {done_at:?} {}", row.seq, row.token)
            })
            .collect()
    }

    pub(super) async fn node_joins_under_load<D: Database>() {
        let _turn = crate::one_at_a_time().await;
        let on = On::<D>::open("joins").await;
        let log = Log::new();
        let lease = Duration::from_secs(30);
        let writer = Outbox::writer_only(&on.pool).build().await.unwrap();
        let producers = Producers::start(&writer, &on.pool, 100, Duration::from_millis(1));
        let mut nodes = vec![log.node(&on.url(), lease)];
        nodes[0].wait_for("ready").await;
        for others in 1..3 {
            producers.reach(others * 500).await;
            let mut node = log.node(&on.url(), lease);
            node.wait_for("ready").await;
            let joined = Instant::now();
            nodes.push(node);
            eventually("the lanes to be even", DEADLINE, async || {
                let owned = D::lane_owners(&on.pool).await;
                let (least, most) = (owned.iter().min().copied(), owned.iter().max().copied());
                let even = owned.len() == nodes.len() && most.zip(least).is_some_and(|(most, least)| most - least <= 1);
                (even && owned.iter().sum::<i64>() == 64).then_some(())
            })
            .await;
            assert!(joined.elapsed() < Duration::from_secs(10), "{:?}", joined.elapsed());
        }
        let published = producers.end().await;
        drained(&*on.store()).await;
        for node in nodes {
            node.end().await;
        }
        writer.shutdown().await.unwrap();
        let failed = D::failed_attempts(&on.pool).await;
        let model = Model::of(&log.read());
        assert_eq!((model.delivered(), model.overtaken), (published, Vec::new()));
        assert_eq!(model.again, failed, "what came again had failed");
    }
}
