use std::time::Duration;

use outbox::store::{LaneRead, LaneSet, Ownership, Settlement, Verdict, Wanted};
use outbox::{Event, Outbox, TableName};
use outbox_testbed::{Server, TestDatabase};
use serde_json::json;

use super::*;

/// One key that is retrying, one that is parked, and one that is fine.
async fn scene(server: Server) -> TestDatabase {
    let database = server.database("cli_keys").await;
    let pool = AnyPool::connect(database.url()).await.unwrap();
    let table = TableName::default();
    pool.migrate_up(&table).await.unwrap();
    let keyed = |id: &str, key: &str| Event::builder("Moved").id(id).aggregate("Order", key).json("{}");
    let events = [keyed("e1", "1"), keyed("e2", "2"), keyed("e3", "3"), keyed("e4", "2")];
    let events = events.map(|event| event.build().unwrap());
    match &pool {
        AnyPool::Sqlite(pool) => publish(pool, &events).await,
        AnyPool::Postgres(pool) => publish(pool, &events).await,
        AnyPool::MySql(pool) => publish(pool, &events).await,
        other => panic!("{other:?}"),
    }
    let store = pool.store(&table);
    let minute = Duration::from_secs(60);
    store.share_lanes("node", true, minute, true).await.unwrap();
    let read = LaneRead {
        lanes: LaneSet::ALL,
        after: 0,
        limit: 2,
        wanted: Wanted::InOrder {
            since: None,
            up_to: None,
            keys: None,
            without: &[],
        },
    };
    let rows = store.read_lanes(&read).await.unwrap().rows;
    let error = "the broker is away".to_owned();
    let verdicts = [
        Verdict::Retry {
            after: minute * 60,
            error: error.clone(),
            done_by: Vec::new(),
        },
        Verdict::DeadAndParked {
            error,
            done_by: Vec::new(),
        },
    ];
    let settlements: Vec<Settlement> = rows
        .iter()
        .zip(verdicts)
        .map(|(row, verdict)| Settlement::new(row.row.lease, verdict))
        .collect();
    let settled = store.settle("node", Ownership::Keys, &settlements).await.unwrap();
    assert_eq!(settled.applied, 2);
    pool.close().await;
    database
}

async fn publish<D: outbox::store::Driver>(pool: &sqlx::Pool<D>, events: &[Event]) {
    let outbox = Outbox::writer_only(pool).build().await.unwrap();
    let mut tx = outbox.begin(pool).await.unwrap();
    outbox.publish_all(&mut tx, events).await.unwrap();
    tx.commit().await.unwrap();
    outbox.shutdown().await.unwrap();
}

#[tokio::test]
async fn blocked_keys_are_listed_and_unblocked() {
    for server in Server::ALL {
        let database = scene(server).await;
        let run = |arguments: &[&str]| outbox(&[arguments, &["--database", database.url()]].concat());
        let listed = run(&["keys", "list", "--json"]).json();
        assert_eq!(
            (&listed[0]["aggregate_id"], &listed[0]["state"], &listed[0]["event_id"]),
            (&json!("1"), &json!("retrying"), &json!("e1")),
            "{server}: {listed}"
        );
        assert_eq!(
            (&listed[1]["aggregate_id"], &listed[1]["state"], &listed[1]["until"]),
            (&json!("2"), &json!("parked"), &json!(null))
        );
        let text = run(&["keys", "list"]).ok();
        assert!(text.contains("Order 2") && text.contains("you unblock it") && text.contains("the broker is away"));
        let parked = run(&["keys", "list", "--parked", "--json"]).json();
        assert_eq!(parked.as_array().unwrap().len(), 1);

        assert_eq!(run(&["keys", "unblock", "Order", "1"]).ok(), "Order 1 goes on\n");
        assert_eq!(
            run(&["keys", "unblock", "Order", "1"]).failed(1),
            "error: the key Order 1 is not blocked: see `outbox keys list`\n"
        );
        assert_eq!(
            run(&["keys", "unblock", "Order", "2", "--json"]).json()["unblocked"],
            json!(true)
        );
        assert_eq!(run(&["keys", "list"]).ok(), "no key is blocked\n");
    }
}

#[tokio::test]
async fn replaying_the_dead_event_unblocks_its_key() {
    for server in Server::ALL {
        let database = scene(server).await;
        let run = |arguments: &[&str]| outbox(&[arguments, &["--database", database.url()]].concat());
        run(&["dead", "replay", "e2"]).ok();
        let parked = run(&["keys", "list", "--parked", "--json"]).json();
        assert_eq!(parked, json!([]), "{server}");
    }
}
