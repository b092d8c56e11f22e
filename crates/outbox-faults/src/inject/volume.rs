//! Much to deliver: memory stays bounded, and the rate stays what it is while somebody holds a transaction open.

use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

use outbox::testing::facts::{Fact, Log};

use crate::failure::Failure;
use crate::fault::Kind;
use crate::ledger::{Ledger, script};
use crate::scene::{GLANCE, Injected, Scene};

/// Events of a backlog, for each second of a run.
const PER_SECOND: u64 = 5_000;
/// Events that are loaded and drained at once while a rate is measured.
const CHUNK: u64 = 10_000;
/// How much a node may grow while it drains, whatever the backlog (I5).
const GROWTH_LIMIT_KIB: u64 = 64 * 1024;
/// No drain of a part may take longer.
const DRAIN_LIMIT: Duration = Duration::from_secs(600);
/// From here on a transaction is held for long enough to judge the rate; before it, only a collapse is noticed.
const LONG: Duration = Duration::from_secs(30);

impl<D: Ledger> Scene<'_, D> {
    async fn start_one(&mut self) -> Result<Deliveries, Failure> {
        let config = self.node(0, &self.url);
        self.crew.start(config, None)?;
        self.crew.all_ready().await?;
        Ok(Deliveries {
            file: File::open(&self.crew.logs[0])?,
            count: 0,
            rest: Vec::new(),
        })
    }

    /// Loads a backlog, all at once, and watches the memory of the node that drains it.
    pub(crate) async fn backlog_is_drained(&mut self) -> Result<Injected, Failure> {
        let mut deliveries = self.start_one().await?;
        let at_rest = self.crew.nodes[0].resident();
        let events = PER_SECOND * self.plan.time.as_secs();
        self.load(0, events).await?;
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

    /// Measures the rate of a drain, without and with a transaction held open elsewhere, and without it again.
    pub(crate) async fn transaction_is_held(&mut self) -> Result<Injected, Failure> {
        let mut deliveries = self.start_one().await?;
        let mut loaded = 0;
        let aside = self.plan.time / 4;
        // What is compiled, cached and planned is so from here on.
        self.rate(Duration::ZERO, &mut loaded, &mut deliveries).await?;
        let before = self.rate(aside, &mut loaded, &mut deliveries).await?;
        let mut connection = self.pool.acquire().await?.detach();
        let hold = "begin isolation level repeatable read; select count(*) from faults_key";
        // A transaction that has read nothing holds nothing back.
        let begin = if self.plan.placebo { "begin" } else { hold };
        D::script(&mut connection, begin.to_owned()).await?;
        let held = self.rate(self.plan.time, &mut loaded, &mut deliveries).await?;
        D::script(&mut connection, "commit".to_owned()).await?;
        let after = self.rate(aside, &mut loaded, &mut deliveries).await?;
        let ratio = held / ((before + after) / 2.0);
        let least = if self.plan.time >= LONG { 0.9 } else { 0.5 };
        let mut broken = Vec::new();
        if ratio < least {
            broken.push(format!("the rate falls to {ratio:.2} of what it is, less than {least}"));
        }
        Ok(Injected {
            faults: 1,
            nodes_hit: 0,
            broken,
            note: Some(format!(
                "{held:.0}/s with a transaction held for {:?}, {before:.0}/s before and {after:.0}/s after: {ratio:.2}",
                self.plan.time
            )),
        })
    }

    /// Loads and drains for so long, at least once. Events per second, without the loading.
    async fn rate(&self, time: Duration, loaded: &mut u64, deliveries: &mut Deliveries) -> Result<f64, Failure> {
        let started = Instant::now();
        let (mut events, mut draining) = (0, Duration::ZERO);
        while events == 0 || started.elapsed() < time {
            self.load(*loaded, CHUNK).await?;
            *loaded += CHUNK;
            let committed = Instant::now();
            while deliveries.look()? < *loaded {
                if committed.elapsed() > DRAIN_LIMIT {
                    return Err(Failure::too_slow("draining", DRAIN_LIMIT));
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            draining += committed.elapsed();
            events += CHUNK;
        }
        Ok(events as f64 / draining.as_secs_f64())
    }

    /// Writes events in bulk, in one transaction, numbered from `first` on.
    async fn load(&self, first: u64, events: u64) -> Result<(), Failure> {
        let log = Log::append(&self.own_log())?;
        let keys = self.workload.keys.unsigned_abs();
        let last = first + events;
        let facts: Vec<Fact> = (first + 1..=last)
            .map(|n| Fact::keyed_intent(format!("bulk.{n}"), (n % keys).to_string(), n))
            .collect();
        log.write_all(&facts)?;
        let (begin, numbers, id, key, payload) = match self.place.kind {
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
        script(&self.pool, sql).await?;
        let facts: Vec<Fact> = (first + 1..=last)
            .map(|n| Fact::committed(format!("bulk.{n}")))
            .collect();
        Ok(log.write_all(&facts)?)
    }
}

/// How many deliveries a node has written down so far. The table is not asked: under a held transaction that would cost more
/// than what is measured.
#[derive(Debug)]
struct Deliveries {
    file: File,
    count: u64,
    /// The start of a line whose end is not there yet.
    rest: Vec<u8>,
}

impl Deliveries {
    fn look(&mut self) -> Result<u64, Failure> {
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
