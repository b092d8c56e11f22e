//! Settling: outcomes are gathered and written in batches, one statement per kind. This is where the throughput is.

mod outcomes;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::alarm::Alarm;
use crate::dispatch::{Dispatcher, Settling};
use crate::error::Error;
use crate::failpoint::fail_point;
use crate::service::{Pulse, in_time};
use crate::store::{Lease, Ownership, Settlement, Store, Verdict};

pub(crate) use outcomes::{Outcome, Outcomes};

/// So many outcomes are worth a write, if nothing else is under way that could join them.
const MANY: usize = 64;
/// How often that is looked at.
const A_WHILE: Duration = Duration::from_millis(1);

#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The most outcomes of one write.
    pub(crate) batch: usize,
    /// How long an outcome waits for others.
    pub(crate) linger: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            batch: 500,
            linger: Duration::from_millis(10),
        }
    }
}

/// Gathers outcomes, and has them written.
pub(crate) struct Settler {
    pub(crate) config: Config,
    pub(crate) writer: Writer,
}

impl Drop for Settler {
    /// Whatever it ends of: who has an outcome is not to wait for it.
    fn drop(&mut self) {
        self.outcomes().close();
    }
}

impl Settler {
    /// Runs until `soft` is cancelled and every outcome is written; gives up on what is not when `hard` is.
    pub(crate) async fn run(self, soft: CancellationToken, hard: CancellationToken, pulse: Pulse) {
        let mut writes = FuturesUnordered::new();
        loop {
            pulse.beat();
            match writes.len() {
                0 => {
                    if !self.some(&soft, &pulse).await {
                        return;
                    }
                }
                // The database, or the way to it, has room for two. A second one is worth it if it is a large one.
                1 => tokio::select! {
                    biased;
                    _ = writes.next() => continue,
                    () = self.outcomes().at_least(self.config.batch) => {}
                },
                _ => {
                    writes.next().await;
                    continue;
                }
            }
            writes.push(self.writer.flush(self.outcomes().take(), &hard, &pulse));
        }
    }

    fn outcomes(&self) -> &Outcomes {
        &self.writer.dispatcher.outcomes
    }

    /// Returns when there are some. False: no more will come.
    async fn some(&self, soft: &CancellationToken, pulse: &Pulse) -> bool {
        loop {
            tokio::select! {
                biased;
                () = self.outcomes().at_least(1) => break,
                // All who put any have ended, but for a listener that blocks its thread.
                () = soft.cancelled() => {
                    self.outcomes().close();
                    return self.outcomes().len() > 0;
                }
                () = tokio::time::sleep(Pulse::INTERVAL) => pulse.beat(),
            }
        }
        self.linger().await;
        true
    }

    /// Waits a little for more: few large writes leave the database to those who publish.
    async fn linger(&self) {
        let until = Instant::now() + self.config.linger;
        loop {
            let (now, gathered) = (Instant::now(), self.outcomes().len());
            if now >= until || gathered >= self.config.batch || self.waits_in_vain(gathered) {
                return;
            }
            let (wanted, look_again) = match self.writer.dispatcher.ownership {
                _ if gathered >= MANY => (self.config.batch, until.min(now + A_WHILE)),
                Ownership::Keys => (gathered + 1, until),
                Ownership::Rows | Ownership::Lanes => (MANY.min(self.config.batch), until),
            };
            // Whichever comes first.
            let _ = tokio::time::timeout_at(look_again, self.outcomes().at_least(wanted)).await;
        }
    }

    /// Nothing else is under way. In order, the next event of a key may wait for the outcome of the one before, so nothing more
    /// comes until it is written. Elsewhere somebody may publish at any moment; but what has gathered is worth a write.
    fn waits_in_vain(&self, gathered: usize) -> bool {
        let dispatcher = &self.writer.dispatcher;
        let enough = dispatcher.ownership == Ownership::Keys || gathered >= MANY;
        enough && dispatcher.under_way() <= gathered
    }
}

/// Writes outcomes.
pub(crate) struct Writer {
    pub(crate) owner: String,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) alarm: Arc<Alarm>,
}

impl Writer {
    /// Writes a batch, however often it takes: no listener is run again for want of a write. The leases are renewed
    /// meanwhile, like those of all that is in flight.
    async fn flush(&self, batch: Vec<Outcome>, hard: &CancellationToken, pulse: &Pulse) {
        let telemetry = Arc::clone(&self.dispatcher.telemetry);
        let mut wait = Duration::from_millis(50);
        let stale = loop {
            telemetry.settle_batch.record(batch.len() as f64);
            let error = tokio::select! {
                written = in_time("settling events", self.write(&batch)) => match written {
                    Ok(stale) => break stale,
                    Err(error) => error,
                },
                () = hard.cancelled() => return self.give_up(&batch),
            };
            telemetry.settle_errors.increment(1);
            tracing::error!(%error, outcomes = batch.len(), ?wait, "outcomes could not be written, trying again");
            if !error.is_retryable() && self.isolate(&batch).await {
                break true;
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = hard.cancelled() => return self.give_up(&batch),
            }
            pulse.beat();
            wait = (wait * 2).min(Duration::from_secs(5));
        };
        // Only now: as long as the row looks pending, nobody here may take it again.
        let again = self
            .dispatcher
            .in_flight
            .settled(batch.iter().map(|outcome| outcome.admission));
        if !again.is_empty() {
            self.alarm.look_up(again);
        }
        // Which of them were refused is not known: their lines are read again.
        let goes_on = |verdict: &Verdict| match verdict {
            Verdict::Done | Verdict::DoneAndDeleted | Verdict::Dead { .. } => !stale,
            Verdict::DeadAndParked { .. } | Verdict::Retry { .. } | Verdict::Defer { .. } => false,
        };
        let left = batch
            .iter()
            .map(|outcome| (outcome.admission, goes_on(&outcome.verdict)));
        self.dispatcher.all_left(left);
        // Only now: a pass that begins before would leave the line out, and nobody would ring again.
        for outcome in &batch {
            if let Verdict::Retry { after, .. } | Verdict::Defer { after, .. } = &outcome.verdict {
                self.alarm.ring_after(*after);
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
        let (member, settling) = self.settling(batch);
        let of_lane = |settling: &Option<Settling>| settling.is_some_and(|settling| settling.lane.is_some());
        let (of_lanes, of_rows): (Vec<_>, Vec<_>) =
            batch.iter().zip(settling).partition(|(_, settling)| of_lane(settling));
        fail_point!("in-settle");
        let stale = self.write_of_lanes(&member, of_lanes).await? + self.write_of_rows(of_rows).await?;
        if stale > 0 {
            self.dispatcher.telemetry.settle_stale.increment(stale);
            tracing::warn!(
                stale,
                "outcomes were refused, because somebody else has taken the events since"
            );
        }
        Ok(stale > 0)
    }

    /// What each is to be settled with, and under which name if it is of a lane.
    fn settling<'a>(&self, batch: impl IntoIterator<Item = &'a Outcome>) -> (Arc<str>, Vec<Option<Settling>>) {
        let admissions = batch.into_iter().map(|outcome| outcome.admission);
        self.dispatcher.in_flight.settle(admissions)
    }

    async fn write_of_lanes(&self, member: &str, batch: Vec<(&Outcome, Option<Settling>)>) -> Result<u64, Error> {
        let settlements = settlements(&batch);
        let settled = self
            .store
            .settle(member, self.dispatcher.ownership, &settlements)
            .await?;
        Ok(settled.stale + (batch.len() - settlements.len()) as u64)
    }

    async fn write_of_rows(&self, mut batch: Vec<(&Outcome, Option<Settling>)>) -> Result<u64, Error> {
        loop {
            let settlements = settlements(&batch);
            let settled = self.store.settle(&self.owner, Ownership::Rows, &settlements).await?;
            let stale = settled.stale + (batch.len() - settlements.len()) as u64;
            if stale == 0 {
                return Ok(0);
            }
            // It may be this node that has taken them: a lease that ended while nothing could be written, and a claim whose
            // rows were not admitted yet. They are written under the new lease then, and not delivered again.
            drop(self.dispatcher.claiming.lock().await);
            let before: HashMap<i64, Lease> = settlements.iter().map(|one| (one.lease.seq, one.lease)).collect();
            let (_, settling) = self.settling(batch.iter().map(|(outcome, _)| *outcome));
            let now = batch.into_iter().map(|(outcome, _)| outcome).zip(settling);
            batch = now
                .filter(|(_, held)| {
                    held.is_some_and(|held| before.get(&held.lease.seq).is_some_and(|used| *used != held.lease))
                })
                .collect();
            if batch.is_empty() {
                return Ok(stale);
            }
        }
    }
}

/// What is written; without what is no longer ours.
fn settlements(batch: &[(&Outcome, Option<Settling>)]) -> Vec<Settlement> {
    let settlement = |(outcome, settling): &(&Outcome, Option<Settling>)| {
        let Settling { lease, lane } = (*settling)?;
        Some(Settlement {
            lease,
            verdict: outcome.verdict.clone(),
            lane,
        })
    };
    batch.iter().filter_map(settlement).collect()
}
