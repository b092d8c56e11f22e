//! One run: a database, some nodes, a fault, and the judgement.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use outbox::TableName;
use outbox::testing::checker::{Checker, Report};
use outbox::testing::facts::{self, Fact};
use sqlx::Pool;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::crew::Crew;
use crate::failure::{Failure, within};
use crate::fault::Fault;
use crate::ledger::{self, Ledger, connect};
use crate::mode::Mode;
use crate::node::{Config, Workload};
use crate::place::{Place, SmallDisk};
use crate::proxy::Proxy;
use crate::rng::Rng;

/// How long it may take until everything is delivered, once the fault has healed and the producers are quiet (I7).
pub(crate) const RECOVERY_LIMIT: Duration = Duration::from_secs(30);
/// How long a fault may take beyond its time.
const INJECTION_LIMIT: Duration = Duration::from_secs(180);
pub(crate) const GLANCE: Duration = Duration::from_millis(20);

/// What a run is: with the same values it is the same run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) fault: Fault,
    pub(crate) mode: Mode,
    pub(crate) seed: u64,
    pub(crate) time: Duration,
    /// A way in which the engine is to be wrong, to see whether it is noticed.
    pub(crate) broken: Option<String>,
    /// Does everything but the fault itself, where that can be left out: what the measurement says of nothing.
    pub(crate) placebo: bool,
}

impl Plan {
    /// Numbers for a part of the plan.
    pub(crate) fn rng(&self, part: &str, number: u64) -> Rng {
        Rng::of(self.seed, part, number)
    }
}

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) report: Report,
    /// How often the fault happened.
    pub(crate) faults: u64,
    /// How often the machine was too busy for a node to keep its leases.
    pub(crate) stalls: u64,
    pub(crate) recovery: Duration,
    /// Invariants that broke, each in a sentence.
    pub(crate) broken: Vec<String>,
    /// What else is worth saying.
    pub(crate) note: Option<String>,
}

/// What a fault did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Injected {
    pub(crate) faults: u64,
    /// How many nodes each of them hits: so many windows of duplicates are excused.
    pub(crate) nodes_hit: u64,
    pub(crate) broken: Vec<String>,
    pub(crate) note: Option<String>,
}

/// A run under way.
#[derive(Debug)]
pub(crate) struct Scene<'a, D: Ledger> {
    pub(crate) plan: Plan,
    pub(crate) place: &'a mut Place,
    pub(crate) directory: PathBuf,
    /// Of the harness's own: never through a proxy.
    pub(crate) pool: Pool<D>,
    pub(crate) database: String,
    pub(crate) url: String,
    pub(crate) disk: Option<SmallDisk>,
    pub(crate) workload: Workload,
    pub(crate) crew: Crew,
    /// Whatever the nodes are connected through, until they have ended.
    pub(crate) proxies: Vec<Proxy>,
}

impl<'a, D: Ledger> Scene<'a, D> {
    /// Makes the database and its tables.
    pub(crate) async fn set(plan: Plan, place: &'a mut Place, directory: PathBuf) -> Result<Self, Failure> {
        std::fs::create_dir_all(&directory)?;
        let disk = match plan.fault {
            Fault::DiskFull => Some(SmallDisk::create(place.kind, directory.join("disk")).await?),
            _ => None,
        };
        let (database, url) = place.database(disk.as_ref()).await?;
        let workload = plan.workload(place.kind);
        let pool = connect::<D>(&url, 4).await?;
        outbox::migrate::up(&pool, &TableName::default()).await?;
        ledger::create(&pool, workload.keys).await?;
        let crew = Crew::new(&directory, plan.broken.clone());
        Ok(Self {
            plan,
            place,
            directory,
            pool,
            database,
            url,
            disk,
            workload,
            crew,
            proxies: Vec::new(),
        })
    }

    /// Plays it, judges it, and clears up unless something broke.
    pub(crate) async fn play(mut self) -> Result<Verdict, Failure> {
        let mut balance = Balance::watch(&self.pool, &self.workload);
        let limit = INJECTION_LIMIT + self.plan.time * 4;
        let injected = within("the fault", limit, self.inject()).await?;
        within("the producers' end", Duration::from_secs(60), self.crew.quiet()).await?;
        let healed = Instant::now();
        // What is broken on purpose is not waited for so long.
        let limit = if self.plan.is_wrong() {
            self.workload.lease * 4
        } else {
            RECOVERY_LIMIT
        };
        let drained = self.drained(limit).await;
        let recovery = healed.elapsed();
        self.crew.end().await?;
        let unbalanced = balance.end().await;
        let verdict = self.judge(injected, recovery, drained, unbalanced).await?;
        self.pool.close().await;
        if verdict.broken.is_empty() {
            self.place.remove(&self.database, self.disk.as_ref()).await?;
            std::fs::remove_dir_all(&self.directory)?;
        }
        Ok(verdict)
    }

    /// What a node of this run is like.
    pub(crate) fn node(&self, number: u32, url: &str) -> Config {
        Config {
            kind: self.place.kind,
            url: url.to_owned(),
            mode: self.plan.mode,
            seed: self.plan.seed,
            number,
            life: 0,
            log: PathBuf::new(),
            workload: self.workload.clone(),
        }
    }

    /// Waits until nothing is pending. A database that does not answer has something pending.
    pub(crate) async fn drained(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        loop {
            let pending = tokio::time::timeout(Duration::from_secs(5), ledger::pending(&self.pool)).await;
            if let Ok(Ok(0)) = pending {
                return true;
            }
            if Instant::now() > until {
                return false;
            }
            tokio::time::sleep(GLANCE).await;
        }
    }

    async fn judge(
        &self,
        injected: Injected,
        recovery: Duration,
        drained: bool,
        unbalanced: Option<i64>,
    ) -> Result<Verdict, Failure> {
        let mut checker = Checker::default();
        let mut unknown = 0;
        let mut logs: HashSet<_> = self.crew.logs.iter().cloned().collect();
        logs.insert(self.own_log());
        for log in logs.iter().filter(|log| log.exists()) {
            let facts = facts::read(log)?;
            unknown += facts.iter().filter(|fact| matches!(fact, Fact::Unknown { .. })).count();
            checker.add(facts);
        }
        let mut tables = D::tables(&self.pool).await?;
        tables.purged = self.workload.purge;
        let report = checker.report(&tables);

        let mut broken = injected.broken;
        let mut complain = |holds: bool, what: String| {
            if !holds {
                broken.push(what);
            }
        };
        let some = |ids: &[String]| ids.iter().take(5).cloned().collect::<Vec<_>>().join(" ");
        let lost = &report.lost;
        complain(lost.is_empty(), format!("I1: {} lost: {}", lost.len(), some(lost)));
        let phantom = &report.phantom;
        complain(
            phantom.is_empty(),
            format!("I2: {} phantom: {}", phantom.len(), some(phantom)),
        );
        let order = &report.out_of_order;
        complain(
            order.is_empty() || !self.plan.mode.keeps_order(),
            format!("I3: {} out of order: {}", order.len(), some(order)),
        );
        let stalls = self.crew.stalls();
        // A stall would hide what is wrong on purpose; the same workload without that shows that it is not the stall's doing.
        let unplanned = if self.plan.is_wrong() { 0 } else { stalls };
        let excused = (injected.faults * injected.nodes_hit + unplanned) * self.workload.window();
        complain(
            report.duplicates <= excused,
            format!("I4: {} duplicates, of which {excused} are excused", report.duplicates),
        );
        let stale = &report.stale_writes;
        complain(
            stale.is_empty(),
            format!("I6: {} stale writes accepted: {stale:?}", stale.len()),
        );
        complain(drained, "I7: not drained in time".to_owned());
        let unaccounted = &report.unaccounted;
        complain(
            unaccounted.is_empty(),
            format!("I8: {} unaccounted for: {}", unaccounted.len(), some(unaccounted)),
        );
        complain(
            unbalanced.is_none(),
            format!(
                "I8: at some moment {} more were committed than written",
                unbalanced.unwrap_or(0)
            ),
        );
        let misreported = &report.misreported;
        complain(
            misreported.is_empty(),
            format!("the caller was told the wrong outcome: {}", some(misreported)),
        );
        // With lanes most commits on MariaDB are those of settlements, and all the cuts may fall on them.
        let meets_producers = self.plan.fault == Fault::CommitAnswerLost && self.plan.mode == Mode::Unordered;
        complain(
            unknown > 0 || !meets_producers,
            "no caller was told that the outcome is unknown".to_owned(),
        );
        complain(
            report.committed > 0,
            "nothing was committed, so nothing was tested".to_owned(),
        );
        Ok(Verdict {
            report,
            faults: injected.faults,
            stalls,
            recovery,
            broken,
            note: injected.note,
        })
    }

    /// Where the harness writes what it does itself.
    pub(crate) fn own_log(&self) -> PathBuf {
        self.directory.join("harness.log")
    }
}

/// Looks again and again whether as many events are written as are committed (I8): always, not only in the end.
#[derive(Debug)]
struct Balance {
    watching: JoinSet<Option<i64>>,
    stop: watch::Sender<bool>,
}

impl Balance {
    /// Between two looks.
    const EVERY: Duration = Duration::from_millis(100);

    fn watch<D: Ledger>(pool: &Pool<D>, workload: &Workload) -> Self {
        let (stop, mut stopped) = watch::channel(false);
        let mut watching = JoinSet::new();
        // Where rows are purged there is no balance; where there are millions, a look costs more than it tells.
        if !workload.purge && workload.record {
            let pool = pool.clone();
            watching.spawn(async move {
                loop {
                    let last = tokio::time::timeout(Self::EVERY, stopped.wait_for(|stop| *stop))
                        .await
                        .is_ok();
                    match tokio::time::timeout(GLANCE * 50, ledger::unbalanced(&pool)).await {
                        Ok(Ok(difference)) if difference != 0 => return Some(difference),
                        // A database that is away cannot be looked at.
                        _ if last => return None,
                        _ => {}
                    }
                }
            });
        }
        Self { watching, stop }
    }

    /// What was found. `None`: nothing was ever missing.
    async fn end(&mut self) -> Option<i64> {
        self.stop.send_replace(true);
        self.watching.join_next().await?.ok().flatten()
    }
}
