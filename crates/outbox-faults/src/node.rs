//! A node: a process of its own that produces and delivers, and writes down what it does. Not for people.
//!
//! It is told what to do by lines on standard input (`quiet`, `disarm`, `hold MILLISECONDS`), says how far it is by lines
//! on standard output (`ready`, `disarmed`, `quiet`, `held`, `let-go`, `stalled`), and ends when its input ends.

mod broken;
mod listener;
mod producer;
mod recorder;

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use outbox::retry::Exponential;
use outbox::testing::facts::Log;
use outbox::{Builder, Outbox, PurgePolicy};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use sqlx::Pool;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use self::producer::Producer;
use crate::failure::Failure;
use crate::fault::Kind;
use crate::ledger::{Ledger, connect, with_kind};
use crate::mode::Mode;

/// What a node is told, as JSON in its environment: arguments can be read by every user of the machine.
pub(crate) const CONFIG: &str = "OUTBOX_FAULTS_NODE";
/// What a node says when it has stood still.
pub(crate) const STALLED: &str = "stalled";
/// How long a node tries to reach a database that is away when it starts.
const START_LIMIT: Duration = Duration::from_secs(60);

/// What a node is like.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Config {
    pub(crate) kind: Kind,
    pub(crate) url: String,
    pub(crate) mode: Mode,
    pub(crate) seed: u64,
    /// Which node, and which life of it: they draw different numbers.
    pub(crate) number: u32,
    pub(crate) life: u32,
    pub(crate) log: PathBuf,
    pub(crate) workload: Workload,
}

/// How much a node does, and how.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Workload {
    pub(crate) producers: u32,
    /// Between two transactions of a producer.
    pub(crate) every: Duration,
    pub(crate) keys: i64,
    /// A listener takes up to this long.
    pub(crate) listener: Duration,
    pub(crate) workers: usize,
    pub(crate) lease: Duration,
    pub(crate) poll: Duration,
    pub(crate) settle_batch: usize,
    pub(crate) poll_batch: usize,
    /// Connections of the application.
    pub(crate) connections: u32,
    pub(crate) hot_path: bool,
    /// Deletes what is finished, at once and all the time.
    pub(crate) purge: bool,
    /// Some events are poison, some make the listener panic, some are as large as can be.
    pub(crate) poison: bool,
    /// Writes down who takes and settles what; too much where millions are delivered.
    pub(crate) record: bool,
    /// The application's clock is so many minutes ahead.
    pub(crate) skew_minutes: i32,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            producers: 2,
            every: Duration::from_millis(8),
            keys: 6,
            listener: Duration::from_millis(4),
            workers: 4,
            lease: Duration::from_secs(1),
            poll: Duration::from_millis(200),
            settle_batch: 32,
            poll_batch: 50,
            connections: 6,
            hot_path: true,
            purge: false,
            poison: false,
            record: true,
            skew_minutes: 0,
        }
    }
}

impl Workload {
    /// How many events of a node can have been delivered and not yet be marked: what its workers are at, what waits for the
    /// settler, and what the settler is writing.
    pub(crate) fn window(&self) -> u64 {
        (self.workers + 4 * self.settle_batch) as u64
    }
}

pub(crate) async fn run() -> Result<(), Failure> {
    // Also when the harness is killed, and also while this process is stopped and cannot see its input end.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(std::io::Error::from)?;
    let config = std::env::var(CONFIG).unwrap_or_default();
    let config: Config = serde_json::from_str(&config).map_err(std::io::Error::from)?;
    keep_quiet_about_panics();
    with_kind!(config.kind, D => run_on::<D>(config).await)
}

async fn run_on<D: Ledger>(config: Config) -> Result<(), Failure> {
    let log = Arc::new(Log::append(&config.log)?);
    recorder::watch(&log, config.workload.record);
    let (pool, outbox) = start::<D>(&config, &log).await?;
    let mut orders = orders();
    let (quiet, is_quiet) = watch::channel(false);
    let mut producers = JoinSet::new();
    for number in 0..config.workload.producers {
        let producer = Producer::new(&config, number, &outbox, &pool, &log);
        producers.spawn(producer.run(is_quiet.clone()));
    }
    tokio::spawn(watch_time(config.workload.lease / 4));
    say("ready");
    let mut said_quiet = false;
    loop {
        tokio::select! {
            order = orders.recv() => match order.as_deref().map(|line| line.split_once(' ').unwrap_or((line, ""))) {
                None => break,
                Some(("quiet", _)) => drop(quiet.send(true)),
                Some(("disarm", _)) => {
                    outbox::failpoint::disarm();
                    say("disarmed");
                }
                Some(("hold", millis)) => {
                    let time = Duration::from_millis(millis.parse().unwrap_or(0));
                    tokio::spawn(hold(pool.clone(), config.workload.connections, time));
                }
                Some((other, _)) => return Err(std::io::Error::other(format!("unknown order {other:?}")).into()),
            },
            ended = producers.join_next(), if !said_quiet => match ended {
                None => {
                    say("quiet");
                    said_quiet = true;
                }
                Some(ended) => ended.map_err(std::io::Error::other)??,
            },
            () = outbox.died() => return Err(std::io::Error::other("a background task of the outbox has died").into()),
        }
    }
    outbox.shutdown().await?;
    Ok(())
}

/// Connects and builds, however often it takes: the database may be down at this very moment.
async fn start<D: Ledger>(config: &Config, log: &Arc<Log>) -> Result<(Pool<D>, Outbox<D>), Failure> {
    let started = tokio::time::Instant::now();
    loop {
        let error: Failure = match connect::<D>(&config.url, config.workload.connections).await {
            Ok(pool) => match build(config, &pool, log).await {
                Ok(outbox) => return Ok((pool, outbox)),
                Err(error) => error.into(),
            },
            Err(error) => error.into(),
        };
        if started.elapsed() > START_LIMIT {
            return Err(error);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn build<D: Ledger>(config: &Config, pool: &Pool<D>, log: &Arc<Log>) -> Result<Outbox<D>, outbox::Error> {
    let nodes = || {
        let builder = Outbox::multi_node(pool);
        if config.workload.hot_path {
            builder
        } else {
            builder.without_hot_path()
        }
    };
    match config.mode {
        Mode::Unordered => dress(nodes().row_claims(), config, log).build().await,
        Mode::Lanes => dress(nodes().lanes(), config, log).build().await,
        Mode::Ordered => dress(Outbox::ordered(pool), config, log).build().await,
    }
}

fn dress<D: Ledger, O>(builder: Builder<D, O>, config: &Config, log: &Arc<Log>) -> Builder<D, O> {
    let workload = &config.workload;
    let mut builder = builder
        .node(format!("node-{}-{}", config.number, config.life))
        .lease(workload.lease)
        .poll_interval(workload.poll)
        .poll_batch(workload.poll_batch)
        .workers(workload.workers)
        .settle_batch(workload.settle_batch, Duration::from_millis(1))
        .retry(Exponential::new(Duration::from_millis(20), Duration::from_millis(100)).attempts(4))
        .listener_timeout(Duration::from_secs(10))
        .clock(producer::clock(workload.skew_minutes));
    builder = if workload.purge {
        let policy = PurgePolicy::keep(Duration::ZERO)
            .every(Duration::from_millis(20))
            .batch(10);
        builder.purge(policy)
    } else {
        builder.without_purge()
    };
    listener::add(builder, config, log)
}

/// Says when this process has stood still for so long: on a machine that is too busy, leases end although nobody is at
/// fault, and what is delivered twice because of that is excused.
async fn watch_time(longest: Duration) {
    loop {
        let before = tokio::time::Instant::now();
        tokio::time::sleep(longest / 10).await;
        if before.elapsed() > longest {
            say(STALLED);
        }
    }
}

/// Takes every connection of the application, and keeps them for a while.
async fn hold<D: Ledger>(pool: Pool<D>, connections: u32, time: Duration) {
    let mut held = Vec::new();
    while held.len() < connections as usize {
        match pool.acquire().await {
            Ok(connection) => held.push(connection),
            // Producers compete for them.
            Err(_) => tokio::task::yield_now().await,
        }
    }
    say("held");
    tokio::time::sleep(time).await;
    drop(held);
    say("let-go");
}

/// Lines of standard input; ends with it.
fn orders() -> mpsc::UnboundedReceiver<String> {
    let (sender, orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    orders
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // The harness is gone if nobody reads; then this process ends anyway.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn keep_quiet_about_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some(listener::PANIC) {
            usual(panic);
        }
    }));
}
