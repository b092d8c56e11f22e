//! Reading lanes: their owner reads what is pending in the order of writing, and claims nothing.
//!
//! A pass goes from where it starts to the end of the table, batch by batch. What is in flight is still pending; it is met
//! again by the next pass, and left alone.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{SLACK, Step, next_sweep};
use crate::alarm::Alarm;
use crate::dispatch::Dispatcher;
use crate::error::Error;
use crate::service::in_time;
use crate::store::{LaneRead, LaneRow, Lease, Store, Wanted};

/// A sweep from the very start comes at the latest after this long: what is to be tried again is found by it.
const LONGEST_WITHOUT_SWEEP: Duration = Duration::from_secs(5);

pub(crate) struct LaneReader {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) alarm: Arc<Alarm>,
    pub(crate) skip_recent: Duration,
    pub(crate) mark: Mark,
    /// The pass under way.
    pub(crate) pass: Option<Pass>,
    /// Lanes had been added so often when we last looked.
    pub(crate) gains: u64,
}

#[derive(Debug)]
pub(crate) struct Pass {
    started: Instant,
    after: i64,
    /// From the very start.
    sweeps: bool,
    /// How long the database took so far.
    took: Duration,
}

/// Where passes start. Before the mark lies what was delivered, and, while some transaction keeps the database from cleaning
/// up, its remains; walking over them again and again is what makes pollers slow down. So most passes start at the mark. A
/// sweep from the very start finds what became visible late and what is due again; it may take a twentieth of the time.
#[derive(Debug, Default)]
pub(crate) struct Mark {
    seq: i64,
    /// What was read last, and when: transactions commit later than they write, so the mark follows only after a while.
    next: Option<(Instant, i64)>,
    next_sweep: Option<Instant>,
    /// Something before the mark is due.
    wanted: bool,
}

impl Mark {
    fn start(&mut self) -> Pass {
        let now = Instant::now();
        if let Some((since, seq)) = self.next
            && now > since + SLACK
        {
            self.seq = self.seq.max(seq);
            self.next = None;
        }
        let sweeps = self.next_sweep.is_none_or(|next| next <= now);
        Pass {
            started: now,
            after: if sweeps { 0 } else { self.seq },
            sweeps,
            took: Duration::ZERO,
        }
    }

    /// A row was read that has been due for so long.
    fn read(&mut self, seq: i64, lag: Duration) {
        if lag > SLACK {
            self.seq = self.seq.max(seq);
        } else if self.next.is_none() {
            self.next = Some((Instant::now(), seq));
        }
    }

    fn ended(&mut self, pass: &Pass) {
        if pass.sweeps {
            self.next_sweep = Some(Instant::now() + next_sweep(pass.took, 20, LONGEST_WITHOUT_SWEEP));
            self.wanted = false;
        }
    }
}

impl LaneReader {
    /// What is due again stands before the mark, perhaps.
    pub(super) fn sweep_soon(&mut self) {
        self.mark.wanted = true;
    }

    /// Reads up to `limit` rows.
    pub(super) async fn read(&mut self, limit: usize) -> Result<Step, Error> {
        let lanes = self.dispatcher.in_flight.lanes();
        if lanes.gains != self.gains {
            // What is pending in a new lane may be as old as anything.
            self.gains = lanes.gains;
            self.mark = Mark::default();
            self.pass = None;
        }
        // One that goes on and on would keep what is due again from being swept up.
        if let Some(long) = self.pass.take_if(|pass| pass.started.elapsed() > LONGEST_WITHOUT_SWEEP) {
            self.mark.ended(&long);
        }
        let mut pass = self.pass.take().unwrap_or_else(|| self.mark.start());
        let read = LaneRead {
            lanes: lanes.open,
            after: pass.after,
            limit,
            wanted: Wanted::Deliverable {
                skip_recent: self.skip_recent,
            },
        };
        self.dispatcher.in_flight.begin_read();
        let started = Instant::now();
        let found = in_time("reading lanes", self.store.read_lanes(&read)).await;
        pass.took += started.elapsed();
        let rows = found?.rows;
        if self.dispatcher.in_flight.lanes().gains != self.gains {
            // A lane may have been somebody else's while it was being read.
            return Ok(Step { found: 0, more: true });
        }
        let more = rows.len() == limit;
        if let Some(last) = rows.last() {
            pass.after = last.row.lease.seq;
            self.mark.read(last.row.lease.seq, last.row.lag);
        }
        let found = self.take_in(rows).await?;
        self.dispatcher.in_flight.end_read();
        if more {
            self.pass = Some(pass);
        } else {
            self.mark.ended(&pass);
            if self.mark.wanted
                && let Some(next) = self.mark.next_sweep
            {
                self.alarm.ring_after(next.saturating_duration_since(Instant::now()));
            }
        }
        Ok(Step { found, more })
    }

    async fn take_in(&self, rows: Vec<LaneRow>) -> Result<usize, Error> {
        let ended = rows.iter().filter(|row| row.row.recovered).map(|row| row.row.lease);
        let ended: Vec<Lease> = ended.collect();
        let admissions = self.dispatcher.in_flight.admit_from_lanes(&rows);
        let admitted = rows.into_iter().zip(admissions);
        let admitted: Vec<_> = admitted
            .filter_map(|(row, admission)| Some((admission?, row.row)))
            .collect();
        let found = admitted.len();
        // What there is no room for is still in the table.
        let no_room = self.dispatcher.enqueue_cold(admitted).await.len();
        release_ended(&*self.store, &self.dispatcher, &self.alarm, ended).await?;
        Ok(found - no_room)
    }
}

/// Takes rows from whoever had them when their lease ended: from then on that node can no longer settle them, and they are
/// read like all others.
pub(super) async fn release_ended(
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
