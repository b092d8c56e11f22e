//! Nodes that kill themselves at a fail point, again and again.

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::NODES;
use crate::failure::Failure;
use crate::fault::Fault;
use crate::ledger::{Ledger, script};
use crate::scene::{GLANCE, Injected, Scene};

/// A run without a kill tests nothing: it goes on until there was one, but not forever.
const NO_KILL_LIMIT: Duration = Duration::from_secs(30);

impl<D: Ledger> Scene<'_, D> {
    pub(crate) async fn nodes_kill_themselves(&mut self) -> Result<Injected, Failure> {
        for number in 0..NODES {
            let config = self.node(number, &self.url);
            let fail_point = self.fail_point(number, 0);
            self.crew.start(config, Some(&fail_point))?;
        }
        let started = Instant::now();
        let mut kills = 0;
        while started.elapsed() < self.plan.time || (kills == 0 && started.elapsed() < NO_KILL_LIMIT) {
            kills += self.replace_the_dead(true).await?;
            tokio::time::sleep(GLANCE).await;
        }
        for at in 0..self.crew.nodes.len() {
            // One that dies before it has heard of it is replaced, by one that was never armed and says the same.
            loop {
                self.crew.nodes[at].say("disarm").await?;
                match self.crew.nodes[at].wait_for("disarmed").await {
                    Ok(()) => break,
                    Err(Failure::NodeEnded { .. }) => kills += self.replace_the_dead(false).await?,
                    Err(failure) => return Err(failure),
                }
            }
        }
        let broken = if kills == 0 {
            vec!["the fail point was never reached, so nothing was tested".to_owned()]
        } else {
            Vec::new()
        };
        Ok(Injected {
            faults: kills,
            nodes_hit: 1,
            broken,
            note: None,
        })
    }

    /// Where a node dies in one of its lives.
    fn fail_point(&self, number: u32, life: u32) -> String {
        let point = self.plan.fault.point().unwrap_or_default();
        let mut rng = self.plan.rng(point, u64::from(number) << 32 | u64::from(life));
        let (most, delay) = match self.plan.fault {
            // Within the statement that follows, or before it.
            Fault::KillInSettle => (12, rng.between(0, 1500)),
            Fault::KillInPurge => (6, rng.between(0, 1500)),
            _ => (25, 0),
        };
        format!("{point}:{}:{delay}", rng.between(1, most))
    }

    async fn replace_the_dead(&mut self, armed: bool) -> Result<u64, Failure> {
        let mut dead = 0;
        for at in 0..self.crew.nodes.len() {
            let node = &mut self.crew.nodes[at];
            let Some(status) = node.status()? else {
                continue;
            };
            if status.signal() != Some(Signal::KILL.as_raw()) {
                return Err(node.ended(status));
            }
            dead += 1;
            let life = node.life() + 1;
            if self.plan.fault == Fault::KillInPurge {
                // The right to purge outlives its holder by ten minutes: nobody would reach the point again.
                script(&self.pool, "delete from outbox_event_lease".to_owned()).await?;
            }
            let fail_point = self.fail_point(u32::try_from(at).unwrap_or(0), life);
            self.crew.restart(at, armed.then_some(&fail_point))?;
        }
        Ok(dead)
    }
}
