//! A node of the benchmark: a process of its own that drains, and says how far it is.

use std::io::{self, BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outbox::{AnyPool, Builder, Delivery, TableName};
use serde::{Deserialize, Serialize};
use sqlx::Pool;
use tokio::sync::mpsc;

use super::bare::{self, AGGREGATE_TYPE, BareDatabase, EVENT_TYPE};
use super::variant::{Configure, Ownership, Variant};
use crate::any_pool::with_pool;
use crate::failure::Failure;
use crate::target::Url;

/// How often it says how far it is.
const REPORT_EVERY: Duration = Duration::from_millis(5);

/// What the benchmark tells each of its nodes. Not for people.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Node {
    #[arg(long, env = "OUTBOX_DATABASE_URL", hide_env_values = true)]
    database: Url,
    #[arg(long)]
    table: TableName,
    #[arg(long)]
    ownership: Ownership,
    #[arg(long)]
    delete: bool,
    #[arg(long)]
    workers: usize,
    #[arg(long)]
    batch: usize,
    /// Nobody else delivers.
    #[arg(long)]
    alone: bool,
    /// Tell of each delivery.
    #[arg(long)]
    hear: bool,
}

/// What a node says: a line of JSON each.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    /// Connected, and waiting for a line on standard input.
    Ready,
    /// Delivering.
    Started,
    /// How many so far.
    Delivered(u64),
    /// The listener of the event with this number was called, then: microseconds since 1970.
    Heard { number: i64, at: u64 },
    /// The most memory it ever had, in kilobytes; unknown where there is no /proc. The last words.
    Peak(Option<u64>),
}

impl Node {
    /// Delivers from the first line of standard input until its end: also if the parent dies.
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let pool = AnyPool::connect(self.database.expose()).await?;
        with_pool!(&pool, pool => self.run_on(&bare::pool(pool, 2)).await)
    }

    async fn run_on<D: BareDatabase>(self, pool: &Pool<D>) -> Result<(), Failure> {
        let mut orders = lines_of_stdin();
        tell(Message::Ready)?;
        if orders.recv().await.is_none() {
            return Ok(());
        }
        let delivered = Arc::new(AtomicU64::new(0));
        let variant = Variant {
            ownership: self.ownership,
            delete: self.delete,
        };
        let listening = Listening {
            node: &self,
            count: Arc::clone(&delivered),
        };
        let outbox = variant.build(pool, self.alone, listening).await?;
        tell(Message::Started)?;

        let mut ticks = tokio::time::interval(REPORT_EVERY);
        let mut told = 0;
        loop {
            tokio::select! {
                order = orders.recv() => if order.is_none() {
                    break;
                },
                _ = ticks.tick() => {
                    let so_far = delivered.load(Ordering::Relaxed);
                    if so_far != told {
                        tell(Message::Delivered(so_far))?;
                        told = so_far;
                    }
                }
                () = outbox.died() => return Err(Failure::TaskDied),
            }
        }
        outbox.shutdown().await?;
        tell(Message::Delivered(delivered.load(Ordering::Relaxed)))?;
        tell(Message::Peak(peak_kilobytes()))?;
        Ok(())
    }
}

/// A listener that does nothing but count, and tell where that is asked for.
struct Listening<'a> {
    node: &'a Node,
    count: Arc<AtomicU64>,
}

impl<D: BareDatabase> Configure<D> for Listening<'_> {
    fn configure<O>(self, builder: Builder<D, O>) -> Builder<D, O> {
        let (node, count, hear) = (self.node, self.count, self.node.hear);
        builder
            .table(node.table.as_str())
            .workers(node.workers)
            .poll_batch(node.batch)
            // Room for one batch while another one is read: by default there is for batches of up to 500.
            .cold_capacity((2 * node.batch).max(1_000))
            .settle_batch(node.batch, SETTLE_LINGER)
            .without_purge()
            .listen_to(AGGREGATE_TYPE, EVENT_TYPE, move |delivery: Delivery| {
                let answer = if hear { heard(&delivery) } else { Ok(()) };
                count.fetch_add(1, Ordering::Relaxed);
                std::future::ready(answer.map_err(Into::into))
            })
    }
}

/// The library's default.
pub(crate) const SETTLE_LINGER: Duration = Duration::from_millis(10);

fn heard(delivery: &Delivery) -> io::Result<()> {
    let at = since_1970();
    let number = delivery.aggregate_id().and_then(|key| key.parse().ok());
    number.map_or(Ok(()), |number| tell(Message::Heard { number, at }))
}

/// Microseconds, by the clock that all processes of a machine share.
pub(crate) fn since_1970() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

fn tell(message: Message) -> io::Result<()> {
    let line = serde_json::to_string(&message).map_err(io::Error::other)?;
    writeln!(io::stdout().lock(), "{line}")
}

/// Ends with standard input.
fn lines_of_stdin() -> mpsc::UnboundedReceiver<String> {
    let (lines, received) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                break;
            }
        }
    });
    received
}

fn peak_kilobytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    peak.trim().strip_suffix(" kB")?.parse().ok()
}
