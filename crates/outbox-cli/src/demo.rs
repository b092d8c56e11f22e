//! `outbox demo`: a small shop that checks itself.

pub(crate) mod node;

mod database;
mod log;
mod report;
mod shop;
mod stage;

use std::collections::HashSet;
use std::io;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outbox::Admin;
use outbox::store::{Filter, Page, Status};

use self::database::ShopDatabase;
use self::log::Tail;
use self::report::{Setting, Summary, Tally};
use self::stage::Stage;
use crate::any_pool::with_pool;
use crate::failure::Failure;
use crate::output::{self, digits};
use crate::progress::Progress;
use crate::target::Url;

/// How long nodes may take to get ready, and to deliver what is left at the end.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often the parent looks.
const GLANCE: Duration = Duration::from_millis(100);

/// Run a small shop which publishes, delivers, and checks its own result.
///
/// Producers place orders in transactions, in all three forms the library has. Some roll back, some roll back a savepoint
/// inside of a transaction that they commit; some events are delayed. Listeners handle them: one fails now and then, one
/// panics once, and one order is poison. In the end every committed event must have been delivered or be dead, and none
/// that was rolled back: otherwise the exit code is 1.
///
/// By default the shop is on a SQLite file in a temporary directory. On a database of yours it has tables of its own
/// (demo_order, demo_event and companions), which it drops in the end.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Demo {
    /// Where the shop is, instead of a temporary SQLite file.
    ///
    /// This is an argument only: the demo does not touch the database of OUTBOX_DATABASE_URL by accident.
    #[arg(long, value_name = "URL")]
    database: Option<Url>,
    /// How long orders are placed.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// How many customers place orders at once, on each node.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1000))]
    producers: u16,
    /// How many orders are placed per second, by all producers of all nodes together.
    #[arg(long, value_name = "N", default_value_t = 800, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// How many processes publish and deliver. Default: 1, or 3 with --kill-one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    nodes: Option<u16>,
    /// Kill one of the nodes half way, with SIGKILL. The others deliver what it has committed.
    #[arg(long)]
    kill_one: bool,
    /// Deliver every customer's events in the order they were written, and check that.
    #[arg(long)]
    ordered: bool,
    /// Leave the tables, or the SQLite file, and say where they are.
    #[arg(long)]
    keep: bool,
    /// Print JSON: {ok, database, nodes, producers, seconds, killed, committed, rolled_back, delivered, duplicates, retries, dead, lost, phantom, ordered, out_of_order, failed_transactions, p50_us, p99_us, hot_p50_us, hot_p99_us, hot_share, events_per_s}.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  outbox demo
  outbox demo --seconds 3 --producers 8 --json
  outbox demo --database postgres://app@localhost/shop --nodes 3 --kill-one
  outbox demo --database mariadb://app@localhost/shop --nodes 2 --keep
  outbox demo --database postgres://app@localhost/shop --ordered --nodes 3 --kill-one";

impl Demo {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let nodes = usize::from(self.nodes.unwrap_or(if self.kill_one { 3 } else { 1 }));
        if self.kill_one && nodes < 2 {
            return Err(Failure::NobodyLeft);
        }
        let stage = Stage::set(self.database.as_ref(), self.keep).await?;
        let result = tokio::select! {
            result = self.play(&stage, nodes) => result,
            _ = tokio::signal::ctrl_c() => Err(Failure::Interrupted),
        };
        let cleared = stage.clear().await;
        let summary = result?;
        if self.json {
            output::json(&summary.to_json())?;
        } else {
            output::text(&summary.to_text())?;
        }
        cleared?;
        match summary.complaint() {
            None => Ok(()),
            Some(complaint) => Err(Failure::DemoFailed { complaint }),
        }
    }

    async fn play(&self, stage: &Stage, nodes: usize) -> Result<Summary, Failure> {
        let mut crew = Crew::start(self, stage, nodes)?;
        let mut progress = Progress::new();
        let started = Instant::now();
        while crew.look()?.ready < nodes {
            if started.elapsed() > PATIENCE {
                return Err(Failure::NodesNotReady);
            }
            tokio::time::sleep(GLANCE).await;
        }

        let started = Instant::now();
        let half_way = Duration::from_secs(self.seconds) / 2;
        let mut killed = 0;
        loop {
            let living = nodes - killed;
            if self.kill_one && killed == 0 && started.elapsed() >= half_way {
                crew.kill_last()?;
                killed = 1;
                progress.say("killed one node");
            }
            let tally = crew.look()?;
            progress.show(how_far("", started, tally));
            if tally.quiet >= living {
                break;
            }
            tokio::time::sleep(GLANCE).await;
        }

        let admin = Admin::new(stage.pool.store(&stage.table));
        let deadline = Instant::now() + PATIENCE;
        while is_pending(&admin).await? && Instant::now() < deadline {
            let tally = crew.look()?;
            progress.show(how_far(", emptying", started, tally));
            tokio::time::sleep(GLANCE).await;
        }
        crew.stop().await?;
        crew.look()?;
        drop(progress);

        let orders = with_pool!(&stage.pool, pool => orders(pool, &stage.orders).await)?;
        let dead = dead(&admin).await?;
        let setting = Setting {
            database: stage.pool.database().as_str(),
            nodes,
            producers: usize::from(self.producers),
            seconds: self.seconds,
            killed,
            ordered: self.ordered,
        };
        Ok(Summary::new(setting, &crew.tally, &orders, &dead))
    }
}

fn how_far(doing: &str, started: Instant, tally: &Tally) -> String {
    format!(
        "{:>4.1} s{doing}  committed {}  delivered {}  failed attempts {}",
        started.elapsed().as_secs_f64(),
        digits(tally.committed),
        digits(tally.delivered),
        digits(tally.failed),
    )
}

async fn is_pending(admin: &Admin) -> Result<bool, outbox::Error> {
    let mut pending = Filter::all();
    pending.statuses = vec![Status::New, Status::Retry];
    Ok(admin.count(&pending, 1).await? > 0)
}

async fn orders<D: ShopDatabase>(pool: &sqlx::Pool<D>, table: &str) -> Result<HashSet<String>, Failure> {
    Ok(D::event_ids(pool, table).await?.into_iter().collect())
}

async fn dead(admin: &Admin) -> Result<HashSet<String>, outbox::Error> {
    let mut page = Page { after: 0, limit: 500 };
    let mut dead = HashSet::new();
    loop {
        let found = admin.list(&Filter::dead(), page).await?;
        let Some(last) = found.last() else {
            return Ok(dead);
        };
        page.after = last.seq;
        dead.extend(found.into_iter().map(|event| event.event_id));
    }
}

/// The nodes, and what is known of them. Dropped, they are killed.
#[derive(Debug)]
struct Crew {
    /// Without the one that was killed.
    nodes: Vec<Child>,
    logs: Vec<Tail>,
    tally: Tally,
}

impl Crew {
    fn start(demo: &Demo, stage: &Stage, nodes: usize) -> Result<Self, Failure> {
        let mut crew = Self {
            nodes: Vec::new(),
            logs: Vec::new(),
            tally: Tally::default(),
        };
        let producers = u64::try_from(nodes).unwrap_or(u64::MAX) * u64::from(demo.producers);
        let every_us = producers * 1_000_000 / u64::from(demo.rate);
        // Short where a node dies, so that its events are soon taken over; otherwise long enough for a busy machine.
        let lease_ms = if demo.kill_one { 2_000 } else { 10_000 };
        for number in 0..nodes {
            let log = stage.directory.join(format!("node-{number}.log"));
            let mut command = Command::new(std::env::current_exe()?);
            command
                .arg("demo-node")
                .args(["--table", stage.table.as_str(), "--orders", &stage.orders])
                .arg("--log")
                .arg(&log)
                .arg(format!("--node={number}"))
                .arg(format!("--producers={}", demo.producers))
                .arg(format!("--seconds={}", demo.seconds))
                .arg(format!("--every-us={}", every_us.max(1)))
                .arg(format!("--lease-ms={lease_ms}"))
                // Arguments can be read by every user of the machine, and the URL may hold a password.
                .env("OUTBOX_DATABASE_URL", stage.url.expose())
                .stdin(Stdio::piped())
                .stdout(Stdio::null());
            if nodes == 1 {
                command.arg("--alone");
            }
            if demo.ordered {
                command.arg("--ordered");
            }
            crew.nodes.push(command.spawn()?);
            crew.logs.push(Tail::new(log));
        }
        Ok(crew)
    }

    /// Reads what the nodes have written, and whether they live.
    fn look(&mut self) -> Result<&Tally, Failure> {
        for log in &mut self.logs {
            log.read(|fact| self.tally.add(fact))?;
        }
        for node in &mut self.nodes {
            if let Some(status) = node.try_wait()?
                && !status.success()
            {
                return Err(Failure::NodeFailed { status });
            }
        }
        Ok(&self.tally)
    }

    fn kill_last(&mut self) -> io::Result<()> {
        let Some(mut node) = self.nodes.pop() else {
            return Ok(());
        };
        node.kill()?;
        node.wait().map(drop)
    }

    /// Tells the nodes to stop, and waits for it.
    async fn stop(&mut self) -> Result<(), Failure> {
        for node in &mut self.nodes {
            drop(node.stdin.take());
        }
        let deadline = Instant::now() + PATIENCE;
        for node in &mut self.nodes {
            let status = loop {
                match node.try_wait()? {
                    Some(status) => break status,
                    None if Instant::now() > deadline => return Err(Failure::NodeDoesNotStop),
                    None => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            };
            if !status.success() {
                return Err(Failure::NodeFailed { status });
            }
        }
        Ok(())
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            // It may have ended long ago.
            let _ = node.kill();
            let _ = node.wait();
        }
    }
}
