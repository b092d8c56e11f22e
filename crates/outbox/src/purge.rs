//! Purging: finished events are deleted when they are old enough, in bounded steps, by one node at a time.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::failpoint::fail_point;
use crate::service::{Pulse, in_time};
use crate::store::{Purge, Status, Store};
use crate::telemetry::Telemetry;

/// What is purged, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PurgePolicy {
    /// How long a finished event is kept. Default: seven days.
    pub retention: Duration,
    /// Which finished events go. Default: DONE and DEAD.
    pub statuses: Vec<Status>,
    /// Only events of these types; empty means all. Default: all.
    pub event_types: Vec<String>,
    /// Counts age from the writing, whatever the status: for tables that something else reads. Default: no.
    pub by_age_alone: bool,
    /// Rows per step. Default: 500.
    pub batch: usize,
    /// Between runs. Default: an hour.
    pub every: Duration,
}

impl Default for PurgePolicy {
    fn default() -> Self {
        Self {
            retention: Duration::from_secs(7 * 24 * 60 * 60),
            statuses: vec![Status::Done, Status::Dead],
            event_types: Vec::new(),
            by_age_alone: false,
            batch: 500,
            every: Duration::from_secs(60 * 60),
        }
    }
}

impl PurgePolicy {
    /// Keeps finished events this long.
    pub fn keep(retention: Duration) -> Self {
        Self {
            retention,
            ..Self::default()
        }
    }

    /// Deletes whatever was written longer ago than this, delivered or not: for a writer-only outbox whose table is read
    /// by something else.
    pub fn by_age(retention: Duration) -> Self {
        Self {
            retention,
            by_age_alone: true,
            ..Self::default()
        }
    }

    /// Which finished events go.
    pub fn statuses(mut self, statuses: impl IntoIterator<Item = Status>) -> Self {
        self.statuses = statuses.into_iter().collect();
        self
    }

    /// Only events of these types.
    pub fn event_types(mut self, types: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.event_types = types.into_iter().map(Into::into).collect();
        self
    }

    /// Rows per step.
    pub fn batch(mut self, rows: usize) -> Self {
        self.batch = rows.max(1);
        self
    }

    /// Between runs. At least 10 ms.
    pub fn every(mut self, interval: Duration) -> Self {
        self.every = interval.max(Duration::from_millis(10));
        self
    }

    fn steps(&self) -> Vec<Purge> {
        let types: Vec<Option<String>> = if self.event_types.is_empty() {
            vec![None]
        } else {
            self.event_types.iter().cloned().map(Some).collect()
        };
        types
            .into_iter()
            .map(|event_type| Purge {
                statuses: self.statuses.clone(),
                older_than: self.retention,
                event_type,
                by_age_alone: self.by_age_alone,
                limit: self.batch,
            })
            .collect()
    }
}

/// Purges a store, once, whoever else does: what [`Purger`] and the command line do.
pub(crate) async fn run_once(
    store: &dyn Store,
    policy: &PurgePolicy,
    mut deleted_so_far: impl FnMut(u64),
) -> Result<u64, Error> {
    let mut deleted = 0;
    for purge in policy.steps() {
        let mut after = Some(0);
        while let Some(from) = after {
            fail_point!("in-purge");
            let purged = in_time("purging events", store.purge(&purge, from)).await?;
            deleted += purged.deleted;
            deleted_so_far(deleted);
            after = purged.next;
            tokio::task::yield_now().await;
        }
    }
    Ok(deleted)
}

pub(crate) struct Purger {
    pub(crate) policy: PurgePolicy,
    pub(crate) owner: String,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) telemetry: Arc<Telemetry>,
}

impl Purger {
    /// The named lease that makes it one node at a time.
    const LEASE: &str = "purge";

    /// Runs until `soft` is cancelled.
    pub(crate) async fn run(self, soft: CancellationToken, pulse: Pulse) {
        loop {
            pulse.beat();
            let rest = tokio::time::sleep(self.policy.every);
            tokio::pin!(rest);
            loop {
                tokio::select! {
                    () = soft.cancelled() => return,
                    () = &mut rest => break,
                    () = tokio::time::sleep(Pulse::INTERVAL) => pulse.beat(),
                }
            }
            tokio::select! {
                () = soft.cancelled() => return,
                result = self.run_once(&pulse) => match result {
                    Ok(0) => {}
                    Ok(purged) => tracing::info!(purged, "purged finished events"),
                    Err(error) => tracing::error!(%error, "purging failed"),
                },
            }
        }
    }

    /// One run, unless another node is at it.
    pub(crate) async fn run_once(&self, pulse: &Pulse) -> Result<u64, Error> {
        // Longer than any run should take; given up at the end, and ending by itself if this node dies.
        let lease = Duration::from_secs(600);
        if !in_time("taking a named lease", self.store.lead(Self::LEASE, &self.owner, lease)).await? {
            return Ok(0);
        }
        let mut counted = 0;
        let result = run_once(&*self.store, &self.policy, |deleted| {
            pulse.beat();
            self.telemetry.purged.increment(deleted - counted);
            counted = deleted;
        })
        .await;
        in_time("giving up a named lease", self.store.resign(Self::LEASE, &self.owner)).await?;
        result
    }
}
