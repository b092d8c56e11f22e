//! Settling: outcomes are gathered and written in batches, one statement per kind. This is where the throughput is.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::alarm::Alarm;
use crate::dispatch::{Admission, Dispatcher};
use crate::error::Error;
use crate::failpoint::fail_point;
use crate::service::{Pulse, in_time};
use crate::store::{Lease, Ownership, Settlement, Store, Verdict};

/// What became of an event, on its way to its row.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) admission: Admission,
    pub(crate) verdict: Verdict,
}

#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The most outcomes of one write.
    pub(crate) batch: usize,
    /// How long an outcome waits for others, while other deliveries are under way.
    pub(crate) linger: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            batch: 500,
            linger: Duration::from_millis(1),
        }
    }
}

pub(crate) struct Settler {
    pub(crate) config: Config,
    pub(crate) owner: String,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) alarm: Arc<Alarm>,
    pub(crate) outcomes: mpsc::Receiver<Outcome>,
}

impl Settler {
    /// Runs until `soft` is cancelled and every outcome is written; gives up on what is not when `hard` is.
    pub(crate) async fn run(mut self, soft: CancellationToken, hard: CancellationToken, pulse: Pulse) {
        let mut batch = Vec::with_capacity(self.config.batch);
        loop {
            pulse.beat();
            batch.clear();
            tokio::select! {
                biased;
                taken = self.outcomes.recv_many(&mut batch, self.config.batch) => {
                    if taken == 0 {
                        return;
                    }
                }
                () = soft.cancelled() => {
                    // All who send have ended: take what is left.
                    self.outcomes.close();
                    continue;
                }
                () = tokio::time::sleep(Pulse::INTERVAL) => continue,
            }
            self.linger(&mut batch).await;
            self.flush(&mut batch, &hard, &pulse).await;
        }
    }

    /// Waits a little for more, unless the batch is full or nothing else is under way.
    async fn linger(&mut self, batch: &mut Vec<Outcome>) {
        let until = Instant::now() + self.config.linger;
        while batch.len() < self.config.batch && self.dispatcher.in_flight.len() > batch.len() {
            let room = self.config.batch - batch.len();
            match tokio::time::timeout_at(until, self.outcomes.recv_many(batch, room)).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }

    /// Writes a batch, however often it takes: no listener is run again for want of a write. The leases are renewed
    /// meanwhile, like those of all that is in flight.
    async fn flush(&mut self, batch: &mut Vec<Outcome>, hard: &CancellationToken, pulse: &Pulse) {
        let telemetry = Arc::clone(&self.dispatcher.telemetry);
        let mut wait = Duration::from_millis(50);
        let stale = loop {
            telemetry.settle_batch.record(batch.len() as f64);
            let error = tokio::select! {
                written = in_time("settling events", self.write(batch)) => match written {
                    Ok(stale) => break stale,
                    Err(error) => error,
                },
                () = hard.cancelled() => return self.give_up(batch),
            };
            telemetry.settle_errors.increment(1);
            tracing::error!(%error, outcomes = batch.len(), ?wait, "outcomes could not be written, trying again");
            if !error.is_retryable() && self.isolate(batch).await {
                break true;
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = hard.cancelled() => return self.give_up(batch),
            }
            pulse.beat();
            wait = (wait * 2).min(Duration::from_secs(5));
            while batch.len() < self.config.batch
                && let Ok(outcome) = self.outcomes.try_recv()
            {
                batch.push(outcome);
            }
        };
        // Only now: as long as the row looks pending, nobody here may take it again.
        let again = self
            .dispatcher
            .in_flight
            .settled(batch.iter().map(|outcome| outcome.admission));
        if !again.is_empty() {
            self.alarm.look_up(again);
        }
        for outcome in batch {
            let (delivered, again) = match &outcome.verdict {
                Verdict::Done | Verdict::DoneAndDeleted | Verdict::Dead { .. } => (true, None),
                Verdict::DeadAndParked { .. } => (false, None),
                Verdict::Retry { after, .. } | Verdict::Defer { after, .. } => (false, Some(*after)),
            };
            // Which of them were refused is not known: their lines are read again.
            self.dispatcher.left(outcome.admission, delivered && !stale);
            // Only now: a pass that begins before would leave the line out, and nobody would ring again.
            if let Some(after) = again {
                self.alarm.ring_after(after);
            }
        }
        if stale {
            self.alarm.ring();
        }
    }

    /// Writes a refused batch one by one. True if any could be written: then the others are at fault themselves, and are
    /// let go. Otherwise it is the database's fault, and time may mend it.
    async fn isolate(&self, batch: &[Outcome]) -> bool {
        let mut refused = Vec::new();
        for outcome in batch {
            if let Err(error) = in_time("settling events", self.write(std::slice::from_ref(outcome))).await {
                refused.push((outcome.admission.seq, error));
            }
        }
        if refused.len() == batch.len() {
            return false;
        }
        for (seq, error) in refused {
            tracing::error!(%error, seq, "an outcome cannot be written; the event will be delivered again");
        }
        true
    }

    fn give_up(&self, batch: &[Outcome]) {
        let outcomes = batch.len();
        tracing::error!(
            outcomes,
            "outcomes could not be written before the end; those events will be delivered again"
        );
    }

    /// Writes outcomes, each by the right that its event has at this moment. True if some were refused.
    async fn write(&self, batch: &[Outcome]) -> Result<bool, Error> {
        let (of_lanes, of_rows): (Vec<&Outcome>, Vec<&Outcome>) = batch.iter().partition(|outcome| {
            self.dispatcher
                .in_flight
                .settle(outcome.admission)
                .is_some_and(|right| right.of_lane)
        });
        fail_point!("in-settle");
        let stale = self.write_of_lanes(&of_lanes).await? + self.write_of_rows(of_rows).await?;
        if stale > 0 {
            self.dispatcher.telemetry.settle_stale.increment(stale);
            tracing::warn!(
                stale,
                "outcomes were refused, because somebody else has taken the events since"
            );
        }
        Ok(stale > 0)
    }

    fn settlements(&self, batch: &[&Outcome]) -> Vec<Settlement> {
        let settlement = |outcome: &&Outcome| {
            Some(Settlement {
                lease: self.dispatcher.in_flight.settle(outcome.admission)?.lease,
                verdict: outcome.verdict.clone(),
            })
        };
        batch.iter().filter_map(settlement).collect()
    }

    async fn write_of_lanes(&self, batch: &[&Outcome]) -> Result<u64, Error> {
        let member = self.dispatcher.member();
        let settlements = self.settlements(batch);
        let settled = self
            .store
            .settle(&member, self.dispatcher.ownership, &settlements)
            .await?;
        Ok(settled.stale + (batch.len() - settlements.len()) as u64)
    }

    async fn write_of_rows(&self, mut batch: Vec<&Outcome>) -> Result<u64, Error> {
        let in_flight = &self.dispatcher.in_flight;
        loop {
            let settlements = self.settlements(&batch);
            let settled = self.store.settle(&self.owner, Ownership::Rows, &settlements).await?;
            let stale = settled.stale + (batch.len() - settlements.len()) as u64;
            if stale == 0 {
                return Ok(0);
            }
            // It may be this node that has taken them: a lease that ended while nothing could be written, and a claim whose
            // rows were not admitted yet. They are written under the new lease then, and not delivered again.
            drop(self.dispatcher.claiming.lock().await);
            let before: HashMap<i64, Lease> = settlements.iter().map(|one| (one.lease.seq, one.lease)).collect();
            batch.retain(|outcome| {
                let held = in_flight.settle(outcome.admission);
                held.is_some_and(|held| before.get(&held.lease.seq).is_some_and(|used| *used != held.lease))
            });
            if batch.is_empty() {
                return Ok(stale);
            }
        }
    }
}
