use outbox_testbed::{Server, TestDatabase};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::*;

/// Demos load the machine: one at a time, or one that is killed half way has hardly begun.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Runs the demo, which must succeed, and checks its sums.
async fn demo(arguments: &[&str]) -> Value {
    let _alone = ALONE.lock().await;
    let ended = outbox(&[&["demo", "--json"], arguments].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report: Value = serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended:?}"));
    let number = |name: &str| report[name].as_u64().unwrap_or_else(|| panic!("{name} in {report}"));
    assert_eq!(number("committed"), number("delivered") + number("dead"), "{report}");
    assert_eq!((number("lost"), number("phantom")), (0, 0), "{report}");
    assert_eq!(number("dead"), 1, "the poison order: {report}");
    for some in ["committed", "rolled_back", "delivered", "retries", "p50_us", "p99_us"] {
        assert!(number(some) > 0, "{some}: {report}");
    }
    assert!(report["events_per_s"].as_f64().unwrap() > 0.0, "{report}");
    report
}

/// On a database of its own, which it leaves as it was.
async fn demo_on(database: &TestDatabase, arguments: &[&str]) -> Value {
    let report = demo(&[&["--database", database.url()], arguments].concat()).await;
    for table in ["demo_event", "demo_event_migration", "demo_order"] {
        let pool = AnyPool::connect(database.url()).await.unwrap();
        let sql = AssertSqlSafe(format!("select 1 from {table}"));
        let gone = match &pool {
            AnyPool::Sqlite(pool) => sqlx::query(sql).execute(pool).await.is_err(),
            AnyPool::Postgres(pool) => sqlx::query(sql).execute(pool).await.is_err(),
            AnyPool::MySql(pool) => sqlx::query(sql).execute(pool).await.is_err(),
            other => panic!("{other:?}"),
        };
        pool.close().await;
        assert!(gone, "{table} is left behind");
    }
    report
}

#[tokio::test]
async fn demo_holds_by_itself() {
    let report = demo(&["--seconds", "2"]).await;
    assert_eq!(
        (
            &report["database"],
            &report["nodes"],
            &report["producers"],
            &report["seconds"]
        ),
        (&json!("sqlite"), &json!(1), &json!(4), &json!(2))
    );
    assert_eq!(
        (&report["duplicates"], &report["killed"], &report["failed_transactions"]),
        (&json!(0), &json!(0), &json!(0))
    );
}

#[tokio::test]
async fn demo_holds_on_a_database_of_ones_own() {
    for server in Server::ALL {
        let database = server.database("cli_demo").await;
        let report = demo_on(&database, &["--seconds", "2"]).await;
        assert_eq!(report["duplicates"], json!(0), "{server}: {report}");
    }
}

#[tokio::test]
async fn demo_holds_on_several_nodes_without_a_duplicate() {
    for server in Server::ALL {
        let database = server.database("cli_demo_nodes").await;
        let report = demo_on(&database, &["--seconds", "2", "--nodes", "2"]).await;
        assert_eq!(
            (&report["nodes"], &report["duplicates"]),
            (&json!(2), &json!(0)),
            "{server}: {report}"
        );
    }
}

#[tokio::test]
async fn demo_survives_the_death_of_a_node() {
    for server in [Server::Postgres, Server::MariaDb] {
        let database = server.database("cli_demo_kill").await;
        let report = demo_on(&database, &["--seconds", "4", "--nodes", "3", "--kill-one"]).await;
        assert_eq!(
            (&report["nodes"], &report["killed"]),
            (&json!(3), &json!(1)),
            "{report}"
        );
    }
}

#[tokio::test]
async fn demo_keeps_the_order_of_every_customer() {
    for server in Server::ALL {
        let database = server.database("cli_demo_ordered").await;
        let report = demo_on(
            &database,
            &["--seconds", "3", "--ordered", "--nodes", "3", "--kill-one"],
        )
        .await;
        assert_eq!(
            (&report["ordered"], &report["out_of_order"], &report["killed"]),
            (&json!(true), &json!(0), &json!(1)),
            "{server}: {report}"
        );
    }
}

#[tokio::test]
async fn demo_for_people_says_what_it_found() {
    let _alone = ALONE.lock().await;
    let ended = outbox(&["demo", "--seconds", "1", "--producers", "2"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for part in [
        "sqlite, 1 node, 2 producers for 1 s\n",
        "\nlost                 0  ",
        "\ncommit to listener: p50 ",
        "Every committed event was delivered or is dead, and no rolled-back one was delivered.\n",
    ] {
        assert!(ended.out.contains(part), "{part:?} is not in {ended:?}");
    }
    assert!(!ended.err.contains("panicked"), "{ended:?}");
}

#[tokio::test]
async fn kept_demo_can_be_looked_at_and_does_not_disturb_the_next() {
    let _alone = ALONE.lock().await;
    let database = Server::Postgres.database("cli_demo_keep").await;
    let on = ["--database", database.url()];
    let short = ["demo", "--seconds", "1", "--keep"];
    for table in ["demo_event", "demo_event_2"] {
        let ended = outbox(&[&short[..], &on].concat());
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(
            ended.err.contains(&format!("kept: the tables {table} and demo_order")),
            "{ended:?}"
        );
        let status = outbox(&[&["status", "--json", "--table", table], &on[..]].concat()).json();
        assert_eq!((&status["pending"], &status["dead"]), (&json!(0), &json!(1)));
        let (_, files) = ended.err.trim_end().split_once("the files in ").unwrap();
        assert!(std::path::Path::new(files).join("node-0.log").exists(), "{ended:?}");
        std::fs::remove_dir_all(files).unwrap();
    }
}

#[test]
fn demo_that_makes_no_sense_is_refused() {
    let error = outbox(&["demo", "--nodes", "1", "--kill-one"]).failed(1);
    assert!(error.contains("--kill-one needs at least two nodes"), "{error}");
    let error = outbox(&["demo", "--database", "sqlite::memory:"]).failed(1);
    assert!(error.contains("cannot share a database in memory"), "{error}");
    outbox(&["demo", "--seconds", "0"]).failed(2);
}
