//! The engine: the background tasks of one outbox, started together and stopped in the right order.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::alarm::Alarm;
use crate::dispatch::Dispatcher;
use crate::error::Error;
use crate::service::{Health, Pulse, Services};
use crate::store::{Lease, News, Store};

/// How long a shutdown, at its end, tries to give events back to a database that does not answer.
const GIVE_BACK_TIMEOUT: Duration = Duration::from_secs(2);

/// What a shutdown did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shutdown {
    /// Events that were given back, for another node to deliver.
    pub released: u64,
    /// Everything that was queued has been delivered and written in time.
    pub drained: bool,
}

/// How to stop, each step a token of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stops {
    /// No more intake: poller, purger and their like end.
    pub(crate) intake: CancellationToken,
    /// Listeners get no more time.
    pub(crate) workers: CancellationToken,
    /// All workers have ended: the settler writes what it has, and ends.
    pub(crate) settler: CancellationToken,
    /// All outcomes are written: lanes are given up.
    pub(crate) lanes: CancellationToken,
    /// No more time for anything.
    pub(crate) hard: CancellationToken,
}

impl Stops {
    pub(crate) fn all(&self) {
        for token in [&self.intake, &self.workers, &self.settler, &self.lanes, &self.hard] {
            token.cancel();
        }
    }
}

/// The background tasks of an outbox. Dropped, they end without waiting for anything; leases end by themselves.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) services: Services,
    pub(crate) stops: Stops,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) delivery: Option<DeliveryParts>,
    pub(crate) drain_timeout: Duration,
}

/// What a node that delivers has, and one that only writes has not.
#[derive(Debug)]
pub(crate) struct DeliveryParts {
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) alarm: Arc<Alarm>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stops.all();
    }
}

impl Engine {
    pub(crate) fn health(&self) -> Health {
        self.services.health()
    }

    /// Stops intake, drains, writes the last outcomes, and gives the rest back.
    pub(crate) async fn shutdown(&self) -> Result<Shutdown, Error> {
        let started = Instant::now();
        let mut report = Shutdown {
            released: 0,
            drained: true,
        };
        self.stops.intake.cancel();
        if let Some(parts) = &self.delivery {
            parts.dispatcher.queues.close();
            // Listeners get most of the time, what comes after them the rest.
            let listeners_until = started + self.drain_timeout.mul_f64(0.8);
            let idle = self
                .condition(listeners_until, || !self.services.is_running("workers"))
                .await;
            if !idle {
                report.drained = false;
                self.stops.workers.cancel();
            }
            let soon = Instant::now() + Duration::from_secs(1);
            self.condition(soon, || !self.services.is_running("workers")).await;
            // What it is just claiming it gives back, once it has heard of it.
            let claimed_until = (started + self.drain_timeout).max(Instant::now() + Duration::from_secs(1));
            self.condition(claimed_until, || !self.services.is_running("poller"))
                .await;
            self.stops.settler.cancel();
            let settled_until = (started + self.drain_timeout).max(Instant::now() + Duration::from_millis(200));
            report.drained &= self
                .condition(settled_until, || !self.services.is_running("settler"))
                .await;
            self.stops.lanes.cancel();
            let left_until = Instant::now() + GIVE_BACK_TIMEOUT;
            self.condition(left_until, || !self.services.is_running("lane keeper"))
                .await;
        }
        self.stops.all();
        // A listener that blocks its thread cannot be ended; it is not waited for.
        if tokio::time::timeout(GIVE_BACK_TIMEOUT, self.services.ended())
            .await
            .is_err()
        {
            tracing::error!("a background task of the outbox does not end; does a listener block its thread?");
        }
        if let Some(parts) = &self.delivery {
            parts.dispatcher.queues.drain();
            let drained = parts.dispatcher.in_flight.drain();
            let mut leases: Vec<Lease> = drained.leases;
            leases.extend(parts.alarm.drain_unconfirmed());
            report.drained &= leases.is_empty() && drained.of_lanes == 0;
            report.released = drained.of_lanes;
            report.released += match tokio::time::timeout(GIVE_BACK_TIMEOUT, self.give_back(&leases)).await {
                Ok(released) => released?,
                Err(_) => {
                    return Err(Error::Timeout {
                        operation: "giving events back",
                        limit: GIVE_BACK_TIMEOUT,
                    });
                }
            };
        }
        Ok(report)
    }

    /// Releases leases, and tells other nodes.
    async fn give_back(&self, leases: &[Lease]) -> Result<u64, Error> {
        let mut released = 0;
        for batch in leases.chunks(1000) {
            released += self.store.release(batch).await?;
        }
        if released > 0 {
            tracing::info!(released, "gave events back at the shutdown");
            self.store.notify(News::Events).await?;
        }
        Ok(released)
    }

    async fn condition(&self, until: Instant, holds: impl Fn() -> bool) -> bool {
        while !holds() {
            if tokio::time::timeout_at(until, self.services.changed()).await.is_err() {
                return holds();
            }
        }
        true
    }
}

/// The workers: `count` of them, until the queues are closed and empty, or `stop` is cancelled.
pub(crate) async fn workers(dispatcher: Arc<Dispatcher>, count: usize, stop: CancellationToken, pulse: Pulse) {
    let mut workers = JoinSet::new();
    for _ in 0..count {
        let dispatcher = Arc::clone(&dispatcher);
        workers.spawn(async move { dispatcher.work().await });
    }
    loop {
        pulse.beat();
        tokio::select! {
            ended = workers.join_next() => match ended {
                None => return,
                Some(Ok(())) => {}
                // Listeners' panics are caught: this is a fault of our own, and must be seen.
                Some(Err(error)) => std::panic::resume_unwind(Box::new(format!("a worker died: {error}"))),
            },
            () = stop.cancelled() => return workers.shutdown().await,
            () = tokio::time::sleep(Pulse::INTERVAL) => {}
        }
    }
}
