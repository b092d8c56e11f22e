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
use crate::dispatch::{Admission, Dispatcher};
use crate::error::Error;
use crate::service::{Pulse, in_time};
use crate::store::{Claimed, Lease, News, Store};

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
    /// What was read and is not queued yet.
    pub(crate) ahead: Option<Batch>,
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

/// What was read. Its rows are in flight already, and must be queued whatever fails meanwhile, or nobody would deliver them.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// On their way to the queue.
    pub(crate) rows: Vec<(Admission, Claimed)>,
    /// How many others stand in line already.
    pub(crate) in_line: usize,
    /// Leases of others that have ended: to be taken from them.
    pub(crate) ended: Vec<Lease>,
    /// There may be more.
    pub(crate) more: bool,
}

impl Batch {
    /// So many rows, which are where they should be.
    fn in_line(in_line: usize, more: bool) -> Self {
        Self {
            in_line,
            more,
            ..Self::default()
        }
    }
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

    /// Reads up to `limit` rows.
    async fn read(&mut self, limit: usize) -> Result<Batch, Error> {
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
                    rest = match self.ahead {
                        // It is ours already, and waits for nothing.
                        Some(_) => self.config.min_interval,
                        None => (rest * 2).min(self.config.interval),
                    };
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
    ///
    /// The next batch is asked for before the last one is queued: the database works on it while the listeners do.
    pub(crate) async fn run_once(&mut self, soft: &CancellationToken, pulse: &Pulse) -> Result<usize, Error> {
        if self.alarm.pop_due() {
            self.reader.something_is_due();
        }
        let mut found = 0;
        loop {
            let batch = match self.ahead.take() {
                Some(batch) => batch,
                None if soft.is_cancelled() => break,
                None => {
                    let Some(room) = self.room(soft, pulse).await else {
                        continue;
                    };
                    let looked_up = self.look_up(room).await?;
                    found += looked_up;
                    let room = room.saturating_sub(looked_up);
                    if room == 0 {
                        continue;
                    }
                    self.reader.read(self.config.batch.min(room)).await?
                }
            };
            pulse.beat();
            let more = batch.more;
            let ahead = self.room_ahead(&batch).filter(|_| !soft.is_cancelled());
            let queue = queue(&*self.store, &self.dispatcher, &self.alarm, batch);
            found += match ahead {
                None => queue.await?,
                Some(limit) => {
                    let (ahead, queued) = tokio::join!(self.reader.read(limit), queue);
                    self.ahead = Some(ahead?);
                    queued?
                }
            };
            if !more {
                break;
            }
        }
        Ok(found)
    }

    /// How many rows there is room for. Waits a little where it is not worth reading; `None`: look again.
    async fn room(&self, soft: &CancellationToken, pulse: &Pulse) -> Option<usize> {
        let room = self.reader.room(&self.dispatcher);
        if room >= self.reader.least_room(self.config.batch, &self.dispatcher) {
            return Some(room);
        }
        // Waiting for slow listeners is no fault of the poller's.
        pulse.beat();
        let patience = match self.reader.makes_do_with(room) {
            true => self.config.min_interval,
            false => Pulse::INTERVAL,
        };
        tokio::select! {
            () = self.reader.half_empty(&self.dispatcher) => None,
            () = soft.cancelled() => None,
            () = tokio::time::sleep(patience) => {
                let room = self.reader.room(&self.dispatcher);
                self.reader.makes_do_with(room).then_some(room)
            }
        }
    }

    /// How many rows may be read while this batch is being queued. `None`: there is no more, no room, or something else to do
    /// first.
    fn room_ahead(&self, batch: &Batch) -> Option<usize> {
        let room = self.reader.room(&self.dispatcher).saturating_sub(batch.rows.len());
        let worth_it = room >= self.reader.least_room(self.config.batch, &self.dispatcher);
        (batch.more && worth_it && !self.alarm.has_to_look_up()).then(|| self.config.batch.min(room))
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

/// Queues what was read. Returns how many rows are on their way to a listener.
async fn queue(store: &dyn Store, dispatcher: &Dispatcher, alarm: &Alarm, batch: Batch) -> Result<usize, Error> {
    // What is being asked of the database meanwhile is to be on its way before the workers are woken.
    tokio::task::yield_now().await;
    let found = batch.rows.len() + batch.in_line;
    let leases: Vec<Lease> = batch.rows.iter().map(|(_, row)| row.lease).collect();
    let no_room = dispatcher.enqueue_cold(batch.rows).await;
    // Only a shutdown closes a queue that had room.
    if !no_room.is_empty() {
        let no_room_for = |lease: &Lease| no_room.iter().any(|one| one.seq == lease.seq);
        let given_back: Vec<Lease> = leases.into_iter().filter(no_room_for).collect();
        if let Err(error) = give_back(store, &given_back).await {
            // The shutdown tries once more.
            let now = Instant::now();
            alarm.look_up(given_back.into_iter().map(|lease| (lease, now)));
            return Err(error);
        }
    }
    release_ended(store, dispatcher, alarm, batch.ended).await?;
    Ok(found - no_room.len())
}

async fn give_back(store: &dyn Store, leases: &[Lease]) -> Result<(), Error> {
    if in_time("releasing leases", store.release(leases)).await? > 0 {
        in_time("notifying", store.notify(News::Events)).await?;
    }
    Ok(())
}

/// Takes rows from whoever had them when their lease ended: from then on that node can no longer settle them, and they are
/// read like all others.
async fn release_ended(
    store: &dyn Store,
    dispatcher: &Dispatcher,
    alarm: &Alarm,
    mut ended: Vec<Lease>,
) -> Result<(), Error> {
    // What is ours, and was not renewed in time, is being delivered all the same.
    ended.retain(|lease| !dispatcher.in_flight.knows(lease.seq));
    if ended.is_empty() {
        return Ok(());
    }
    let released = in_time("releasing leases", store.release(&ended)).await?;
    dispatcher.telemetry.recovered.increment(released);
    alarm.ring_after(Duration::ZERO);
    Ok(())
}
