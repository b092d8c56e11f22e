//! Polling: what the hot path does not deliver is read from the table. It drains what is there, rests longer the longer
//! there is nothing, and is woken by whoever knows of something.
//!
//! There are two ways to own what is read: claims, row by row ([`claim`]), and lanes ([`lane`], [`order`]).

pub(crate) mod claim;
pub(crate) mod floor;
pub(crate) mod lane;
pub(crate) mod order;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::alarm::{Alarm, Unconfirmed};
use crate::dispatch::Dispatcher;
use crate::error::Error;
use crate::service::{Pulse, in_time};
use crate::store::{Lease, Store};

/// Transactions commit later than they write: a mark, where most reads start, stays this far behind the present.
const SLACK: Duration = Duration::from_millis(200);

/// When to sweep again, after a sweep that took so long: it may take one of so many parts of the time.
fn next_sweep(took: Duration, parts: u32, at_the_latest: Duration) -> Duration {
    took.saturating_mul(parts).min(at_the_latest)
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
    pub(crate) store: Arc<dyn Store>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) alarm: Arc<Alarm>,
    pub(crate) reader: Reader,
}

/// How rows are read, and by what right.
pub(crate) enum Reader {
    /// Claimed, one by one.
    Claims(claim::Claims),
    /// Of the lanes that are ours, in no order.
    Lanes(lane::LaneReader),
    /// Of the lanes that are ours, in the order of each key.
    Order(order::OrderReader),
}

/// What a step of reading came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// How many rows are now on their way to a listener.
    pub(crate) found: usize,
    /// There may be more.
    pub(crate) more: bool,
}

impl Reader {
    /// Something known has become due, wherever it stands.
    fn something_is_due(&mut self) {
        if let Self::Lanes(reader) = self {
            reader.sweep_soon();
        }
    }

    /// How many rows can be taken in.
    fn room(&self, dispatcher: &Dispatcher) -> usize {
        match self {
            Self::Claims(_) | Self::Lanes(_) => dispatcher.queues.cold_room(),
            // Room is left for the first of every line.
            Self::Order(_) => {
                let keyless = dispatcher
                    .queues
                    .cold_room()
                    .saturating_sub(dispatcher.lines.capacity());
                dispatcher.lines.free().min(keyless)
            }
        }
    }

    /// With less room it is not worth reading: many small reads cost more than a few large ones.
    fn least_room(&self, batch: usize, dispatcher: &Dispatcher) -> usize {
        match self {
            Self::Claims(_) | Self::Lanes(_) => batch.min(dispatcher.queues.half()),
            Self::Order(_) => batch.min(dispatcher.lines.capacity().div_ceil(2)),
        }
    }

    /// Slow keys may take most of the room, for long: the others are content with what is left.
    fn makes_do_with(&self, room: usize) -> bool {
        matches!(self, Self::Order(_)) && room > 0
    }

    async fn half_empty(&self, dispatcher: &Dispatcher) {
        dispatcher.queues.half_empty().await;
        if let Self::Order(_) = self {
            dispatcher.lines.half_empty().await;
        }
    }

    async fn read(&mut self, limit: usize) -> Result<Step, Error> {
        match self {
            Self::Claims(reader) => reader.read(limit).await,
            Self::Lanes(reader) => reader.read(limit).await,
            Self::Order(reader) => reader.read(limit).await,
        }
    }
}

impl Poller {
    /// Runs until `soft` is cancelled.
    pub(crate) async fn run(mut self, soft: CancellationToken, pulse: Pulse) {
        let mut rest = self.config.min_interval;
        let mut failing = false;
        loop {
            match self.run_once(&soft, &pulse).await {
                Ok(found) => {
                    pulse.beat();
                    if std::mem::take(&mut failing) {
                        tracing::info!("polling works again");
                    }
                    let config = &self.config;
                    rest = if found > 0 {
                        config.min_interval
                    } else {
                        (rest * 2).min(config.interval)
                    };
                }
                Err(error) => {
                    self.dispatcher.telemetry.poll_errors.increment(1);
                    failing = true;
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
    async fn rest(&mut self, rest: Duration, soft: &CancellationToken) -> std::ops::ControlFlow<()> {
        let over = Instant::now() + rest;
        let mut failing = false;
        loop {
            let until = self.alarm.next_due().map_or(over, |due| due.min(over));
            tokio::select! {
                () = soft.cancelled() => return std::ops::ControlFlow::Break(()),
                // What failed is tried again by the next poll.
                () = self.dispatcher.lines.hungry(), if !failing => {
                    if let Reader::Order(reader) = &mut self.reader
                        && let Err(error) = reader.feed().await
                    {
                        failing = true;
                        self.dispatcher.telemetry.poll_errors.increment(1);
                        tracing::error!(%error, "polling failed");
                    }
                }
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
        if self.alarm.pop_due() {
            self.reader.something_is_due();
        }
        let mut found = 0;
        while !soft.is_cancelled() {
            let mut room = self.reader.room(&self.dispatcher);
            if room < self.reader.least_room(self.config.batch, &self.dispatcher) {
                // Waiting for slow listeners is no fault of the poller's.
                pulse.beat();
                let patience = match self.reader.makes_do_with(room) {
                    true => self.config.min_interval,
                    false => Pulse::INTERVAL,
                };
                tokio::select! {
                    () = self.reader.half_empty(&self.dispatcher) => continue,
                    () = tokio::time::sleep(patience) => {}
                    () = soft.cancelled() => break,
                }
                room = self.reader.room(&self.dispatcher);
                if !self.reader.makes_do_with(room) {
                    continue;
                }
            }
            let looked_up = self.look_up(room).await?;
            found += looked_up;
            let room = room.saturating_sub(looked_up);
            if room == 0 {
                continue;
            }
            let step = self.reader.read(self.config.batch.min(room)).await?;
            found += step.found;
            if !step.more {
                break;
            }
        }
        Ok(found)
    }

    /// Rows that were written here and whose hand-over was missed.
    async fn look_up(&self, limit: usize) -> Result<usize, Error> {
        let unconfirmed = self.alarm.take_unconfirmed(limit);
        if unconfirmed.is_empty() {
            return Ok(0);
        }
        let leases: Vec<Lease> = unconfirmed.iter().map(|one| one.lease).collect();
        let margin = self.dispatcher.margin() * 2;
        // The leases of what is found last at least this long, and mostly longer; they are renewed from here on.
        let at_least = Instant::now() + margin;
        let rows = match in_time("looking up events", self.store.read_leased(&leases, margin)).await {
            Ok(rows) => rows,
            Err(error) => {
                self.alarm.keep(unconfirmed);
                return Err(error);
            }
        };
        let mut missing: HashMap<Lease, Unconfirmed> = unconfirmed.into_iter().map(|one| (one.lease, one)).collect();
        let found = rows.len();
        for row in rows {
            let lease = row.lease;
            let deadline = missing
                .remove(&lease)
                .map_or(at_least, |one| one.deadline.max(at_least));
            if let Some(admission) = self.dispatcher.in_flight.admit(lease, deadline)
                && !self.dispatcher.enqueue_cold([(admission, row)]).await.is_empty()
            {
                self.alarm.look_up([(lease, deadline)]);
            }
        }
        self.alarm.not_found(missing.into_values());
        Ok(found)
    }
}
