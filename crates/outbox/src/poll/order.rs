//! Reading lanes in order: what the reader meets of a key, it meets in the order of `seq`, and puts it in line.
//!
//! **Why no event is overtaken.** A pass starts no later than the very first pending row, and goes no further than the last row that
//! was there when it began. Say that the producers of a key hold its lock while they write, and that `a` comes before `b`.
//! If `b` is within the pass's bound, it was written before the pass began; so `a` was committed before, and every read of
//! the pass sees it, before `b`. If it is not, `b` waits for the next pass. A key that is blocked is left out of a pass from
//! its beginning to its end, whenever it becomes free.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::floor::Floor;
use super::{Batch, release_ended};
use crate::alarm::Alarm;
use crate::dispatch::{Dispatcher, Job, Standing, key};
use crate::error::Error;
use crate::service::in_time;
use crate::store::{self, LaneRead, LaneRow, LaneRows, LaneSet, Store, Wanted};

/// Keys in one statement.
const KEYS: usize = 16;

/// A pass that takes longer is begun anew: what was blocked at its start is remembered for an hour.
const LONGEST_PASS: Duration = Duration::from_secs(600);

pub(crate) struct OrderReader {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) alarm: Arc<Alarm>,
    /// The pass under way.
    pub(crate) pass: Option<Pass>,
    /// How far, and since when, the last pass went.
    pub(crate) bound: Option<Bound>,
    /// Where passes start.
    pub(crate) floor: Floor,
    /// Lanes had been added so often when we last looked.
    pub(crate) gains: u64,
}

#[derive(Debug)]
pub(crate) struct Pass {
    started: Instant,
    /// Those that were ours when it began: of others it has not seen the first rows.
    lanes: LaneSet,
    after: i64,
    /// `None` until the first read.
    bound: Option<Bound>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    up_to: i64,
    since: store::Instant,
}

impl OrderReader {
    async fn begin_pass(&mut self, lanes: LaneSet) -> Pass {
        let after = self.floor.start(&*self.store).await;
        if let Some(wait) = self.floor.awaits_sweep().filter(|_| after > 0) {
            self.alarm.ring_after(wait);
        }
        self.dispatcher.lines.begin_pass();
        Pass {
            started: Instant::now(),
            lanes,
            after,
            bound: None,
        }
    }

    /// Reads up to `limit` rows.
    pub(super) async fn read(&mut self, limit: usize) -> Result<Batch, Error> {
        let step = self.step(limit).await;
        if step.is_err() {
            // The server that answers next may be another one.
            self.floor.tear_down();
        }
        step
    }

    async fn step(&mut self, limit: usize) -> Result<Batch, Error> {
        let lanes = self.dispatcher.in_flight.lanes();
        if std::mem::replace(&mut self.gains, lanes.gains) != lanes.gains {
            // What is pending in a new lane may be as old as anything. The bound serves lines that are there.
            self.pass = None;
            self.floor.tear_down();
        }
        let fed = match self.feed().await {
            Ok(fed) => fed,
            Err(error) => {
                self.pass = None;
                return Err(error);
            }
        };
        let under_way = self.pass.take().filter(|pass| pass.started.elapsed() < LONGEST_PASS);
        let mut pass = match under_way {
            Some(pass) => pass,
            None => self.begin_pass(lanes.open).await,
        };
        let sweeps = pass.after == 0;
        let full = self.dispatcher.lines.full(KEYS);
        let wanted = Wanted::InOrder {
            since: pass.bound.map(|bound| bound.since),
            up_to: pass.bound.map(|bound| bound.up_to),
            keys: None,
            without: &full,
        };
        let asked = Instant::now();
        let Some(rows) = self.rows(pass.lanes, pass.after, limit, wanted).await? else {
            return Ok(Batch::in_line(fed, true));
        };
        if sweeps {
            let first = rows.rows.first().map(|first| first.row.lease.seq);
            self.floor.swept(asked.elapsed(), first);
        }
        if pass.bound.is_none() && !rows.rows.is_empty() {
            pass.bound = Some(Bound {
                up_to: rows.last_seq,
                since: rows.now,
            });
            self.bound = pass.bound;
        }
        let more = rows.rows.len() == limit;
        let (found, last) = self.line_up(rows).await?;
        if more {
            pass.after = last;
            self.pass = Some(pass);
        }
        Ok(Batch::in_line(found + fed, more))
    }

    /// Reads more of the keys that run short.
    pub(super) async fn feed(&mut self) -> Result<usize, Error> {
        let Some(bound) = self.bound else {
            return Ok(0);
        };
        let room = self.dispatcher.lines.free();
        if room == 0 {
            // A pass waits for room, and comes by here again.
            self.alarm.ring();
            return Ok(0);
        }
        let hungry = self.dispatcher.lines.take_hungry(KEYS);
        let Some(after) = hungry.iter().map(|(_, after)| *after).min() else {
            return Ok(0);
        };
        let keys: Vec<_> = hungry.iter().map(|(key, _)| key.clone()).collect();
        let wanted = Wanted::InOrder {
            since: Some(bound.since),
            up_to: Some(bound.up_to),
            keys: Some(&keys),
            without: &[],
        };
        let limit = room.min(100 * hungry.len());
        let fed = async {
            let Some(rows) = self.rows(LaneSet::ALL, after, limit, wanted).await? else {
                return Ok((0, Some(0)));
            };
            let full = rows.rows.len() == limit;
            let (found, last) = self.line_up(rows).await?;
            Ok((found, full.then_some(last)))
        }
        .await;
        match fed {
            Ok((found, as_far_as)) => {
                self.dispatcher.lines.fed(&hungry, as_far_as);
                Ok(found)
            }
            Err(error) => {
                // As hungry as before: otherwise a pass under way would put later ones in line.
                self.dispatcher.lines.fed(&hungry, Some(0));
                Err(error)
            }
        }
    }

    /// `None`: lanes were added meanwhile, and may have been somebody else's while they were being read.
    async fn rows(
        &self,
        lanes: LaneSet,
        after: i64,
        limit: usize,
        wanted: Wanted<'_>,
    ) -> Result<Option<LaneRows>, Error> {
        let read = LaneRead {
            lanes,
            after,
            limit,
            wanted,
        };
        let gains = self.dispatcher.in_flight.lanes().gains;
        self.dispatcher.in_flight.begin_read();
        let rows = in_time("reading lanes", self.store.read_lanes(&read)).await?;
        if self.dispatcher.in_flight.lanes().gains != gains {
            return Ok(None);
        }
        Ok(Some(rows))
    }

    /// Puts rows in line. Returns how many, and the last row's place.
    async fn line_up(&self, rows: LaneRows) -> Result<(usize, i64), Error> {
        let dispatcher = &self.dispatcher;
        let queued_at = Instant::now();
        let last = rows.rows.last().map_or(0, |last| last.row.lease.seq);
        let admissions = dispatcher.in_flight.admit_from_lanes(&rows.rows);
        let (mut in_line, mut keyless, mut ended) = (Vec::with_capacity(rows.rows.len()), Vec::new(), Vec::new());
        for (LaneRow { row, lane, rests }, admission) in rows.rows.into_iter().zip(admissions) {
            let key = row.event.as_ref().ok().and_then(key);
            if row.recovered || !rests.is_zero() {
                if dispatcher.in_flight.knows(row.lease.seq) {
                    continue;
                }
                in_line.extend(key.map(|key| Standing::HeldBack { key, lane }));
                if row.recovered {
                    ended.push(row.lease);
                } else {
                    self.alarm.ring_after(rests);
                }
            } else if let Some(admission) = admission {
                match key {
                    // A row that has a key can be decoded.
                    Some(key) => {
                        let job = Job::cold(admission, row, queued_at).ok();
                        in_line.extend(job.map(|job| Standing::Job { key, lane, job }));
                    }
                    None => keyless.push((admission, row)),
                }
            }
        }
        let mut found = dispatcher.enqueue_in_order(in_line);
        found += keyless.len();
        found -= dispatcher.enqueue_cold(keyless).await.len();
        release_ended(&*self.store, dispatcher, &self.alarm, ended).await?;
        dispatcher.in_flight.end_read();
        Ok((found, last))
    }
}
