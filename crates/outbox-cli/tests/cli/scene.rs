//! A table with events of every kind in it.

use std::time::Duration;

use outbox::store::{Claim, Driver, Ownership, Settlement, Store, Verdict};
use outbox::{Event, Outbox, TableName};
use outbox_testbed::{Server, TestDatabase};
use sqlx::Pool;

use super::*;

/// Three dead events, two delivered ones, one that is being delivered, one that is due later.
pub(crate) struct Scene {
    pub(crate) database: TestDatabase,
}

impl Scene {
    pub(crate) async fn set(server: Server, test: &str) -> Self {
        let database = server.database(test).await;
        let pool = AnyPool::connect(database.url()).await.unwrap();
        pool.migrate_up(&TableName::default()).await.unwrap();
        match &pool {
            AnyPool::Sqlite(pool) => publish(pool).await,
            AnyPool::Postgres(pool) => publish(pool).await,
            AnyPool::MySql(pool) => publish(pool).await,
            other => panic!("{other:?}"),
        }
        deliver(&*pool.store(&TableName::default())).await;
        pool.close().await;
        Self { database }
    }

    /// Runs the command on it.
    pub(crate) fn outbox(&self, arguments: &[&str]) -> Ended {
        let mut all = arguments.to_vec();
        all.extend(["--database", self.database.url()]);
        outbox(&all)
    }

    /// How many events of a status there are.
    #[track_caller]
    pub(crate) fn count(&self, status: &str) -> usize {
        let listed = self.outbox(&["events", "list", "--status", status, "--json"]).json();
        listed.as_array().unwrap().len()
    }
}

fn events() -> Vec<Event> {
    let broken = |id: &str, key: &str| Event::builder("Broken").id(id).aggregate("Order", key);
    let simple = |event_type: &'static str, id: &str| Event::builder(event_type).id(id).json("{}");
    [
        broken("dead-1", "1")
            .tenant("acme")
            .header("source", "web")
            .json(r#"{"total": 1.50}"#),
        broken("dead-2", "2").json("{}"),
        broken("dead-3", "3").bytes(vec![0, 1, 254, 255]),
        simple("Fine", "done-1"),
        simple("Fine", "done-2"),
        simple("Busy", "busy"),
        simple("Waiting", "later").deliver_after(Duration::from_secs(3600)),
    ]
    .into_iter()
    .map(|event| event.build().unwrap())
    .collect()
}

async fn publish<D: Driver>(pool: &Pool<D>) {
    let outbox = Outbox::writer_only(pool).build().await.unwrap();
    let mut tx = outbox.begin(pool).await.unwrap();
    outbox.publish_all(&mut tx, events()).await.unwrap();
    tx.commit().await.unwrap();
    outbox.shutdown().await.unwrap();
}

async fn deliver(store: &dyn Store) {
    let claim = Claim {
        owner: "node-a",
        lease: Duration::from_secs(300),
        limit: 100,
        skip_recent: Duration::ZERO,
        after: None,
    };
    let claimed = store.claim(&claim).await.unwrap();
    assert_eq!(claimed.len(), 6);
    let settlements: Vec<Settlement> = claimed
        .iter()
        .filter_map(|row| {
            let dead = |error: &str| Verdict::Dead {
                error: error.to_owned(),
                done_by: vec!["mail".to_owned()],
            };
            let verdict = match row.event_id() {
                "dead-1" | "dead-2" => dead("the broker answered with a timeout"),
                "dead-3" => dead("no such customer\u{1b}[2J"),
                "busy" => return None,
                _ => Verdict::Done,
            };
            Some(Settlement::new(row.lease, verdict))
        })
        .collect();
    assert_eq!(
        store
            .settle("node-a", Ownership::Rows, &settlements)
            .await
            .unwrap()
            .applied,
        5
    );
}
