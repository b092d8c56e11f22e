//! Something is wrong with the nodes themselves: they are stalled, their clocks are wrong, their connections are taken,
//! their events are poison, or they fight over a file.

use std::time::{Duration, Instant};

use outbox::TableName;
use outbox::store::{Driver, Filter, Page};
use outbox::testing::facts::{Fact, Log};
use rustix::process::Signal;

use super::NODES;
use crate::failure::Failure;
use crate::fault::Kind;
use crate::ledger::{Ledger, script};
use crate::node::Workload;
use crate::scene::{GLANCE, Injected, Scene};

/// How many rows the harness writes itself, as another program would.
const FOREIGN_ROWS: u32 = 20;

impl<D: Ledger> Scene<'_, D> {
    /// Stops a node for longer than its lease, and lets it go on as if nothing had happened.
    pub(crate) async fn nodes_are_stalled(&mut self) -> Result<Injected, Failure> {
        self.start_nodes().await?;
        let until = Instant::now() + self.plan.time;
        let mut rng = self.plan.rng("stall", 0);
        let mut faults = 0;
        while faults == 0 || Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(rng.between(100, 400))).await;
            let victim = usize::try_from(rng.between(0, u64::from(NODES) - 1)).unwrap_or(0);
            let stalled = self.workload.lease * u32::try_from(rng.between(12, 22)).unwrap_or(15) / 10;
            self.crew.nodes[victim].signal(Signal::STOP)?;
            tokio::time::sleep(stalled).await;
            self.crew.nodes[victim].signal(Signal::CONT)?;
            faults += 1;
        }
        Ok(Injected {
            faults,
            nodes_hit: 1,
            ..Injected::default()
        })
    }

    /// One application is ten minutes ahead, the other ten behind. Nothing is to come of it, not even a duplicate.
    pub(crate) async fn clocks_disagree(&mut self) -> Result<Injected, Failure> {
        for (number, skew_minutes) in [(0, 10), (1, -10)] {
            let mut config = self.node(number, &self.url);
            config.workload = Workload {
                skew_minutes,
                ..config.workload
            };
            self.crew.start(config, None)?;
        }
        self.crew.all_ready().await?;
        tokio::time::sleep(self.plan.time).await;
        let store = <D as outbox::Backend>::store(&self.pool, &TableName::default());
        let found = store.find(&Filter::all(), Page::first(500)).await?;
        let skewed = found.iter().filter(|row| {
            let apart = row.event.as_ref().map(|event| event.occurred_at() - row.created_at);
            apart.is_ok_and(|apart| apart.num_minutes().abs() >= 9)
        });
        let mut broken = Vec::new();
        if skewed.count() == 0 {
            broken.push("no event has a wrong time, so nothing was tested".to_owned());
        }
        Ok(Injected {
            faults: 1,
            nodes_hit: 0,
            broken,
            note: None,
        })
    }

    /// The applications hold all of their connections. What another program writes is delivered all the same.
    pub(crate) async fn pools_are_exhausted(&mut self) -> Result<Injected, Failure> {
        self.start_nodes().await?;
        let until = Instant::now() + self.plan.time;
        let mut rng = self.plan.rng("pool", 0);
        let (mut faults, mut broken) = (0, Vec::new());
        while faults == 0 || Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(rng.between(100, 300))).await;
            let order = format!("hold {}", 4 * self.workload.lease.as_millis());
            for node in &mut self.crew.nodes {
                node.say(&order).await?;
            }
            for node in &mut self.crew.nodes {
                node.wait_for("held").await?;
            }
            let tag = format!("foreign.{faults}");
            self.write_rows(&tag, false).await?;
            let waited = Instant::now();
            while self.pending_of(&tag).await? > 0 {
                if waited.elapsed() > 3 * self.workload.lease {
                    broken.push("I7: nothing is delivered while the application holds its connections".to_owned());
                    break;
                }
                tokio::time::sleep(GLANCE).await;
            }
            for node in &mut self.crew.nodes {
                node.wait_for("let-go").await?;
            }
            faults += 1;
        }
        Ok(Injected {
            faults,
            nodes_hit: u64::from(NODES),
            broken,
            note: None,
        })
    }

    /// Events that nobody can handle, from the producers; and rows that are none, from another program.
    pub(crate) async fn events_are_poison(&mut self) -> Result<Injected, Failure> {
        self.start_nodes().await?;
        let started = Instant::now();
        self.write_rows("foreign", true).await?;
        tokio::time::sleep(self.plan.time.saturating_sub(started.elapsed())).await;
        Ok(Injected {
            faults: u64::from(FOREIGN_ROWS),
            nodes_hit: 0,
            ..Injected::default()
        })
    }

    /// Holds the lock of the file again and again, as a third process that does not know what it does.
    pub(crate) async fn file_is_busy(&mut self) -> Result<Injected, Failure> {
        self.start_nodes().await?;
        let until = Instant::now() + self.plan.time;
        let mut rng = self.plan.rng("busy", 0);
        let mut faults = 0;
        let statements = <D as Driver>::statements(&TableName::default());
        while Instant::now() < until {
            let tx = match <D as Driver>::begin(&self.pool, &statements).await {
                Ok(tx) => tx,
                // They hold it themselves.
                Err(_) => continue,
            };
            tokio::time::sleep(Duration::from_millis(rng.between(20, 250))).await;
            tx.rollback().await?;
            faults += 1;
            tokio::time::sleep(Duration::from_millis(rng.between(20, 100))).await;
        }
        Ok(Injected {
            faults,
            nodes_hit: u64::from(NODES),
            ..Injected::default()
        })
    }

    /// Writes rows as a program in another language might: good ones, or such as nobody can decode.
    async fn write_rows(&self, tag: &str, poison: bool) -> Result<(), Failure> {
        let log = Log::append(&self.own_log())?;
        let headers = if poison { "'[1]'" } else { "null" };
        let (mut events, mut business, mut intents, mut outcomes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for number in 0..FOREIGN_ROWS {
            let id = format!("{tag}.{number}");
            events.push(format!("('{id}', 'Plain', '{{}}', {headers})"));
            business.push(format!("('{id}', -1, 0)"));
            intents.push(Fact::Intent {
                id: id.clone(),
                key: None,
                place: None,
                poison,
            });
            outcomes.push(Fact::committed(id));
        }
        log.write_all(&intents)?;
        let begin = match self.place.kind {
            Kind::Sqlite => "begin immediate",
            _ => "begin",
        };
        let sql = format!(
            "{begin};
             insert into faults_ledger (event_id, k, n) values {};
             insert into outbox_event (event_id, event_type, payload, headers) values {};
             commit",
            business.join(", "),
            events.join(", ")
        );
        script(&self.pool, sql).await?;
        Ok(log.write_all(&outcomes)?)
    }

    async fn pending_of(&self, tag: &str) -> Result<i64, Failure> {
        let sql = format!("select count(*) from outbox_event where status in (0, 2) and event_id like '{tag}.%'");
        Ok(D::number(&self.pool, sql).await?)
    }
}
