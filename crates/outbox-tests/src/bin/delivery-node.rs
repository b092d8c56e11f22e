//! A node in a process of its own, for tests that need several, or one that can be killed.
//!
//! `delivery-node MODE WAY URL [NUMBER]`, where WAY is `row-claims` or `lanes`; or, in order of each key,
//! `delivery-node order LOG URL [LEASE_MS]`, which appends each delivery to a file. It prints one fact a line, and ends when its standard input does.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outbox::retry::Fixed;
use outbox::{Backend, Delivery, Event, Failure, Outbox, PoolOf};
use tokio::io::{AsyncBufReadExt, BufReader};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (Some(mode), Some(way), Some(url)) = (args.next(), args.next(), args.next()) else {
        return Err("usage: delivery-node publish|hold|drain|idle row-claims|lanes URL [NUMBER]".into());
    };
    let lanes = way == "lanes";
    let number = args.next().map_or(Ok(0), |number| number.parse())?;
    if mode == "order" {
        return order(&way, &url, number).await;
    }
    if url.starts_with("sqlite") {
        let options: sqlx::sqlite::SqliteConnectOptions = url.parse()?;
        let options = options.busy_timeout(Duration::from_secs(30));
        run(&mode, lanes, sqlx::SqlitePool::connect_with(options).await?, number).await
    } else if url.starts_with("postgres") {
        run(&mode, lanes, sqlx::PgPool::connect(&url).await?, number).await
    } else {
        run(&mode, lanes, sqlx::MySqlPool::connect(&url).await?, number).await
    }
}

fn say(fact: &str, what: impl std::fmt::Display) {
    // One write a line, so that lines of a killed process are whole.
    let line = format!("{fact} {what}\n");
    std::io::stdout()
        .lock()
        .write_all(line.as_bytes())
        .expect("the parent reads what is said");
}

async fn run<D: Backend>(mode: &str, lanes: bool, pool: impl PoolOf<D>, number: u64) -> Result<()> {
    let builder = Outbox::multi_node(&pool);
    let builder = if lanes { builder.lanes() } else { builder.row_claims() };
    match mode {
        "publish" => publish(pool.pool(), builder, number).await,
        "hold" => hold(builder).await,
        "drain" => drain(builder).await,
        "idle" => idle(builder, number).await,
        other => Err(format!("unknown mode {other}").into()),
    }
}

async fn stdin_ended() -> Result<()> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while lines.next_line().await?.is_some() {}
    Ok(())
}

/// Publishes `events` from four tasks, every tenth rolled back, and delivers what it gets, failing now and then.
async fn publish<D: Backend>(pool: &D::Pool, builder: outbox::Builder<D>, events: u64) -> Result<()> {
    let outbox = builder
        .poll_interval(Duration::from_millis(200))
        .retry(Fixed::new(Duration::from_millis(20), 100))
        .listen("Placed", |delivery: Delivery| async move {
            if rand::random_ratio(1, 20) {
                return Err(Failure::retry("now and then"));
            }
            say("delivered", delivery.id());
            Ok(())
        })
        .build()
        .await?;
    let mut producers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (outbox, pool) = (outbox.clone(), pool.clone());
        producers.spawn(async move {
            for n in 0..events / 4 {
                let event = Event::json("Placed", "{}")?;
                let mut tx = outbox.begin(&pool).await?;
                outbox.publish(&mut tx, &event).await?;
                if n % 10 == 9 {
                    say("rolled-back", event.id());
                    tx.rollback().await?;
                } else {
                    tx.commit().await?;
                    say("committed", event.id());
                }
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        });
    }
    while let Some(producer) = producers.join_next().await {
        producer??;
    }
    say("published", events);
    stdin_ended().await?;
    outbox.shutdown().await?;
    Ok(())
}

/// Takes an event, says so, and answers with a failure when a line comes in.
async fn hold<D: Backend>(builder: outbox::Builder<D>) -> Result<()> {
    let (go, _) = tokio::sync::broadcast::channel::<()>(1);
    let sender = go.clone();
    let outbox = builder
        .lease(Duration::from_secs(1))
        .poll_interval(Duration::from_millis(50))
        .listen("Placed", move |delivery: Delivery| {
            let mut go = sender.subscribe();
            async move {
                say("began", delivery.id());
                // An error means that the sender is gone, which is the end as well.
                let _ = go.recv().await;
                Err(Failure::permanent("from a stale worker"))
            }
        })
        .build()
        .await?;
    say("ready", "");
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while lines.next_line().await?.is_some() {
        go.send(())?;
        say("answered", "");
    }
    outbox.shutdown().await?;
    say("ended", "");
    Ok(())
}

/// Delivers in order, failing now and then, and writes down what was delivered: all nodes into one file.
async fn order(log: &str, url: &str, lease: u64) -> Result<()> {
    let log = Arc::new(std::fs::OpenOptions::new().append(true).create(true).open(log)?);
    if url.starts_with("sqlite") {
        let options: sqlx::sqlite::SqliteConnectOptions = url.parse()?;
        let options = options.busy_timeout(Duration::from_secs(30));
        deliver_in_order(sqlx::SqlitePool::connect_with(options).await?, log, lease).await
    } else if url.starts_with("postgres") {
        deliver_in_order(sqlx::PgPool::connect(url).await?, log, lease).await
    } else {
        deliver_in_order(sqlx::MySqlPool::connect(url).await?, log, lease).await
    }
}

async fn deliver_in_order<D: Backend>(pool: impl PoolOf<D>, log: Arc<std::fs::File>, lease: u64) -> Result<()> {
    let outbox = Outbox::ordered(&pool)
        .workers(8)
        .lease(Duration::from_millis(lease))
        .poll_interval(Duration::from_millis(100))
        .retry(Fixed::new(Duration::from_millis(10), 1000))
        .listen_to("Account", "Moved", move |delivery: Delivery| {
            let log = Arc::clone(&log);
            async move {
                let key = delivery.aggregate_id().unwrap_or_default();
                let number = delivery.payload().as_json().unwrap_or_default();
                // One write, at the end of the file, whoever else writes.
                (&*log).write_all(format!("{key} {number} {}\n", std::process::id()).as_bytes())?;
                if rand::random_ratio(1, 20) {
                    return Err(Failure::retry("now and then"));
                }
                // Some take longer.
                if rand::random_ratio(1, 4) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Ok(())
            }
        })
        .build()
        .await?;
    say("ready", "");
    stdin_ended().await?;
    let shutdown = outbox.shutdown().await?;
    say("ended", shutdown.drained);
    Ok(())
}

/// Delivers to nobody in particular.
async fn drain<D: Backend>(builder: outbox::Builder<D>) -> Result<()> {
    say("ready", "");
    let outbox = builder
        .poll_batch(500)
        .listen("Placed", |_: Delivery| async { Ok(()) })
        .build()
        .await?;
    stdin_ended().await?;
    outbox.shutdown().await?;
    Ok(())
}

/// Does nothing for `intervals` poll intervals, and says how many statements that took.
async fn idle<D: Backend>(builder: outbox::Builder<D>, intervals: u64) -> Result<()> {
    let statements = Arc::new(AtomicU64::new(0));
    tracing_subscriber::registry()
        .with(CountStatements(Arc::clone(&statements)))
        .init();
    let interval = Duration::from_millis(200);
    let outbox = builder
        .poll_interval(interval)
        .listen("Placed", |_: Delivery| async { Ok(()) })
        .build()
        .await?;
    // It rests longer and longer, up to the interval; and who shares lanes looks for others for three seconds.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let before = statements.load(Ordering::Relaxed);
    // What is measured: so long, nothing is to be done.
    tokio::time::sleep(interval * u32::try_from(intervals)?).await;
    say("statements", statements.load(Ordering::Relaxed) - before);
    say("in-all", statements.load(Ordering::Relaxed));
    outbox.shutdown().await?;
    Ok(())
}

/// The driver logs every statement it runs.
struct CountStatements(Arc<AtomicU64>);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for CountStatements {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == "sqlx::query" {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}
