//! Gauges from the table: counted now and then, up to a bound, never per scrape.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::service::{Pulse, in_time};
use crate::store::{Stats, Store};
use crate::telemetry::Telemetry;

/// Rows counted per status; beyond it the gauge says "at least".
const AT_MOST: u64 = 10_000;

pub(crate) struct Gauges {
    pub(crate) every: Duration,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) telemetry: Arc<Telemetry>,
}

impl Gauges {
    /// Runs until `soft` is cancelled.
    pub(crate) async fn run(self, soft: CancellationToken, pulse: Pulse) {
        let mut before = Stats::default();
        loop {
            match in_time("reading the state of the outbox", self.store.stats(AT_MOST)).await {
                Ok(stats) => {
                    pulse.beat();
                    self.telemetry.stats(&stats, &before);
                    before = stats;
                }
                Err(error) => tracing::error!(%error, "the gauges could not be read"),
            }
            tokio::select! {
                () = soft.cancelled() => return,
                () = tokio::time::sleep(self.every) => {}
            }
        }
    }
}
