//! A hundred thousand delivered rows cost nothing: each statement of the delivery goes by an index, and looks at no more
//! rows than it would in a small table.

use std::time::Duration;

use outbox::store::{Claim, Explain, Ownership, Settlement, Store, Verdict};
use outbox::{Event, Outbox};
use outbox_tests::{Database, On, SqlDatabase, script};

const STATEMENTS: [Explain; 13] = [
    Explain::ReadLanes,
    Explain::ReadInOrder,
    Explain::Claim,
    Explain::ReadLeased,
    Explain::Done,
    Explain::DoneByOneToken,
    Explain::Delete,
    Explain::DeleteByOneToken,
    Explain::Retry,
    Explain::Dead,
    Explain::Defer,
    Explain::Renew,
    Explain::Release,
];

async fn publish<D: Database>(on: &On<D>, count: usize) {
    let outbox = Outbox::writer_only(&on.pool).build().await.unwrap();
    let events = (0..count).map(|_| Event::json("OrderPlaced", "{}").unwrap());
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    outbox.publish_all(&mut tx, events.collect::<Vec<_>>()).await.unwrap();
    tx.commit().await.unwrap();
}

/// A hundred thousand delivered rows, from a query that counts to that number as `n`.
async fn deliver<D: SqlDatabase>(on: &On<D>, now: &str, id: &str, numbers: &str) {
    script::<D>(
        &on.pool,
        &format!(
            "insert into outbox_event (event_id, event_type, payload, status, done_at) \
             select {id}, 'Delivered', '{{}}', 1, {now} from {numbers}"
        ),
    )
    .await;
}

/// The pages that a plan of PostgreSQL has touched: the first line is that of the whole statement.
fn buffers(plan: &str) -> u64 {
    let line = plan
        .lines()
        .find(|line| line.trim_start().starts_with("Buffers: shared"))
        .unwrap_or_else(|| panic!("no buffers in\n{plan}"));
    line.split_whitespace()
        .filter_map(|word| word.strip_prefix("hit=").or_else(|| word.strip_prefix("read=")))
        .map(|count| count.parse::<u64>().unwrap())
        .sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivered_rows_cost_nothing_on_postgres() {
    rows_cost_nothing_on_postgres(1).await;
}

/// Neither does a backlog: what a batch costs does not depend on how many rows wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_rows_cost_nothing_on_postgres() {
    rows_cost_nothing_on_postgres(0).await;
}

async fn rows_cost_nothing_on_postgres(status: i16) {
    // The same is done to both, so that what the explained statements leave behind is the same.
    let (large, small) = (open_postgres().await, open_postgres().await);
    deliver(&large, "now()", "'done-' || n", "generate_series(1, 100000) as n").await;
    script::<sqlx::Postgres>(
        &large.pool,
        &format!("update outbox_event set status = {status} where event_type = 'Delivered' and status <> {status}"),
    )
    .await;
    script::<sqlx::Postgres>(&large.pool, "vacuum outbox_event").await;
    for on in [&large, &small] {
        publish(on, 200).await;
    }
    let stores = [large.store(), small.store()];
    for analyzed in [false, true] {
        if analyzed {
            script::<sqlx::Postgres>(&large.pool, "analyze").await;
            script::<sqlx::Postgres>(&small.pool, "analyze").await;
        }
        for statement in STATEMENTS {
            let plan = stores[0].explain(statement).await.unwrap();
            let when = format!("{statement:?}, analyzed: {analyzed}");
            assert!(!plan.contains("Seq Scan on outbox_event"), "{when}\n{plan}");
            assert!(plan.contains("Index"), "{when}\n{plan}");
            // A deeper index may cost a few pages per row, and no more; the whole table has thousands.
            let pages = buffers(&plan);
            let in_a_small_table = buffers(&stores[1].explain(statement).await.unwrap());
            assert!(
                pages <= in_a_small_table + 600,
                "{when}: {in_a_small_table} pages became {pages}\n{plan}"
            );
        }
    }
    let (heap, total): (i64, i64) =
        sqlx::query_as("select pg_relation_size('outbox_event') / 8192, pg_total_relation_size('outbox_event') / 8192")
            .fetch_one(&large.pool)
            .await
            .unwrap();
    assert!(
        heap > 1_200 && total > heap,
        "{heap} pages of rows, {total} in all: too few for the comparison to tell"
    );
}

/// Our connections keep their plans, and most were made while there was nothing in the table: with the statistics of that time,
/// and before anybody has analyzed it. One that reads all there is looks as good as any then, and stays when there are a million
/// rows. Found by `bench hot`: a settlement of twenty rows read every row that had been delivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_of_an_empty_table_are_those_of_a_large_one_on_postgres() {
    let on = On::<sqlx::Postgres>::open("explain").await;
    let store = on.store();
    for prepare in ["select 1", "analyze", "vacuum analyze outbox_event"] {
        script::<sqlx::Postgres>(&on.pool, prepare).await;
        for statement in STATEMENTS {
            let plan = store.explain(statement).await.unwrap();
            let lines: Vec<_> = plan.lines().map(str::trim).collect();
            let scans: Vec<_> = lines
                .windows(2)
                .filter(|pair| pair[0].contains("Scan ") && pair[0].contains(" on outbox_event"))
                .collect();
            let when = format!("{statement:?} after {prepare}");
            assert!(!scans.is_empty(), "{when}\n{plan}");
            for scan in scans {
                let some = scan[1].starts_with("Index Cond: ") || scan[1].starts_with("TID Cond: ");
                // The first of all, from the end.
                let one = scan[0].contains("Scan Backward using outbox_event_pkey");
                assert!(some || one, "{when}: {}\n{plan}", scan[0]);
            }
        }
        goes_by_waiting_rows(&*store, prepare).await;
    }
}

/// Statistics of a moment at which all rows waited: by them, the index of all rows is as good as that of those that wait, and is
/// taken if it is the smaller one. It holds a million delivered rows an hour later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_of_a_backlog_go_by_the_index_of_waiting_rows_on_postgres() {
    let on = open_postgres().await;
    deliver(&on, "now()", "'done-' || n", "generate_series(1, 20000) as n").await;
    script::<sqlx::Postgres>(&on.pool, "update outbox_event set status = 0, done_at = null").await;
    script::<sqlx::Postgres>(&on.pool, "vacuum (full, analyze) outbox_event").await;
    goes_by_waiting_rows(&*on.store(), "a backlog").await;
}

/// By the statistics of a drained queue all indexes of waiting rows are alike, and the newest is taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_of_a_drained_queue_are_those_of_a_backlog_on_postgres() {
    let on = open_postgres().await;
    deliver(&on, "now()", "'done-' || n", "generate_series(1, 20000) as n").await;
    script::<sqlx::Postgres>(
        &on.pool,
        "update outbox_event set status = 1, done_at = now() where status = 0",
    )
    .await;
    for prepare in [
        "vacuum (full, analyze) outbox_event",
        "reindex index concurrently outbox_event_pending",
        "reindex index concurrently outbox_event_pending_seq",
        "reindex index concurrently outbox_event_pkey",
    ] {
        script::<sqlx::Postgres>(&on.pool, prepare).await;
        goes_by_waiting_rows(&*on.store(), prepare).await;
    }
}

/// And in the right order: the other one would be read from its start.
async fn goes_by_waiting_rows(store: &dyn Store, when: &str) {
    for (statement, index) in [
        (Explain::Claim, "outbox_event_pending on"),
        (Explain::ReadLanes, "outbox_event_pending_seq on"),
        (Explain::ReadInOrder, "outbox_event_pending_seq on"),
        (Explain::DoneByOneToken, "outbox_event_pending_seq on"),
        (Explain::DeleteByOneToken, "outbox_event_pending_seq on"),
    ] {
        let plan = store.explain(statement).await.unwrap();
        assert!(plan.contains(index), "{statement:?} after {when}\n{plan}");
        assert!(!plan.contains("Sort"), "{statement:?} after {when}\n{plan}");
    }
}

/// The first rows are those which the settling statements are explained with.
async fn open_postgres() -> On<sqlx::Postgres> {
    let on = On::open("explain").await;
    publish(&on, 200).await;
    on
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivered_rows_cost_nothing_on_sqlite() {
    let on = On::<sqlx::Sqlite>::open("explain").await;
    let store = on.store();
    publish(&on, 200).await;
    let numbers = "(with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < 100000) \
                   select n from numbers)";
    deliver(&on, "unixepoch() * 1000000", "'done-' || n", numbers).await;
    publish(&on, 200).await;
    for analyzed in [false, true] {
        if analyzed {
            script::<sqlx::Sqlite>(&on.pool, "analyze").await;
        }
        for statement in STATEMENTS {
            let plan = store.explain(statement).await.unwrap();
            let of_events = |line: &&str, verb: &str| {
                let rest = line.trim().strip_prefix(verb);
                rest.is_some_and(|rest| rest.starts_with("t ") || rest.starts_with("outbox_event "))
            };
            let scans = plan.lines().filter(|line| of_events(line, "SCAN ")).count();
            assert_eq!(scans, 0, "{statement:?}, analyzed: {analyzed}\n{plan}");
            let searches = plan
                .lines()
                .filter(|line| of_events(line, "SEARCH "))
                .collect::<Vec<_>>();
            assert!(!searches.is_empty(), "{statement:?}\n{plan}");
            assert!(
                searches.iter().all(|line| line.contains(" USING ")),
                "{statement:?}\n{plan}"
            );
        }
        let plan = store.explain(Explain::Claim).await.unwrap();
        assert!(plan.contains("USING INDEX outbox_event_pending"), "{plan}");
        assert!(
            !plan.contains("TEMP B-TREE"),
            "the index has the order of the claim\n{plan}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivered_rows_cost_nothing_on_mariadb() {
    let on = On::<sqlx::MySql>::open("explain").await;
    let store = on.store();
    publish(&on, 200).await;
    deliver(&on, "utc_timestamp(6)", "concat('done-', seq)", "seq_1_to_100000").await;
    publish(&on, 200).await;
    for analyzed in [false, true] {
        if analyzed {
            script::<sqlx::MySql>(&on.pool, "analyze table outbox_event").await;
        }
        for statement in STATEMENTS {
            let plan = store.explain(statement).await.unwrap();
            let events: Vec<_> = plan
                .lines()
                .filter(|line| line.starts_with("table=t ") || line.starts_with("table=outbox_event "))
                .collect();
            assert!(!events.is_empty(), "{statement:?}\n{plan}");
            for line in events {
                assert!(
                    !line.contains("type=ALL") && !line.contains("type=index "),
                    "{statement:?}\n{plan}"
                );
                assert!(!line.contains("key= "), "{statement:?}\n{plan}");
                let rows = line.split("rows=").nth(1).and_then(|rest| rest.split(' ').next());
                let rows: u64 = rows.unwrap().parse().unwrap();
                assert!(rows <= 1_000, "{statement:?}, analyzed: {analyzed}\n{plan}");
            }
        }
    }
    rows_read_are_those_asked_for(&on, &*store).await;
}

/// What MariaDB has read in fact, by its own count for the table.
async fn rows_read_are_those_asked_for(on: &On<sqlx::MySql>, store: &dyn Store) {
    script::<sqlx::MySql>(&on.pool, "set global userstat = 1").await;
    let rows_read = async || -> i64 {
        sqlx::query_scalar(
            "select cast(coalesce(sum(rows_read), 0) as signed) from information_schema.table_statistics
             where table_schema = database() and table_name = 'outbox_event'",
        )
        .fetch_one(&on.pool)
        .await
        .unwrap()
    };
    let claim = Claim {
        owner: "node",
        lease: Duration::from_secs(600),
        limit: 100,
        skip_recent: Duration::ZERO,
        after: None,
    };
    let start = rows_read().await;
    let claimed = store.claim(&claim).await.unwrap();
    let claiming = rows_read().await - start;
    assert_eq!(claimed.len(), 100);
    assert!(
        (100..=500).contains(&claiming),
        "{claiming} rows were read to claim 100"
    );

    let settlements: Vec<_> = claimed
        .iter()
        .enumerate()
        .map(|(at, row)| {
            let verdict = match at % 5 {
                0 => Verdict::Done,
                1 => Verdict::DoneAndDeleted,
                2 => Verdict::Retry {
                    after: Duration::ZERO,
                    error: "failed".to_owned(),
                    done_by: Vec::new(),
                },
                3 => Verdict::Dead {
                    error: "failed".to_owned(),
                    done_by: Vec::new(),
                },
                _ => Verdict::Defer {
                    after: Duration::ZERO,
                    done_by: Vec::new(),
                },
            };
            Settlement::new(row.lease, verdict)
        })
        .collect();
    let start = rows_read().await;
    assert_eq!(
        store
            .settle("node", Ownership::Rows, &settlements)
            .await
            .unwrap()
            .applied,
        100
    );
    let settling = rows_read().await - start;
    assert!(
        (1..=1_000).contains(&settling),
        "{settling} rows were read to settle 100"
    );
}

/// The text is there for whoever wants to look.
#[tokio::test]
async fn memory_explains_itself() {
    let store = On::<outbox::testing::Memory>::open("explain").await.store();
    assert!(store.explain(Explain::Claim).await.unwrap().contains("in memory"));
}
