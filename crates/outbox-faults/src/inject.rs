//! The faults at work: each starts the nodes, makes things go wrong for a while, and sees to it that they heal.

mod kills;
mod servers;

use std::time::Duration;

use crate::failure::Failure;
use crate::fault::Fault;
use crate::ledger::Ledger;
use crate::node::Workload;
use crate::scene::{Injected, Plan, Scene};

/// How many nodes share the table, unless a fault needs another number.
pub(crate) const NODES: u32 = 2;

impl Plan {
    /// What the nodes do in this run.
    pub(crate) fn workload(&self) -> Workload {
        let usual = Workload::default();
        match self.fault {
            Fault::KillInPurge => Workload { purge: true, ..usual },
            Fault::Poison => Workload { poison: true, ..usual },
            Fault::Backlog | Fault::HeldTransaction => Workload {
                producers: 0,
                listener: Duration::ZERO,
                settle_batch: 500,
                poll_batch: 500,
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
            _ => self.nodes_kill_themselves().await,
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
