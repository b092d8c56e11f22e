//! The hot path: committed events go from memory to the workers, without a read and without a claim.

use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::alarm::Alarm;
use crate::dispatch::Dispatcher;
use crate::event::Due;
use crate::notify::Bell;
use crate::store::{Born, Lease};
use crate::write::{Committed, Handoff};

/// Hands events of this process to its own dispatcher.
#[derive(Debug)]
pub(crate) struct HotPath {
    pub(crate) owner: String,
    pub(crate) lease: Duration,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) alarm: Arc<Alarm>,
    /// Off: rows belong to nobody when they are born, and the poller takes them.
    pub(crate) enabled: bool,
    /// Rung for what this node does not deliver by itself.
    pub(crate) bell: Option<Arc<Bell>>,
    /// From here on, rows are born free.
    pub(crate) stop: CancellationToken,
}

impl Handoff for HotPath {
    fn born(&self) -> Option<Born<'_>> {
        if !self.enabled || self.stop.is_cancelled() {
            return None;
        }
        // Half of the numbers, so that a token can go up forever.
        let token = rand::random_range(1..i64::MAX / 2);
        Some(Born {
            owner: &self.owner,
            lease: self.lease,
            token,
        })
    }

    fn committed(&self, events: Vec<Committed>) {
        let telemetry = &self.dispatcher.telemetry;
        let mut dropped = Vec::new();
        let mut wake = false;
        for Committed { lease, event, deadline } in events {
            match (lease, event.due()) {
                (Some(lease), _) => {
                    if self.dispatcher.enqueue_hot(lease, event, deadline) {
                        telemetry.hot_enqueued.increment(1);
                    } else {
                        dropped.push((lease, deadline));
                    }
                }
                (None, Due::Now) => wake = true,
                (None, Due::After(delay)) => {
                    telemetry.hot_skipped.increment(1);
                    self.alarm.ring_after(delay);
                }
                (None, Due::At(at)) => {
                    telemetry.hot_skipped.increment(1);
                    // By a clock that may differ from the database's: too early a poll finds nothing, too late a one is
                    // no later than the next ordinary one.
                    self.alarm.ring_after((at - Utc::now()).to_std().unwrap_or_default());
                }
            }
        }
        if !dropped.is_empty() {
            telemetry.hot_dropped.increment(dropped.len() as u64);
            tracing::warn!(
                events = dropped.len(),
                "the hot queue is full or closed; the poller delivers from the table"
            );
            self.alarm.look_up(dropped);
        } else if wake {
            self.alarm.ring();
        }
        if wake
            && let Some(bell) = &self.bell
            && self.dispatcher.in_flight.lanes().members > 1
        {
            bell.ring();
        }
    }

    fn unconfirmed(&self, leases: Vec<(Lease, Instant)>) {
        if leases.is_empty() {
            self.alarm.ring();
            if let Some(bell) = &self.bell {
                bell.ring();
            }
        } else {
            self.alarm.look_up(leases)
        }
    }
}
