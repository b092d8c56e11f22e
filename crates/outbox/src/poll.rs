//! Polling: what the hot path does not deliver is read from the table. It drains what is there, rests longer the longer
//! there is nothing, and is woken by whoever knows of something.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::dispatch::Dispatcher;
use crate::error::Error;
use crate::service::{Pulse, in_time};
use crate::store::{Claim, Lease, Store};

/// Wakes the poller: at once, or when something known becomes due.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    now: Notify,
    state: Mutex<AlarmState>,
}

#[derive(Debug, Default)]
struct AlarmState {
    due: BinaryHeap<Reverse<Instant>>,
    /// Rows that may be ours: written here, their hand-over missed or unconfirmed.
    unconfirmed: Vec<Lease>,
    /// Somebody said that there is something.
    rung: bool,
}

impl Alarm {
    /// More would be found by an ordinary poll anyway, once their leases have ended.
    const MAX_UNCONFIRMED: usize = 20_000;
    const MAX_DUE: usize = 4_096;

    /// Poll now.
    pub(crate) fn ring(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).rung = true;
        self.now.notify_one();
    }

    /// Poll when this much time has passed.
    pub(crate) fn ring_after(&self, delay: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.due.len() < Self::MAX_DUE {
            let soonest = state.due.peek().map(|Reverse(at)| *at);
            let at = Instant::now() + delay;
            state.due.push(Reverse(at));
            if soonest.is_none_or(|soonest| at < soonest) {
                // The poller may be asleep until later.
                self.now.notify_one();
            }
        }
    }

    /// Look these up, and deliver those that are there.
    pub(crate) fn look_up(&self, leases: impl IntoIterator<Item = Lease>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let room = Self::MAX_UNCONFIRMED.saturating_sub(state.unconfirmed.len());
        state.unconfirmed.extend(leases.into_iter().take(room));
        drop(state);
        self.ring();
    }

    fn take_rung(&self) -> bool {
        std::mem::take(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner).rung)
    }

    fn take_unconfirmed(&self, limit: usize) -> Vec<Lease> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let count = limit.min(state.unconfirmed.len());
        state.unconfirmed.drain(..count).collect()
    }

    pub(crate) fn drain_unconfirmed(&self) -> Vec<Lease> {
        self.take_unconfirmed(usize::MAX)
    }

    /// When the next known thing is due.
    fn next_due(&self) -> Option<Instant> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.due.peek().map(|Reverse(at)| *at)
    }

    /// Forgets what is due by now.
    fn pop_due(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        while state.due.peek().is_some_and(|Reverse(at)| *at <= now) {
            state.due.pop();
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The longest rest between polls.
    pub(crate) interval: Duration,
    /// The shortest rest between polls that find something.
    pub(crate) min_interval: Duration,
    /// Rows per claim.
    pub(crate) batch: usize,
    /// Leaves rows alone that were written less than this ago.
    pub(crate) skip_recent: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(5),
            min_interval: Duration::from_millis(20),
            batch: 200,
            skip_recent: Duration::ZERO,
        }
    }
}

pub(crate) struct Poller {
    pub(crate) config: Config,
    pub(crate) owner: String,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) alarm: Arc<Alarm>,
    pub(crate) sweep: Sweep,
}

/// Where to start reading. Behind the mark lies what was delivered, and, while some transaction keeps the database from
/// cleaning up, its remains; walking over them again and again is what makes pollers slow down. So most polls start at the
/// mark. A sweep from the very start finds what became visible late; it may take a twentieth of the time.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    mark: Option<i64>,
    next: Option<Instant>,
}

impl Sweep {
    /// Transactions commit later than they write: the mark stays this far behind.
    const SLACK_MICROS: i64 = 1_000_000;
    const SHARE: u32 = 20;
    const LONGEST: Duration = Duration::from_secs(5);

    fn from(&self) -> Option<i64> {
        match self.next {
            Some(next) if Instant::now() < next => self.mark,
            _ => None,
        }
    }

    fn swept(&mut self, took: Duration) {
        self.next = Some(Instant::now() + (took * Self::SHARE).min(Self::LONGEST));
    }

    fn claimed_up_to(&mut self, due_at: i64) {
        self.mark = self.mark.max(Some(due_at - Self::SLACK_MICROS));
    }
}

impl Poller {
    /// Runs until `soft` is cancelled.
    pub(crate) async fn run(mut self, soft: CancellationToken, pulse: Pulse) {
        let mut rest = self.config.min_interval;
        loop {
            match self.run_once(&soft, &pulse).await {
                Ok(found) => {
                    pulse.beat();
                    let config = &self.config;
                    rest = if found > 0 {
                        config.min_interval
                    } else {
                        (rest * 2).min(config.interval)
                    };
                }
                Err(error) => {
                    self.dispatcher.telemetry.poll_errors.increment(1);
                    tracing::error!(%error, "polling failed");
                    rest = (rest * 2).min(self.config.interval);
                }
            }
            if self.rest(rest, &soft).await.is_break() {
                return;
            }
        }
    }

    /// Rests until there is something to do, or `rest` is over.
    async fn rest(&self, rest: Duration, soft: &CancellationToken) -> std::ops::ControlFlow<()> {
        let over = Instant::now() + rest;
        loop {
            let until = self.alarm.next_due().map_or(over, |due| due.min(over));
            tokio::select! {
                () = soft.cancelled() => return std::ops::ControlFlow::Break(()),
                () = self.alarm.now.notified() => {
                    // Otherwise it was for something that is due later: sleep until then.
                    if self.alarm.take_rung() {
                        return std::ops::ControlFlow::Continue(());
                    }
                }
                () = tokio::time::sleep_until(until) => return std::ops::ControlFlow::Continue(()),
            }
        }
    }

    /// Reads until there is nothing left, or no room. Returns how many rows it took.
    pub(crate) async fn run_once(&mut self, soft: &CancellationToken, pulse: &Pulse) -> Result<usize, Error> {
        self.alarm.pop_due();
        let mut found = 0;
        while !soft.is_cancelled() {
            let room = self.dispatcher.queues.cold_room();
            if room == 0 {
                // Waiting for slow listeners is no fault of the poller's.
                pulse.beat();
                tokio::select! {
                    () = self.dispatcher.queues.half_empty() => continue,
                    () = tokio::time::sleep(Pulse::INTERVAL) => continue,
                    () = soft.cancelled() => break,
                }
            }
            let looked_up = self.look_up(room).await?;
            found += looked_up;
            let room = room.saturating_sub(looked_up);
            if room == 0 {
                continue;
            }
            let limit = self.config.batch.min(room);
            let claimed = self.claim(limit).await?;
            found += claimed;
            self.report_depths();
            if claimed < limit {
                break;
            }
        }
        Ok(found)
    }

    /// Rows that were written here and whose hand-over was missed.
    async fn look_up(&self, limit: usize) -> Result<usize, Error> {
        let leases = self.alarm.take_unconfirmed(limit);
        if leases.is_empty() {
            return Ok(0);
        }
        let margin = self.dispatcher.margin() * 2;
        let deadline = Instant::now() + margin;
        let rows = match in_time("looking up events", self.store.read_leased(&leases, margin)).await {
            Ok(rows) => rows,
            Err(error) => {
                self.alarm.look_up(leases);
                return Err(error);
            }
        };
        let found = rows.len();
        for row in rows {
            let lease = row.lease;
            // The lease lasts at least this long; it is renewed from here on.
            if self.dispatcher.enqueue_cold(row, deadline).await.is_err() {
                self.alarm.look_up([lease]);
            }
        }
        Ok(found)
    }

    async fn claim(&mut self, limit: usize) -> Result<usize, Error> {
        let from = self.sweep.from();
        let lease = self.dispatcher.lease;
        let claim = Claim {
            owner: &self.owner,
            lease,
            limit,
            skip_recent: self.config.skip_recent,
            from,
        };
        // Measured before the database starts the lease by its own clock, so ours ends first.
        let started = Instant::now();
        let rows = in_time("claiming events", self.store.claim(&claim)).await?;
        if from.is_none() {
            self.sweep.swept(started.elapsed());
        }
        if let Some(last) = rows.last().filter(|_| rows.len() == limit) {
            self.sweep.claimed_up_to(last.due_at);
        }
        let claimed = rows.len();
        let mut no_room = Vec::new();
        for row in rows {
            if row.recovered {
                self.dispatcher.telemetry.recovered.increment(1);
            }
            if let Err(lease) = self.dispatcher.enqueue_cold(row, started + lease).await {
                no_room.push(lease);
            }
        }
        // Only a shutdown closes a queue that had room.
        if !no_room.is_empty() {
            in_time("releasing leases", self.store.release(&no_room)).await?;
        }
        Ok(claimed)
    }

    fn report_depths(&self) {
        let (hot, cold) = self.dispatcher.queues.depths();
        let telemetry = &self.dispatcher.telemetry;
        telemetry.hot_depth.set(hot as f64);
        telemetry.cold_depth.set(cold as f64);
        telemetry.in_flight.set(self.dispatcher.in_flight.len() as f64);
    }
}
