//! Polling: what the hot path does not deliver is read from the table. It drains what is there, rests longer the longer
//! there is nothing, and is woken by whoever knows of something.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    due: BTreeSet<Instant>,
    /// Rows that may be ours: written here, their hand-over missed or unconfirmed.
    unconfirmed: VecDeque<Unconfirmed>,
    /// Somebody said that there is something.
    rung: bool,
}

#[derive(Clone, Copy, Debug)]
struct Unconfirmed {
    lease: Lease,
    /// Looked up in vain so often: its commit may not be visible yet, or it was rolled back.
    tries: u32,
    not_before: Instant,
}

impl Alarm {
    /// More would be found by an ordinary poll anyway, once their leases have ended.
    const MAX_UNCONFIRMED: usize = 20_000;
    /// Beyond it the latest are forgotten: an ordinary poll finds those.
    const MAX_DUE: usize = 4_096;
    /// What was not found is looked up again after so long, and then given up.
    const AGAIN_AFTER: [Duration; 4] = [
        Duration::from_millis(50),
        Duration::from_millis(300),
        Duration::from_secs(2),
        Duration::from_secs(5),
    ];

    fn state(&self) -> MutexGuard<'_, AlarmState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Poll now.
    pub(crate) fn ring(&self) {
        self.state().rung = true;
        self.now.notify_one();
    }

    /// Poll when this much time has passed.
    pub(crate) fn ring_after(&self, delay: Duration) {
        // So far away that an ordinary poll comes first.
        let Some(at) = Instant::now().checked_add(delay) else {
            return;
        };
        let mut state = self.state();
        let soonest = state.due.first().copied();
        state.due.insert(at);
        if state.due.len() > Self::MAX_DUE {
            state.due.pop_last();
        }
        drop(state);
        if soonest.is_none_or(|soonest| at < soonest) {
            // The poller may be asleep until later.
            self.now.notify_one();
        }
    }

    /// Look these up, and deliver those that are there.
    pub(crate) fn look_up(&self, leases: impl IntoIterator<Item = Lease>) {
        let not_before = Instant::now();
        self.keep(leases.into_iter().map(|lease| Unconfirmed {
            lease,
            tries: 0,
            not_before,
        }));
        self.ring();
    }

    fn keep(&self, unconfirmed: impl IntoIterator<Item = Unconfirmed>) {
        let mut state = self.state();
        let room = Self::MAX_UNCONFIRMED.saturating_sub(state.unconfirmed.len());
        state.unconfirmed.extend(unconfirmed.into_iter().take(room));
    }

    /// What was not found, and may be later.
    fn not_found(&self, unconfirmed: impl IntoIterator<Item = Unconfirmed>) {
        for one in unconfirmed {
            if let Some(wait) = Self::AGAIN_AFTER.get(one.tries as usize) {
                self.keep([Unconfirmed {
                    tries: one.tries + 1,
                    not_before: Instant::now() + *wait,
                    ..one
                }]);
                self.ring_after(*wait);
            }
        }
    }

    fn take_rung(&self) -> bool {
        std::mem::take(&mut self.state().rung)
    }

    /// Up to `limit` that are to be looked up by now.
    fn take_unconfirmed(&self, limit: usize) -> Vec<Unconfirmed> {
        let mut state = self.state();
        let now = Instant::now();
        let (mut taken, mut rest) = (Vec::new(), VecDeque::new());
        for one in state.unconfirmed.drain(..) {
            if taken.len() < limit && one.not_before <= now {
                taken.push(one);
            } else {
                rest.push_back(one);
            }
        }
        state.unconfirmed = rest;
        taken
    }

    pub(crate) fn drain_unconfirmed(&self) -> Vec<Lease> {
        self.state().unconfirmed.drain(..).map(|one| one.lease).collect()
    }

    /// When the next known thing is due.
    fn next_due(&self) -> Option<Instant> {
        self.state().due.first().copied()
    }

    /// Forgets what is due by now.
    fn pop_due(&self) {
        let mut state = self.state();
        let now = Instant::now();
        while state.due.first().is_some_and(|at| *at <= now) {
            state.due.pop_first();
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
            if claimed < limit {
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
        // The leases last at least this long; they are renewed from here on.
        let deadline = Instant::now() + margin;
        let rows = match in_time("looking up events", self.store.read_leased(&leases, margin)).await {
            Ok(rows) => rows,
            Err(error) => {
                self.alarm.keep(unconfirmed);
                return Err(error);
            }
        };
        let found: HashSet<i64> = rows.iter().map(|row| row.lease.seq).collect();
        self.alarm
            .not_found(unconfirmed.into_iter().filter(|one| !found.contains(&one.lease.seq)));
        for row in rows {
            if let Some(admission) = self.dispatcher.in_flight.admit(row.lease, deadline)
                && let Err(lease) = self.dispatcher.enqueue_cold(admission, row).await
            {
                self.alarm.look_up([lease]);
            }
        }
        Ok(found.len())
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
        let claiming = self.dispatcher.claiming.lock().await;
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
        let recovered = rows.iter().filter(|row| row.recovered).count();
        self.dispatcher.telemetry.recovered.increment(recovered as u64);
        let admitted: Vec<_> = rows
            .into_iter()
            .filter_map(|row| Some((self.dispatcher.in_flight.admit(row.lease, started + lease)?, row)))
            .collect();
        // Not while queueing, which may wait for the settler, which may wait for this.
        drop(claiming);
        let mut no_room = Vec::new();
        for (admission, row) in admitted {
            if let Err(lease) = self.dispatcher.enqueue_cold(admission, row).await {
                no_room.push(lease);
            }
        }
        // Only a shutdown closes a queue that had room.
        if !no_room.is_empty() {
            in_time("releasing leases", self.store.release(&no_room)).await?;
        }
        Ok(claimed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_that_is_full_forgets_what_is_due_last() {
        let alarm = Alarm::default();
        for n in 0..2 * Alarm::MAX_DUE as u64 {
            alarm.ring_after(Duration::from_secs(86_400 + n));
        }
        assert_eq!(alarm.state().due.len(), Alarm::MAX_DUE);
        let soon = Duration::from_millis(50);
        alarm.ring_after(soon);
        assert!(alarm.next_due().is_some_and(|due| due <= Instant::now() + soon));
    }

    #[test]
    fn an_alarm_for_never_does_not_ring() {
        let alarm = Alarm::default();
        alarm.ring_after(Duration::MAX);
        assert_eq!(alarm.next_due(), None);
    }

    #[test]
    fn what_is_not_found_is_looked_up_again_a_few_times() {
        let alarm = Alarm::default();
        alarm.look_up([Lease { seq: 1, token: 1 }]);
        let mut tried = 0;
        loop {
            // As if the time had passed.
            alarm
                .state()
                .unconfirmed
                .iter_mut()
                .for_each(|one| one.not_before = Instant::now());
            let taken = alarm.take_unconfirmed(10);
            if taken.is_empty() {
                break;
            }
            tried += 1;
            alarm.not_found(taken);
        }
        assert_eq!(tried, 1 + Alarm::AGAIN_AFTER.len());
    }
}
