//! What only MySQL and MariaDB do: they end transactions by themselves, and run what comes next without one.

use outbox::store::Filter;
use outbox::{Error, Event, Outbox, Transaction};
use outbox_tests::On;
use sqlx::pool::PoolOptions;
use sqlx::{Executor, MySql, MySqlConnection, MySqlPool};

async fn open(name: &str) -> (On<MySql>, Outbox<MySql>) {
    let on = On::<MySql>::open(name).await;
    let outbox = Outbox::writer_only(&on.pool).build().await.unwrap();
    let script = "create table seats (number int primary key, taken int not null);
                  insert into seats select seq, 0 from seq_1_to_20";
    on.pool.execute(script).await.unwrap();
    (on, outbox)
}

/// Connections that a test may leave behind in any state.
async fn own_pool(on: &On<MySql>, connections: u32) -> MySqlPool {
    PoolOptions::new()
        .max_connections(connections)
        .connect_with((*on.pool.connect_options()).clone())
        .await
        .unwrap()
}

fn event() -> Event {
    Event::json("SeatTaken", "{}").unwrap()
}

async fn take(connection: &mut MySqlConnection, first: i32, last: i32) -> Result<(), sqlx::Error> {
    sqlx::query("update seats set taken = taken + 1 where number between ? and ?")
        .bind(first)
        .bind(last)
        .execute(connection)
        .await
        .map(drop)
}

/// Runs into a deadlock, and does not mind: the transaction is gone, and its connection goes on without one.
async fn run_into_a_deadlock(pool: &MySqlPool, tx: &mut Transaction<MySql>) {
    let mut other = pool.begin().await.unwrap();
    // The one that has written less is the victim.
    take(&mut other, 2, 20).await.unwrap();
    take(tx, 1, 1).await.unwrap();
    let (first, second) = tokio::join!(take(&mut other, 1, 1), take(tx, 2, 2));
    first.unwrap();
    let refused = second.unwrap_err();
    let code = refused
        .as_database_error()
        .and_then(|error| error.code().map(String::from));
    assert_eq!(code.as_deref(), Some("40001"), "{refused}");
    other.rollback().await.unwrap();
}

async fn count(outbox: &Outbox<MySql>) -> u64 {
    outbox.store().count(&Filter::all(), 1_000).await.unwrap()
}

fn assert_unknown(outcome: Result<(), Error>) {
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::CommitOutcomeUnknown { .. }), "{error}");
    let message = error.to_string();
    assert!(
        message.starts_with("the outcome of the commit is unknown: read your data"),
        "{message}"
    );
    assert!(
        message.contains("the transaction was ended before its commit"),
        "{message}"
    );
}

/// What is published after a deadlock that nobody minded is in the table, without what was done before it: the caller is
/// told to look.
#[tokio::test]
async fn commit_after_an_ignored_deadlock_is_not_taken_for_one() {
    // Of an outbox that knows what the server can tell, and of one that does not yet.
    for before in [0, 1] {
        let (on, outbox) = open("deadlock_before").await;
        for _ in 0..before {
            let mut tx = outbox.begin(&on.pool).await.unwrap();
            outbox.publish(&mut tx, event()).await.unwrap();
            tx.commit().await.unwrap();
        }
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        run_into_a_deadlock(&on.pool, &mut tx).await;
        outbox.publish(&mut tx, event()).await.unwrap();
        assert_unknown(tx.commit().await);
        assert_eq!(count(&outbox).await, before + 1);
    }
}

/// An event that the deadlock has undone is not made good by another one that comes after it.
#[tokio::test]
async fn event_after_a_deadlock_does_not_speak_for_one_before_it() {
    let (on, outbox) = open("deadlock_between").await;
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    outbox.publish(&mut tx, event()).await.unwrap();
    run_into_a_deadlock(&on.pool, &mut tx).await;
    outbox.publish(&mut tx, event()).await.unwrap();
    assert_unknown(tx.commit().await);
    assert_eq!(count(&outbox).await, 1);
}

/// Not even where a session is always inside of some transaction, or the code begins another one.
#[tokio::test]
async fn another_transaction_does_not_speak_for_the_one_before_it() {
    for (name, next) in [
        ("deadlock_then_implicit", "set autocommit = 0"),
        ("deadlock_then_another", "start transaction"),
    ] {
        let (on, outbox) = open(name).await;
        let pool = own_pool(&on, 1).await;
        let mut tx = outbox.begin(&pool).await.unwrap();
        outbox.publish(&mut tx, event()).await.unwrap();
        run_into_a_deadlock(&on.pool, &mut tx).await;
        tx.execute(next).await.unwrap();
        outbox.publish(&mut tx, event()).await.unwrap();
        assert_unknown(tx.commit().await);
        pool.close().await;
    }
}

/// Statements between events and after them, a session without autocommit, a savepoint, events of two outboxes: all of that is
/// one transaction, and is told to be.
#[tokio::test]
async fn transaction_that_stands_is_committed_whatever_was_run_in_it() {
    let (on, outbox) = open("stands").await;
    let other = outbox::TableName::new("other_event").unwrap();
    outbox::migrate::up(&on.pool, &other).await.unwrap();
    let other = Outbox::writer_only(&on.pool)
        .table("other_event")
        .build()
        .await
        .unwrap();
    for setting in ["set autocommit = 1", "set autocommit = 0"] {
        let pool = own_pool(&on, 1).await;
        let mut tx = outbox.begin(&pool).await.unwrap();
        tx.execute(setting).await.unwrap();
        outbox.publish(&mut tx, event()).await.unwrap();
        take(&mut tx, 3, 3).await.unwrap();
        other.publish(&mut tx, event()).await.unwrap();
        let mut savepoint = tx.savepoint().await.unwrap();
        outbox.publish_all(&mut savepoint, [event(), event()]).await.unwrap();
        savepoint.release().await.unwrap();
        take(&mut tx, 4, 4).await.unwrap();
        tx.commit().await.unwrap();
        pool.close().await;
    }
    assert_eq!((count(&outbox).await, count(&other).await), (6, 2));
    let taken: i64 = sqlx::query_scalar("select cast(sum(taken) as signed) from seats")
        .fetch_one(&on.pool)
        .await
        .unwrap();
    assert_eq!(taken, 4);
}

/// DDL commits, whatever the code believes.
#[tokio::test]
async fn ddl_in_a_transaction_is_noticed() {
    let (on, outbox) = open("ddl").await;
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    tx.execute("create table surprise (a int)").await.unwrap();
    outbox.publish(&mut tx, event()).await.unwrap();
    assert_unknown(tx.commit().await);
}

async fn counter(connection: &mut MySqlConnection, name: &str) -> u64 {
    let sql = "select cast(variable_value as unsigned) from information_schema.session_status where variable_name = ?";
    sqlx::query_scalar(sql).bind(name).fetch_one(connection).await.unwrap()
}

/// MariaDB tells with the insert that the transaction stands: the commit need not ask, and nothing is left to be rolled back.
#[tokio::test]
async fn publishing_last_costs_no_message_more_than_by_hand() {
    let (on, outbox) = open("messages").await;
    let pool = own_pool(&on, 1).await;
    for round in 1..=20 {
        let mut tx = outbox.begin(&pool).await.unwrap();
        take(&mut tx, 1, 1).await.unwrap();
        outbox.publish(&mut tx, event()).await.unwrap();
        outbox.publish(&mut tx, event()).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(count(&outbox).await, 2 * round);
    }
    let mut connection = pool.acquire().await.unwrap();
    assert_eq!(counter(&mut connection, "Com_commit").await, 20);
    assert_eq!(counter(&mut connection, "Com_savepoint").await, 0);
    assert_eq!(counter(&mut connection, "Com_rollback").await, 0);
}
