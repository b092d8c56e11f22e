//! The network between a node and its database is cut.

use std::time::{Duration, Instant};

use super::NODES;
use crate::failure::Failure;
use crate::ledger::Ledger;
use crate::place::through;
use crate::proxy::{Cut, Proxy};
use crate::scene::{Injected, Scene};

impl<D: Ledger> Scene<'_, D> {
    async fn proxy(&self) -> Result<(Proxy, String), Failure> {
        let Some(port) = self.place.port() else {
            return Err(Failure::NoPort);
        };
        let proxy = Proxy::start(port).await?;
        let url = through(&self.url, port, proxy.port());
        Ok((proxy, url))
    }

    /// Cuts a connection at a COMMIT, again and again: half of the time before it arrives, half after it was applied.
    pub(crate) async fn commits_go_unanswered(&mut self) -> Result<Injected, Failure> {
        let (proxy, url) = self.proxy().await?;
        for number in 0..NODES {
            let config = self.node(number, &url);
            self.crew.start(config, None)?;
        }
        self.crew.all_ready().await?;
        let until = Instant::now() + self.plan.time;
        let mut rng = self.plan.rng("commits", 0);
        while Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(rng.between(50, 250))).await;
            proxy.cut_next_commit(Some(if rng.percent(50) {
                Cut::BeforeCommit
            } else {
                Cut::AfterCommit
            }));
        }
        proxy.cut_next_commit(None);
        let faults = proxy.cuts();
        self.proxies.push(proxy);
        Ok(Injected {
            faults,
            nodes_hit: u64::from(NODES),
            ..Injected::default()
        })
    }

    /// Cuts one node off for longer than its lease, and lets it come back, late writes and all.
    pub(crate) async fn one_node_is_cut_off(&mut self) -> Result<Injected, Failure> {
        let (proxy, url) = self.proxy().await?;
        let (near, far) = (self.node(0, &self.url), self.node(1, &url));
        self.crew.start(near, None)?;
        self.crew.start(far, None)?;
        self.crew.all_ready().await?;
        let until = Instant::now() + self.plan.time;
        let mut rng = self.plan.rng("partition", 0);
        let mut faults = 0;
        while faults == 0 || Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(rng.between(200, 500))).await;
            let away = self.workload.lease * u32::try_from(rng.between(13, 25)).unwrap_or(20) / 10;
            proxy.set_up(false);
            tokio::time::sleep(away).await;
            proxy.set_up(true);
            faults += 1;
        }
        self.proxies.push(proxy);
        Ok(Injected {
            faults,
            nodes_hit: 1,
            ..Injected::default()
        })
    }
}
