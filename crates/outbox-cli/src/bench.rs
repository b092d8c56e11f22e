//! `outbox bench`: how fast the library is, beside what the database can do at all.

pub(crate) mod node;

mod bare;
mod crew;
mod drain;
mod latency;
mod place;
mod produce;
mod purge;
mod report;
mod stand;
mod strain;
mod variant;
mod write;

use std::path::PathBuf;
use std::sync::Arc;

use sqlx::Pool;

use self::bare::BareDatabase;
use self::place::Place;
use self::report::Finding;
use self::stand::Stand;
use crate::any_pool::with_pool;
use crate::failure::Failure;
use crate::output;
use crate::progress::Progress;
use crate::target::Url;

/// Measure how fast it is, beside the same work in bare SQL.
///
/// Every result but a latency is a ratio: the library's rate, and that of a loop written by hand for the same work, with the
/// same driver and batches, on tables of the same kind, in the same run; or, for grown, held and nodes, the library's own rate
/// without the strain. They take turns, since no machine is the same for long; what one was of the other, turn by turn, has a
/// median, and that counts. The rates themselves say more about the machine than about the library.
///
/// By default it runs on a SQLite file in a temporary directory. On a database of yours it has tables of its own
/// (named outbox_bench_..), which it drops in the end, also when it is interrupted with Ctrl-C. Not for a server that others use:
/// it writes millions of rows, has PostgreSQL make checkpoints, and held keeps a transaction open.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Bench {
    /// What is measured.
    #[arg(value_enum)]
    scenario: Scenario,
    /// Where, instead of a temporary SQLite file.
    ///
    /// This is an argument only: no load is put on the database of OUTBOX_DATABASE_URL by accident.
    #[arg(long, value_name = "URL")]
    database: Option<Url>,
    /// How many events. Default: 3,000 for write and hot, 300,000 for held and nodes (1,000,000 with lanes), 100,000 for the
    /// others; latency takes at most 500.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    events: Option<u64>,
    /// How many listeners may run at once, on each node.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1000))]
    workers: u16,
    /// The size of a payload, which is JSON.
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = clap::value_parser!(u32).range(16..=1_048_576))]
    payload: u32,
    /// How many rows are read and written at once, by the library and by hand.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    batch: u16,
    /// How often each side is measured; the median counts. Default: 9 for write and hot, 5 for the others. A round of write has ten turns; latency is measured once.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// How many delivered events are in the table of grown, at first: each round adds its own.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    done_rows: u64,
    /// Print JSON, a line per result: {scenario, variant, database, events, framework_per_s, limit_per_s, ratio, ratio_low, ratio_high}, and p50_us, p99_us or rss_mb where they are measured. A latency has no rates.
    #[arg(long)]
    json: bool,
    /// Write the table as Markdown, too. Default for all: outbox-bench-DATABASE.md.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  outbox bench drain                                         on a temporary SQLite file
  outbox bench write --database postgres://app@localhost/shop
  outbox bench drain --database mariadb://app@localhost/shop --events 1000000 --rounds 1
  outbox bench all --database postgres://app@localhost/shop --json > bench.jsonl

Measure with a release build, on a machine that does nothing else.";

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Scenario {
    /// A business row and an event in one transaction, by 1, 4 and 16 producers; beside the same two inserts by hand.
    Write,
    /// The same until all are delivered from memory and marked; beside the two inserts and a batched update by hand.
    Hot,
    /// A backlog until all of it is delivered and marked, or deleted; beside a loop by hand, and beside each other.
    Drain,
    /// The same in order, with 1,000 keys; beside a loop by hand.
    Ordered,
    /// From COMMIT to the listener at 50 events a second: from memory, and by notification.
    Latency,
    /// A drain with many delivered events in the table; beside a drain of an empty one.
    Grown,
    /// A drain while a transaction elsewhere is kept open, on PostgreSQL; beside a drain without.
    Held,
    /// Purging delivered events; beside a batched delete by hand.
    Purge,
    /// A drain by 2 and 4 processes; beside a drain by one.
    Nodes,
    /// All of them, one after the other.
    All,
}

impl Scenario {
    const EACH: [Self; 9] = [
        Self::Write,
        Self::Hot,
        Self::Drain,
        Self::Ordered,
        Self::Latency,
        Self::Grown,
        Self::Held,
        Self::Purge,
        Self::Nodes,
    ];

    async fn run<D: BareDatabase>(self, stand: &mut Stand<'_, D>) -> Result<(), Failure> {
        match self {
            Self::Write => write::write(stand).await,
            Self::Hot => write::hot(stand).await,
            Self::Drain => drain::drain(stand).await,
            Self::Ordered => drain::ordered(stand).await,
            Self::Latency => latency::latency(stand).await,
            Self::Grown => strain::grown(stand).await,
            Self::Held => strain::held(stand).await,
            Self::Purge => purge::purge(stand).await,
            Self::Nodes => strain::nodes(stand).await,
            Self::All => {
                for scenario in Self::EACH {
                    Box::pin(scenario.run(stand)).await?;
                }
                Ok(())
            }
        }
    }
}

/// What all scenarios go by.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    events: Option<u64>,
    workers: usize,
    /// JSON.
    payload: Arc<str>,
    batch: usize,
    rounds: Option<u16>,
    done_rows: u64,
    json: bool,
}

impl Settings {
    /// How often each side of a drain or of a purge is measured.
    fn rounds(&self) -> u16 {
        self.rounds.unwrap_or(5)
    }

    /// The same of producers, whose rounds are short.
    fn rounds_of_producers(&self) -> u16 {
        self.rounds.unwrap_or(9)
    }
}

impl Bench {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let settings = Settings {
            events: self.events,
            workers: usize::from(self.workers),
            payload: payload(self.payload as usize).into(),
            batch: usize::from(self.batch),
            rounds: self.rounds,
            done_rows: self.done_rows,
            json: self.json,
        };
        // From here on, an interrupt does not end the process before its tables are dropped.
        let mut interrupt = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?;
        let place = Place::make(self.database.as_ref()).await?;
        let database = place.pool.database();
        let mut findings = Vec::new();
        let measured =
            async { with_pool!(&place.pool, pool => self.measure(&settings, &place, pool, &mut findings).await) };
        let result = tokio::select! {
            result = measured => result,
            _ = interrupt.recv() => Err(Failure::Interrupted),
        };
        let cleared = place.clear().await;
        // Also what was measured before something went wrong.
        if !self.json && !findings.is_empty() {
            report::print(&findings)?;
        }
        result?;
        cleared?;
        let by_default = || (self.scenario == Scenario::All).then(|| format!("outbox-bench-{database}.md").into());
        if let Some(file) = self.markdown.clone().or_else(by_default) {
            std::fs::write(&file, report::markdown(&findings))?;
            Progress::new().say(format_args!("written: {}", file.display()));
        }
        Ok(())
    }

    async fn measure<D: BareDatabase>(
        &self,
        settings: &Settings,
        place: &Place,
        pool: &Pool<D>,
        findings: &mut Vec<Finding>,
    ) -> Result<(), Failure> {
        if cfg!(debug_assertions) {
            Progress::new().say("this is a debug build: its figures mean little");
        }
        let mut stand = Stand::new(settings, place, pool, findings);
        self.scenario.run(&mut stand).await?;
        if stand.findings.is_empty() && !settings.json {
            output::line(format_args!("nothing to measure on {}", place.pool.database()))?;
        }
        Ok(())
    }
}

/// A JSON object of so many bytes.
fn payload(bytes: usize) -> String {
    let around = r#"{"text": ""}"#.len();
    format!(r#"{{"text": "{}"}}"#, "x".repeat(bytes.saturating_sub(around)))
}
