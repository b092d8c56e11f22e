//! Keeping leases: what is queued, being delivered or being settled is renewed well before its lease ends.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::dispatch::Dispatcher;
use crate::error::Error;
use crate::service::{Pulse, in_time};
use crate::store::Store;

/// Leases per statement.
const BATCH: usize = 1000;

pub(crate) struct Keeper {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    /// Lets go of what stays in flight longer than this.
    pub(crate) ttl: Option<Duration>,
}

impl Keeper {
    /// Runs until `hard` is cancelled: leases are kept while a shutdown drains.
    pub(crate) async fn run(self, hard: CancellationToken, pulse: Pulse) {
        let every = self.dispatcher.lease / 6;
        while !hard.is_cancelled() {
            pulse.beat();
            tokio::select! {
                () = hard.cancelled() => return,
                () = tokio::time::sleep(every.min(Pulse::INTERVAL)) => {}
            }
            self.report_depths();
            if let Err(error) = self.run_once().await {
                tracing::error!(%error, "leases could not be renewed");
            }
        }
    }

    /// Every node has a keeper, so it is the one to tell how full the node is.
    fn report_depths(&self) {
        let (hot, cold) = self.dispatcher.queues.depths();
        let telemetry = &self.dispatcher.telemetry;
        telemetry.hot_depth.set(hot as f64);
        telemetry.cold_depth.set(cold as f64);
        telemetry.in_flight.set(self.dispatcher.in_flight.len() as f64);
    }

    /// Renews what ends within half a lease.
    pub(crate) async fn run_once(&self) -> Result<(), Error> {
        let lease = self.dispatcher.lease;
        let ending = self
            .dispatcher
            .in_flight
            .ending_before(Instant::now() + lease / 2, self.ttl);
        for batch in ending.chunks(BATCH) {
            // Measured before the database starts the lease by its own clock, so ours ends first.
            let deadline = Instant::now() + lease;
            let renewed = in_time("renewing leases", self.store.renew(batch, lease)).await?;
            let lost = self.dispatcher.in_flight.renewed(batch, &renewed, deadline);
            if lost > 0 {
                self.dispatcher.telemetry.leases_lost.increment(lost);
                tracing::warn!(lost, "leases were lost to other nodes");
            }
        }
        Ok(())
    }
}
