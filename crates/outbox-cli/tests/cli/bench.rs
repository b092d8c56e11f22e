use std::collections::BTreeSet;
use std::time::Duration;

use outbox_testbed::{Server, TestDatabase, eventually};
use serde_json::Value;

use super::*;

/// Small enough for a test: it is about what comes out, not about how fast.
const SMALL: [&str; 9] = [
    "--json",
    "--events",
    "60",
    "--rounds",
    "1",
    "--done-rows",
    "100",
    "--batch",
    "20",
];

/// Runs a benchmark, which checks by itself that all events are done.
fn bench(arguments: &[&str]) -> Vec<Value> {
    let ended = outbox(&[&["bench"], arguments, &SMALL].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {ended:?}")))
        .collect()
}

/// Tables of a benchmark that are still there.
async fn left_behind(database: &TestDatabase) -> i64 {
    let pool = AnyPool::connect(database.url()).await.unwrap();
    let schema = "select count(*) from information_schema.tables where table_name like 'outbox_bench%'";
    let count = match &pool {
        AnyPool::Sqlite(pool) => {
            sqlx::query_scalar("select count(*) from sqlite_master where name like 'outbox_bench%'")
                .fetch_one(pool)
                .await
        }
        AnyPool::Postgres(pool) => sqlx::query_scalar(schema).fetch_one(pool).await,
        AnyPool::MySql(pool) => {
            let here = AssertSqlSafe(format!("{schema} and table_schema = database()"));
            sqlx::query_scalar(here).fetch_one(pool).await
        }
        other => panic!("{other:?}"),
    };
    pool.close().await;
    count.unwrap()
}

#[tokio::test]
async fn every_scenario_finds_something_and_leaves_nothing_behind() {
    for server in Server::ALL {
        let database = server.database("cli_bench").await;
        let markdown = std::env::temp_dir().join(format!("outbox-bench-test-{:016x}.md", rand::random::<u64>()));
        let file = markdown.to_str().unwrap();
        let findings = bench(&["all", "--database", database.url(), "--markdown", file]);
        let mut scenarios = BTreeSet::new();
        for finding in &findings {
            let scenario = finding["scenario"].as_str().unwrap();
            scenarios.insert(scenario);
            assert!(
                finding["variant"].is_string() && finding["database"].is_string(),
                "{finding}"
            );
            let measured: &[&str] = match scenario {
                "latency" => &["p50_us", "p99_us"],
                "drain" if !finding["variant"].as_str().unwrap().contains("beside") => {
                    &["framework_per_s", "limit_per_s", "ratio", "rss_mb"]
                }
                _ => &["framework_per_s", "limit_per_s", "ratio"],
            };
            for field in measured {
                assert!(finding[field].is_number(), "{server}: {field} in {finding}");
            }
        }
        for scenario in ["write", "hot", "drain", "latency", "grown", "purge", "nodes"] {
            assert!(scenarios.contains(scenario), "{server}: no {scenario} in {findings:?}");
        }
        assert_eq!(scenarios.contains("held"), server == Server::Postgres, "{findings:?}");
        let table = std::fs::read_to_string(&markdown).unwrap();
        assert_eq!(table.lines().count(), 2 + findings.len(), "{table}");
        std::fs::remove_file(&markdown).unwrap();
        assert_eq!(left_behind(&database).await, 0, "{server}");
    }
}

#[test]
fn benchmark_needs_nothing_installed() {
    let findings = bench(&["drain"]);
    assert_eq!(findings[0]["database"], "sqlite", "{findings:?}");
}

#[test]
fn benchmark_for_people_is_a_table() {
    let ended = outbox(&["bench", "purge", "--events", "40", "--rounds", "1"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.starts_with("SCENARIO  VARIANT "), "{ended:?}");
    assert!(ended.out.contains("\npurge     done events "), "{ended:?}");
    assert!(ended.err.contains("sqlite purge, done events: "), "{ended:?}");
}

#[tokio::test]
async fn interrupted_benchmark_leaves_nothing_behind() {
    let database = Server::Postgres.database("cli_bench_interrupted").await;
    let mut bench = command(&["bench", "drain", "--events", "50000000", "--database", database.url()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("its tables to be there", Duration::from_secs(30), async || {
        (left_behind(&database).await > 0).then_some(())
    })
    .await;
    let interrupt = Command::new("kill")
        .args(["-INT", &bench.id().to_string()])
        .status()
        .unwrap();
    assert!(interrupt.success());
    assert_eq!(bench.wait().unwrap().code(), Some(1));
    assert_eq!(left_behind(&database).await, 0);
}

#[test]
fn benchmark_that_makes_no_sense_is_refused() {
    let error = outbox(&["bench", "drain", "--database", "sqlite::memory:"]).failed(1);
    assert!(error.contains("cannot share a database in memory"), "{error}");
    outbox(&["bench", "drain", "--events", "0"]).failed(2);
    outbox(&["bench", "sideways"]).failed(2);
}
