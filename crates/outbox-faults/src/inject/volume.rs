//! Much to deliver: memory stays bounded.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use outbox::testing::facts::{Fact, Log};
use sqlx::Pool;

use crate::failure::Failure;
use crate::fault::Kind;
use crate::ledger::{Ledger, script};
use crate::scene::{GLANCE, Injected, Scene};

/// Events of a backlog, for each second of a run.
const PER_SECOND: u64 = 5_000;
/// How much a node may grow while it drains, whatever the backlog (I5).
const GROWTH_LIMIT_KIB: u64 = 64 * 1024;
/// No drain of a part may take longer.
pub(super) const DRAIN_LIMIT: Duration = Duration::from_secs(600);

impl<D: Ledger> Scene<'_, D> {
    /// Loads a backlog, all at once, and watches the memory of the node that drains it.
    pub(crate) async fn backlog_is_drained(&mut self) -> Result<Injected, Failure> {
        let config = self.node(0, &self.url);
        self.crew.start(config, None)?;
        self.crew.all_ready().await?;
        let mut deliveries = Deliveries::of(&self.crew.logs[0])?;
        let at_rest = self.crew.nodes[0].resident();
        let events = PER_SECOND * self.plan.time.as_secs();
        let bulk = Bulk {
            pool: &self.pool,
            kind: self.place.kind,
            keys: self.workload.keys,
            log: &self.own_log(),
        };
        load(&bulk, 0, events).await?;
        let (started, mut highest) = (Instant::now(), 0);
        while deliveries.look()? < events && started.elapsed() < DRAIN_LIMIT {
            highest = highest.max(self.crew.nodes[0].resident());
            tokio::time::sleep(GLANCE).await;
        }
        let rate = events as f64 / started.elapsed().as_secs_f64();
        let grown = highest.saturating_sub(at_rest);
        let mut broken = Vec::new();
        if grown > GROWTH_LIMIT_KIB {
            broken.push(format!(
                "I5: the node grew by {grown} KiB, more than {GROWTH_LIMIT_KIB}"
            ));
        }
        Ok(Injected {
            faults: 1,
            nodes_hit: 0,
            broken,
            note: Some(format!(
                "{events} events at {rate:.0}/s, {} KiB at rest, {grown} KiB more at most",
                at_rest
            )),
        })
    }
}

/// Where events are written in bulk.
#[derive(Debug)]
pub(super) struct Bulk<'a, D: Ledger> {
    pub(super) pool: &'a Pool<D>,
    pub(super) kind: Kind,
    /// How many there are.
    pub(super) keys: i64,
    /// Where it is written down what was committed.
    pub(super) log: &'a Path,
}

/// Writes events in bulk, in one transaction, numbered from `first` on.
pub(super) async fn load<D: Ledger>(bulk: &Bulk<'_, D>, first: u64, events: u64) -> Result<(), Failure> {
    let log = Log::append(bulk.log)?;
    let keys = bulk.keys.unsigned_abs();
    let last = first + events;
    let facts: Vec<Fact> = (first + 1..=last)
        .map(|n| Fact::keyed_intent(format!("bulk.{n}"), (n % keys).to_string(), n))
        .collect();
    log.write_all(&facts)?;
    let (begin, numbers, id, key, payload) = match bulk.kind {
        Kind::Sqlite => (
            "begin immediate",
            format!(
                "(with recursive r(n) as (select {first} + 1 union all select n + 1 from r where n < {last}) select n from r)"
            ),
            "'bulk.' || n",
            "cast(n % {keys} as text)",
            r#"'{"place":' || n || '}'"#,
        ),
        Kind::Postgres => (
            "begin",
            format!("(select generate_series({first} + 1, {last}) as n)"),
            "'bulk.' || n",
            "(n % {keys})::text",
            "json_build_object('place', n)",
        ),
        Kind::MariaDb => (
            "begin",
            format!("(select seq + {first} as n from seq_1_to_{events})"),
            "concat('bulk.', n)",
            "cast(n % {keys} as char)",
            r#"concat('{"place":', n, '}')"#,
        ),
    };
    let key = key.replace("{keys}", &keys.to_string());
    let sql = format!(
        "{begin};
         insert into faults_ledger (event_id, k, n) select {id}, n % {keys}, n from {numbers} as numbers;
         insert into outbox_event (event_id, event_type, aggregate_type, aggregate_id, payload)
           select {id}, 'Plain', 'Key', {key}, {payload} from {numbers} as numbers order by n;
         commit"
    );
    script(bulk.pool, sql).await?;
    let facts: Vec<Fact> = (first + 1..=last)
        .map(|n| Fact::committed(format!("bulk.{n}")))
        .collect();
    Ok(log.write_all(&facts)?)
}

/// How many deliveries a node has written down so far. The table is not asked: under a held transaction that would cost more
/// than what is measured.
#[derive(Debug)]
pub(super) struct Deliveries {
    file: File,
    count: u64,
    /// The start of a line whose end is not there yet.
    rest: Vec<u8>,
}

impl Deliveries {
    pub(super) fn of(log: &Path) -> Result<Self, Failure> {
        Ok(Self {
            file: File::open(log)?,
            count: 0,
            rest: Vec::new(),
        })
    }

    pub(super) fn look(&mut self) -> Result<u64, Failure> {
        const FACT: &[u8] = br#"{"fact":"delivered""#;
        self.file.read_to_end(&mut self.rest)?;
        let complete = self
            .rest
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1);
        let lines = self.rest[..complete].split(|byte| *byte == b'\n');
        self.count += lines.filter(|line| line.starts_with(FACT)).count() as u64;
        self.rest.drain(..complete);
        Ok(self.count)
    }
}
