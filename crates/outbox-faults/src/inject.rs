//! The faults at work: each starts the nodes, makes things go wrong for a while, and sees to it that they heal.

mod disk;
mod held;
mod kills;
mod network;
mod nodes;
mod servers;
mod volume;

use std::time::Duration;

use crate::failure::Failure;
use crate::fault::{Fault, Kind};
use crate::ledger::Ledger;
use crate::node::Workload;
use crate::scene::{Injected, Plan, Scene};

/// Not a way to be wrong, but the workload of those that are: what they are noticed by must not be noticed here.
const CONTROL: &str = "nothing";
/// The same, of the one that needs slow listeners.
const CONTROL_SLOW: &str = "nothing-slow";

/// How many nodes share the table, unless a fault needs another number.
pub(crate) const NODES: u32 = 2;

impl Plan {
    /// Whether the engine is wrong on purpose.
    pub(crate) fn is_wrong(&self) -> bool {
        self.broken
            .as_deref()
            .is_some_and(|way| way != CONTROL && way != CONTROL_SLOW)
    }

    /// What the nodes do in this run.
    pub(crate) fn workload(&self, kind: Kind) -> Workload {
        let mut usual = Workload::default();
        if kind == Kind::Sqlite {
            // One writer at a time, and whoever waits for the lock waits by chance: with as many producers as a server
            // takes, leases would end while their renewal waits.
            usual.every *= 4;
            usual.lease *= 2;
        }
        if let Some(broken) = &self.broken {
            // Most ways to be wrong are in what is read from the table.
            usual.hot_path = broken == "hot-before-commit";
            if broken == "lost-renewal" || broken == CONTROL_SLOW {
                // Longer than a lease, and few enough to be delivered in time by whoever is right.
                usual.listener = usual.lease * 2;
                usual.every = Duration::from_millis(500);
            }
        }
        match self.fault {
            // Something is to be under way when it happens.
            Fault::WorkerStalled | Fault::Partition => Workload {
                listener: Duration::from_millis(150),
                workers: 16,
                ..usual
            },
            Fault::KillInPurge => Workload { purge: true, ..usual },
            Fault::Poison => Workload { poison: true, ..usual },
            Fault::Backlog | Fault::HeldTransaction => Workload {
                producers: 0,
                keys: 1000,
                listener: Duration::ZERO,
                settle_batch: 500,
                poll_batch: 500,
                record: false,
                ..usual
            },
            _ => usual,
        }
    }
}

impl<D: Ledger> Scene<'_, D> {
    /// Starts the nodes and does what the plan says, for as long as it says.
    pub(crate) async fn inject(&mut self) -> Result<Injected, Failure> {
        match self.plan.fault {
            Fault::DatabaseRestart | Fault::DatabaseKill => self.server_goes_down().await,
            Fault::ConnectionsKilled => self.connections_are_killed().await,
            Fault::CommitAnswerLost => self.commits_go_unanswered().await,
            Fault::Partition => self.one_node_is_cut_off().await,
            Fault::WorkerStalled => self.nodes_are_stalled().await,
            Fault::ClockSkew => self.clocks_disagree().await,
            Fault::PoolExhausted => self.pools_are_exhausted().await,
            Fault::Poison => self.events_are_poison().await,
            Fault::SqliteBusy => self.file_is_busy().await,
            Fault::DiskFull => self.disk_fills_up().await,
            Fault::Backlog => self.backlog_is_drained().await,
            Fault::HeldTransaction => self.transaction_is_held().await,
            Fault::KillBeforeInsert
            | Fault::KillAfterInsert
            | Fault::KillAfterCommit
            | Fault::KillInListener
            | Fault::KillAfterListener
            | Fault::KillInSettle
            | Fault::KillInPurge => self.nodes_kill_themselves().await,
        }
    }

    /// Starts the usual nodes, on the database itself.
    pub(crate) async fn start_nodes(&mut self) -> Result<(), Failure> {
        for number in 0..NODES {
            let config = self.node(number, &self.url);
            self.crew.start(config, None)?;
        }
        self.crew.all_ready().await
    }
}
