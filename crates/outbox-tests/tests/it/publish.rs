//! Three forms of publishing, each with every fate a transaction can have: the row is there, or it is not.

use std::task::Poll;

use outbox::store::{Filter, Page};
use outbox::{Error, Event, EventId, Outbox, Receipt, TxHandle};
use outbox_tests::{Database, On, SqlDatabase, script};
use tokio::task::JoinHandle;

macro_rules! matrix {
    ($($name:ident: $database:ty),*) => {$(
        crate::cases! { $name, $database:
            wrapper_committed_is_there
            wrapper_rolled_back_is_not_there
            wrapper_dropped_is_not_there
            wrapper_savepoint_released_is_there
            wrapper_savepoint_rolled_back_is_not_there
            wrapper_savepoint_dropped_is_not_there
            wrapper_savepoint_released_in_a_rolled_back_transaction_is_not_there
            wrapper_nested_savepoints_each_have_their_own_fate
            receipt_committed_is_there
            receipt_rolled_back_is_not_there
            receipt_dropped_is_not_there
            receipt_savepoint_released_is_there
            receipt_savepoint_rolled_back_is_not_there
            receipt_never_told_is_there_all_the_same
            closure_that_succeeds_is_there
            closure_that_fails_is_not_there
            closure_savepoint_released_is_there
            closure_savepoint_rolled_back_is_not_there
            closure_runs_in_a_spawned_task
            savepoint_runs_in_a_spawned_task
            connection_inside_a_transaction_is_one
            batch_of_many_inserts_keeps_its_order
            empty_batch_writes_nothing
            dropped_commit_is_there_or_not
        }
    )*};
}

matrix!(sqlite: sqlx::Sqlite, postgres: sqlx::Postgres, mariadb: sqlx::MySql, memory: outbox::testing::Memory);

mod dropped_anywhere {
    use super::dropped_batch_shares_the_fate_of_its_transaction;

    crate::cases!(sqlite, sqlx::Sqlite: dropped_batch_shares_the_fate_of_its_transaction);
    crate::cases!(postgres, sqlx::Postgres: dropped_batch_shares_the_fate_of_its_transaction);
    // MySQL's driver counts on the answer to a statement from before it has sent it: dropped in between, it waits for ever.
}

mod with_business_rows {
    use super::event_and_business_row_share_their_fate;

    crate::cases!(sqlite, sqlx::Sqlite: event_and_business_row_share_their_fate);
    crate::cases!(postgres, sqlx::Postgres: event_and_business_row_share_their_fate);
    crate::cases!(mariadb, sqlx::MySql: event_and_business_row_share_their_fate);
}

struct Fixture<D: Database> {
    on: On<D>,
    outbox: Outbox<D>,
    event: Event,
}

async fn fixture<D: Database>(test: &str) -> Fixture<D> {
    let on = On::<D>::open(test).await;
    let outbox = Outbox::writer_only(&on.pool).build().await.unwrap();
    Fixture {
        on,
        outbox,
        event: event(),
    }
}

fn event() -> Event {
    Event::json("OrderPlaced", r#"{"total": 42}"#).unwrap()
}

impl<D: Database> Fixture<D> {
    async fn is_there(&self, id: &EventId) -> bool {
        self.outbox.store().fetch(id).await.unwrap().is_some()
    }

    async fn assert_there(&self) {
        assert!(self.is_there(self.event.id()).await);
        assert_eq!(self.outbox.store().count(&Filter::all(), 10).await.unwrap(), 1);
    }

    async fn assert_not_there(&self) {
        assert_eq!(self.outbox.store().count(&Filter::all(), 10).await.unwrap(), 0);
    }
}

// The wrapper

async fn wrapper_committed_is_there<D: Database>() {
    let f = fixture::<D>("wrapper_committed").await;
    let mut tx = f.outbox.begin(&f.on.pool).await.unwrap();
    let published = f.outbox.publish(&mut tx, &f.event).await.unwrap();
    assert_eq!(published.ids(), [f.event.id().clone()]);
    tx.commit().await.unwrap();
    f.assert_there().await;
}

async fn wrapper_rolled_back_is_not_there<D: Database>() {
    let f = fixture::<D>("wrapper_rolled_back").await;
    let mut tx = f.outbox.begin(&f.on.pool).await.unwrap();
    f.outbox.publish(&mut tx, &f.event).await.unwrap();
    tx.rollback().await.unwrap();
    f.assert_not_there().await;
}

async fn wrapper_dropped_is_not_there<D: Database>() {
    let f = fixture::<D>("wrapper_dropped").await;
    let mut tx = f.outbox.begin(&f.on.pool).await.unwrap();
    f.outbox.publish(&mut tx, &f.event).await.unwrap();
    drop(tx);
    f.assert_not_there().await;
}

async fn wrapper_savepoint_released_is_there<D: Database>() {
    let f = fixture::<D>("wrapper_savepoint_released").await;
    let mut tx = f.outbox.begin(&f.on.pool).await.unwrap();
    let mut savepoint = tx.savepoint().await.unwrap();
    f.outbox.publish(&mut savepoint, &f.event).await.unwrap();
    savepoint.release().await.unwrap();
    f.assert_not_there().await;
    tx.commit().await.unwrap();
    f.assert_there().await;
}

async fn wrapper_savepoint_rolled_back_is_not_there<D: Database>() {
    let f = fixture::<D>("wrapper_savepoint_rolled_back").await;
    let mut tx = f.outbox.begin(&f.on.pool).await.unwrap();
    let mut savepoint = tx.savepoint().await.unwrap();
    f.outbox.publish(&mut savepoint, &f.event).await.unwrap();
    savepoint.rollback().await.unwrap();
    tx.commit().await.unwrap();
    f.assert_not_there().await;
}

async fn wrapper_savepoint_dropped_is_not_there<D: Database>() {
    let f = fixture::<D>("wrapper_savepoint_dropped").await;
    let mut tx = f.outbox.begin(&f.on.pool).await.unwrap();
    let mut savepoint = tx.savepoint().await.unwrap();
    f.outbox.publish(&mut savepoint, &f.event).await.unwrap();
    drop(savepoint);
    tx.commit().await.unwrap();
    f.assert_not_there().await;
}

async fn wrapper_savepoint_released_in_a_rolled_back_transaction_is_not_there<D: Database>() {
    let f = fixture::<D>("wrapper_savepoint_in_rollback").await;
    let mut tx = f.outbox.begin(&f.on.pool).await.unwrap();
    let mut savepoint = tx.savepoint().await.unwrap();
    f.outbox.publish(&mut savepoint, &f.event).await.unwrap();
    savepoint.release().await.unwrap();
    tx.rollback().await.unwrap();
    f.assert_not_there().await;
}

async fn wrapper_nested_savepoints_each_have_their_own_fate<D: Database>() {
    let f = fixture::<D>("wrapper_nested_savepoints").await;
    let (outer_event, inner_event, second_event) = (event(), event(), event());
    let mut tx = f.outbox.begin(&f.on.pool).await.unwrap();
    f.outbox.publish(&mut tx, &f.event).await.unwrap();
    let mut outer = tx.savepoint().await.unwrap();
    f.outbox.publish(&mut outer, &outer_event).await.unwrap();
    let mut inner = outer.savepoint().await.unwrap();
    f.outbox.publish(&mut inner, &inner_event).await.unwrap();
    inner.rollback().await.unwrap();
    let mut second = outer.savepoint().await.unwrap();
    f.outbox.publish(&mut second, &second_event).await.unwrap();
    second.release().await.unwrap();
    outer.release().await.unwrap();
    tx.commit().await.unwrap();
    for (event, expected) in [
        (&f.event, true),
        (&outer_event, true),
        (&inner_event, false),
        (&second_event, true),
    ] {
        assert_eq!(f.is_there(event.id()).await, expected);
    }
}

// The receipt: the transaction is the user's own

async fn receipt_committed_is_there<D: Database>()
where
    D::Transaction: TxHandle<D, Receipt = Receipt>,
{
    let f = fixture::<D>("receipt_committed").await;
    let mut tx = f.on.begin().await;
    let receipt = f.outbox.publish(&mut tx, &f.event).await.unwrap();
    assert_eq!(receipt.ids(), [f.event.id().clone()]);
    D::commit(tx).await.unwrap();
    receipt.committed();
    f.assert_there().await;
}

async fn receipt_rolled_back_is_not_there<D: Database>()
where
    D::Transaction: TxHandle<D, Receipt = Receipt>,
{
    let f = fixture::<D>("receipt_rolled_back").await;
    let mut tx = f.on.begin().await;
    let receipt = f.outbox.publish(&mut tx, &f.event).await.unwrap();
    D::rollback(tx).await.unwrap();
    receipt.rolled_back();
    f.assert_not_there().await;
}

async fn receipt_dropped_is_not_there<D: Database>()
where
    D::Transaction: TxHandle<D, Receipt = Receipt>,
{
    let f = fixture::<D>("receipt_dropped").await;
    let mut tx = f.on.begin().await;
    let receipt = f.outbox.publish(&mut tx, &f.event).await.unwrap();
    drop(tx);
    drop(receipt);
    f.assert_not_there().await;
}

async fn receipt_savepoint_released_is_there<D: Database>()
where
    D::Transaction: TxHandle<D, Receipt = Receipt>,
{
    let f = fixture::<D>("receipt_savepoint_released").await;
    let mut tx = f.on.begin().await;
    D::set_savepoint(&mut tx).await.unwrap();
    let receipt = f.outbox.publish(&mut tx, &f.event).await.unwrap();
    D::release_savepoint(&mut tx).await.unwrap();
    D::commit(tx).await.unwrap();
    receipt.committed();
    f.assert_there().await;
}

async fn receipt_savepoint_rolled_back_is_not_there<D: Database>()
where
    D::Transaction: TxHandle<D, Receipt = Receipt>,
{
    let f = fixture::<D>("receipt_savepoint_rolled_back").await;
    let mut tx = f.on.begin().await;
    D::set_savepoint(&mut tx).await.unwrap();
    let receipt = f.outbox.publish(&mut tx, &f.event).await.unwrap();
    D::rollback_savepoint(&mut tx).await.unwrap();
    D::commit(tx).await.unwrap();
    // Said too much: the caller forgot the savepoint. Nothing comes of it.
    receipt.committed();
    f.assert_not_there().await;
}

async fn receipt_never_told_is_there_all_the_same<D: Database>()
where
    D::Transaction: TxHandle<D, Receipt = Receipt>,
{
    let f = fixture::<D>("receipt_never_told").await;
    let mut tx = f.on.begin().await;
    let receipt = f.outbox.publish(&mut tx, &f.event).await.unwrap();
    drop(receipt);
    D::commit(tx).await.unwrap();
    f.assert_there().await;
}

// The closure

async fn closure_that_succeeds_is_there<D: Database>() {
    let f = fixture::<D>("closure_succeeds").await;
    let answer: Result<_, Error> = f
        .outbox
        .transaction(&f.on.pool, async |tx| {
            f.outbox.publish(tx, &f.event).await?;
            Ok(42)
        })
        .await;
    assert_eq!(answer.unwrap(), 42);
    f.assert_there().await;
}

/// An error of the business, which is not one of ours.
#[derive(Debug)]
enum Failed {
    Business,
    Outbox,
}

impl From<Error> for Failed {
    fn from(_: Error) -> Self {
        Self::Outbox
    }
}

async fn closure_that_fails_is_not_there<D: Database>() {
    let f = fixture::<D>("closure_fails").await;
    let answer: Result<(), Failed> = f
        .outbox
        .transaction(&f.on.pool, async |tx| {
            f.outbox.publish(tx, &f.event).await?;
            Err(Failed::Business)
        })
        .await;
    assert!(matches!(answer, Err(Failed::Business)));
    f.assert_not_there().await;
}

async fn closure_savepoint_released_is_there<D: Database>() {
    let f = fixture::<D>("closure_savepoint_released").await;
    let answer: Result<(), Error> = f
        .outbox
        .transaction(&f.on.pool, async |tx| {
            let mut savepoint = tx.savepoint().await?;
            f.outbox.publish(&mut savepoint, &f.event).await?;
            savepoint.release().await
        })
        .await;
    answer.unwrap();
    f.assert_there().await;
}

async fn closure_savepoint_rolled_back_is_not_there<D: Database>() {
    let f = fixture::<D>("closure_savepoint_rolled_back").await;
    let answer: Result<(), Error> = f
        .outbox
        .transaction(&f.on.pool, async |tx| {
            let mut savepoint = tx.savepoint().await?;
            f.outbox.publish(&mut savepoint, &f.event).await?;
            savepoint.rollback().await
        })
        .await;
    answer.unwrap();
    f.assert_not_there().await;
}

/// Of each database's own types: what a future holds decides whether it can be spawned.
trait SpawnClosure: Database {
    fn spawn_closure(outbox: Outbox<Self>, pool: Self::Pool, event: Event) -> JoinHandle<Result<(), Error>>;
    fn spawn_savepoints(outbox: Outbox<Self>, pool: Self::Pool, event: Event) -> JoinHandle<Result<(), Error>>;
}

macro_rules! spawn_closure {
    ($($database:ty),*) => {$(
        impl SpawnClosure for $database {
            fn spawn_closure(outbox: Outbox<Self>, pool: Self::Pool, event: Event) -> JoinHandle<Result<(), Error>> {
                tokio::spawn(async move {
                    outbox
                        .transaction(&pool, async |tx| {
                            outbox.publish(tx, &event).await?;
                            tokio::task::yield_now().await;
                            Ok(())
                        })
                        .await
                })
            }

            fn spawn_savepoints(outbox: Outbox<Self>, pool: Self::Pool, event: Event) -> JoinHandle<Result<(), Error>> {
                tokio::spawn(async move {
                    let mut tx = outbox.begin(&pool).await?;
                    let mut outer = tx.savepoint().await?;
                    outbox.publish(&mut outer, &event).await?;
                    let mut inner = outer.savepoint().await?;
                    outbox.publish(&mut inner, self::event()).await?;
                    inner.rollback().await?;
                    outer.release().await?;
                    tx.commit().await
                })
            }
        }
    )*};
}

spawn_closure!(sqlx::Sqlite, sqlx::Postgres, sqlx::MySql, outbox::testing::Memory);

async fn closure_runs_in_a_spawned_task<D: SpawnClosure>() {
    let f = fixture::<D>("closure_in_a_task").await;
    let (outbox, pool, event) = (f.outbox.clone(), f.on.pool.clone(), f.event.clone());
    let task = D::spawn_closure(outbox, pool, event);
    task.await.unwrap().unwrap();
    f.assert_there().await;
}

async fn savepoint_runs_in_a_spawned_task<D: SpawnClosure>() {
    let f = fixture::<D>("savepoint_in_a_task").await;
    let (outbox, pool, event) = (f.outbox.clone(), f.on.pool.clone(), f.event.clone());
    let task = D::spawn_savepoints(outbox, pool, event);
    task.await.unwrap().unwrap();
    f.assert_there().await;
}

// Any form

/// `&mut *tx` is a connection that says it is inside a transaction.
async fn connection_inside_a_transaction_is_one<D: Database>()
where
    D::Connection: TxHandle<D, Receipt = Receipt>,
{
    let f = fixture::<D>("connection_inside").await;
    let mut tx = f.on.begin().await;
    let receipt = f.outbox.publish(&mut *tx, &f.event).await.unwrap();
    D::commit(tx).await.unwrap();
    receipt.committed();
    f.assert_there().await;
}

async fn batch_of_many_inserts_keeps_its_order<D: Database>() {
    let f = fixture::<D>("batch_order").await;
    let events: Vec<_> = (0..1_200).map(|_| event()).collect();
    let mut tx = f.outbox.begin(&f.on.pool).await.unwrap();
    let published = f.outbox.publish_all(&mut tx, &events).await.unwrap();
    assert_eq!(published.ids().len(), 1_200);
    tx.commit().await.unwrap();

    let page = Page { after: 0, limit: 2_000 };
    let stored = f.outbox.store().find(&Filter::all(), page).await.unwrap();
    let stored: Vec<_> = stored.iter().map(|stored| stored.event_id.as_str()).collect();
    assert_eq!(
        stored,
        events.iter().map(|event| event.id().as_str()).collect::<Vec<_>>()
    );
}

async fn empty_batch_writes_nothing<D: Database>() {
    let f = fixture::<D>("empty_batch").await;
    let mut tx = f.outbox.begin(&f.on.pool).await.unwrap();
    let published = f.outbox.publish_all(&mut tx, Vec::<Event>::new()).await.unwrap();
    assert!(published.ids().is_empty());
    tx.commit().await.unwrap();
    f.assert_not_there().await;
}

/// A commit whose future is dropped at any await has happened or has not, and the pool works on.
async fn dropped_commit_is_there_or_not<D: Database>() {
    let f = fixture::<D>("dropped_commit").await;
    for step in 0..25_u32 {
        let pair = [event(), event()];
        let mut tx = f.outbox.begin(&f.on.pool).await.unwrap();
        f.outbox.publish_all(&mut tx, &pair).await.unwrap();
        let limit = std::time::Duration::from_micros(u64::from(step) * 40);
        let answer = tokio::time::timeout(limit, tx.commit()).await;
        // The connection comes back to the pool when it knows what became of the transaction.
        let there = outbox_testbed::eventually("an answer", std::time::Duration::from_secs(20), async || {
            let one = f.is_there(pair[0].id()).await;
            let other = f.is_there(pair[1].id()).await;
            (one == other).then_some(one)
        })
        .await;
        if matches!(answer, Ok(Ok(()))) {
            assert!(there, "a commit that was answered is there");
        }
    }
    let mut tx = f.outbox.begin(&f.on.pool).await.unwrap();
    f.outbox.publish(&mut tx, &f.event).await.unwrap();
    tx.commit().await.unwrap();
    assert!(f.is_there(f.event.id()).await);
}

/// Whatever is written of a batch whose future is dropped at any await: what else is in the transaction stays in it, and its
/// commit tells the truth.
async fn dropped_batch_shares_the_fate_of_its_transaction<D: Database>()
where
    D::Transaction: TxHandle<D, Receipt = Receipt>,
{
    let f = fixture::<D>("dropped_batch").await;
    for looks in 1..500 {
        if dropped_batch(&f, looks).await {
            return;
        }
    }
    panic!("it is never answered");
}

/// Returns whether it was answered within so many looks.
async fn dropped_batch<D: Database>(f: &Fixture<D>, looks: u32) -> bool
where
    D::Transaction: TxHandle<D, Receipt = Receipt>,
{
    // More than one insert.
    let (before, batch) = (event(), (0..501).map(|_| event()).collect::<Vec<_>>());
    let mut tx = f.on.begin().await;
    drop(f.outbox.publish(&mut tx, &before).await.unwrap());
    let answer = looked_at(looks, f.outbox.publish_all(&mut tx, &batch)).await;
    let committed = D::commit(tx).await;
    let there = f.is_there(before.id()).await;
    assert_eq!(there, committed.is_ok(), "{looks} looks, {committed:?}");
    let first = f.is_there(batch[0].id()).await;
    let last = f.is_there(batch[500].id()).await;
    // PostgreSQL has no savepoint here: the driver's would, dropped, roll all back.
    assert!(first == last || f.outbox.store().name() == "postgres", "{looks} looks");
    let answered = answer.map(|answer| drop(answer.unwrap())).is_some();
    assert!(last || !answered);
    answered
}

/// What a future says within so many looks; `None` if it has to be dropped.
async fn looked_at<F: Future>(looks: u32, future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut looked = 0;
    std::future::poll_fn(|context| {
        if looked == looks {
            return Poll::Ready(None);
        }
        looked += 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

async fn event_and_business_row_share_their_fate<D: SqlDatabase>() {
    let f = fixture::<D>("business_rows").await;
    script::<D>(&f.on.pool, "create table orders (id int primary key)").await;
    for (id, commits) in [(1, true), (2, false)] {
        let event = event();
        let mut tx = f.outbox.begin(&f.on.pool).await.unwrap();
        D::script(&mut tx, format!("insert into orders (id) values ({id})"))
            .await
            .unwrap();
        f.outbox.publish(&mut tx, &event).await.unwrap();
        if commits {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        assert_eq!(f.is_there(event.id()).await, commits);
        // A second insert of the same key fails if, and only if, the first is there.
        let mut tx = f.outbox.begin(&f.on.pool).await.unwrap();
        let again = D::script(&mut tx, format!("insert into orders (id) values ({id})")).await;
        assert_eq!(again.is_err(), commits);
    }
}
