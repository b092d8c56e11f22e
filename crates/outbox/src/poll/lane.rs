//! Reading lanes: their owner reads what is pending in the order of writing, and claims nothing.
//!
//! A pass goes from where it starts to the end of the table, batch by batch. What is in flight is still pending; it is met
//! again by the next pass, and left alone.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Batch, SLACK, next_sweep};
use crate::alarm::Alarm;
use crate::dispatch::Dispatcher;
use crate::error::Error;
use crate::service::in_time;
use crate::store::{LaneRead, Store, Wanted};

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
    pub(super) async fn read(&mut self, limit: usize) -> Result<Batch, Error> {
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
            return Ok(Batch::in_line(0, true));
        }
        let more = rows.len() == limit;
        if let Some(last) = rows.last() {
            pass.after = last.row.lease.seq;
            self.mark.read(last.row.lease.seq, last.row.lag);
        }
        let ended = rows.iter().filter(|row| row.row.recovered).map(|row| row.row.lease);
        let ended = ended.collect();
        let admissions = self.dispatcher.in_flight.admit_from_lanes(&rows);
        self.dispatcher.in_flight.end_read();
        let rows = rows.into_iter().zip(admissions);
        let rows = rows
            .filter_map(|(row, admission)| Some((admission?, row.row)))
            .collect();
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
        Ok(Batch {
            rows,
            ended,
            more,
            ..Batch::default()
        })
    }
}
