//! Keeping lanes: a member shows that it lives, takes its share, and hands over what others should have.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::alarm::Alarm;
use crate::dispatch::Dispatcher;
use crate::error::Error;
use crate::service::{Pulse, in_time};
use crate::store::{LaneSet, LaneShare, News, Ownership, Page, Store};

/// At most this long between two looks at who is there.
const LONGEST: Duration = Duration::from_secs(2);
/// At least this long, while a node that has died cannot be struck off yet.
const SOONEST: Duration = Duration::from_millis(100);
/// While it has less than its share, since what others hand over waits for it; and while nodes come and go.
const SHORT: Duration = Duration::from_millis(250);
/// Nodes are started together: where one has come or gone, another is likely to follow within this long.
const STIR: Duration = Duration::from_secs(3);
/// How often a lane that is being handed over is looked at.
const HANDING_OVER: Duration = Duration::from_millis(20);
/// How often blocked keys are counted, for the gauges.
const COUNT_EVERY: Duration = Duration::from_secs(15);
/// Blocked keys are counted up to this many.
const COUNT_UP_TO: usize = 10_000;

pub(crate) struct LaneKeeper {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) alarm: Arc<Alarm>,
    /// Another node has something to say about lanes.
    pub(crate) called: Arc<Notify>,
    /// This node. It joins under this name and a number, which goes up each time.
    pub(crate) node: String,
    pub(crate) joined: u32,
    pub(crate) counted: Option<Instant>,
    /// How many members there were, and since when.
    pub(crate) members: (usize, Instant),
}

impl LaneKeeper {
    /// Runs until `end` is cancelled, and leaves: the lanes are kept while a shutdown drains. From `soft` on no more are
    /// taken.
    pub(crate) async fn run(mut self, soft: CancellationToken, end: CancellationToken, pulse: Pulse) {
        let mut failing = false;
        while !end.is_cancelled() {
            let rest = match self.run_once(!soft.is_cancelled()).await {
                Ok(rest) => {
                    pulse.beat();
                    if std::mem::take(&mut failing) {
                        tracing::info!("sharing lanes works again");
                    }
                    rest
                }
                Err(error) => {
                    failing = true;
                    tracing::error!(%error, "lanes could not be shared");
                    self.often()
                }
            };
            tokio::select! {
                () = end.cancelled() => {}
                () = self.called.notified() => {}
                () = tokio::time::sleep(rest) => {}
            }
        }
        if let Err(error) = self.leave().await {
            tracing::error!(%error, "lanes could not be given up; others take them when the lease ends");
        }
    }

    async fn leave(&self) -> Result<(), Error> {
        in_time("leaving", self.store.leave(&self.member())).await?;
        self.tell().await;
        Ok(())
    }

    /// Others find out by themselves, but later.
    async fn tell(&self) {
        if let Err(error) = in_time("notifying", self.store.notify(News::Lanes)).await {
            tracing::warn!(%error, "other nodes could not be told of lanes");
        }
    }

    fn often(&self) -> Duration {
        (self.dispatcher.lease / 6).min(LONGEST)
    }

    /// One look. Returns when the next is due.
    pub(crate) async fn run_once(&mut self, take: bool) -> Result<Duration, Error> {
        let lease = self.dispatcher.lease;
        let mut joining = self.joined == 0;
        if joining {
            self.joined = 1;
        }
        // Measured before the database starts the lease by its own clock, so ours ends first.
        let started = Instant::now();
        let shared = match self.share(joining, take).await {
            Ok(Some(shared)) => shared,
            Ok(None) => {
                let lost = self.dispatcher.lose_lanes();
                self.dispatcher.telemetry.leases_lost.increment(lost);
                tracing::warn!(
                    lost,
                    "this node was taken for dead, its lanes were lost; it joins again"
                );
                self.joined += 1;
                joining = true;
                match self.share(true, take).await {
                    Ok(Some(shared)) => shared,
                    Ok(None) => return Ok(HANDING_OVER),
                    Err(error) => return Err(self.joins_anew(error)),
                }
            }
            Err(error) if joining => return Err(self.joins_anew(error)),
            Err(error) => return Err(error),
        };
        let handing_over = self.keep(&shared, started + lease).await?;
        // Only a gauge: it must not keep the node from renewing in time.
        if let Ok(Err(error)) = tokio::time::timeout(self.often(), self.count_blocked_keys()).await {
            tracing::warn!(%error, "blocked keys could not be counted");
        }
        if self.members.0 != shared.members {
            self.members = (shared.members, Instant::now());
        }
        if joining && shared.held.len() < shared.fair {
            self.tell().await;
        }
        let stirring = self.members.1.elapsed() < STIR;
        Ok(next_look(&shared, handing_over, stirring, self.often()))
    }

    /// Whether it has joined is unknown: the next time it joins under another name.
    fn joins_anew(&mut self, error: Error) -> Error {
        self.joined += 1;
        error
    }

    async fn share(&self, joining: bool, take: bool) -> Result<Option<LaneShare>, Error> {
        let (member, lease) = (self.member(), self.dispatcher.lease);
        in_time("sharing lanes", self.store.share_lanes(&member, joining, lease, take)).await
    }

    /// Opens what is ours to keep; what others should have is closed, and given up once nothing of it is under way. Returns
    /// whether something still is.
    async fn keep(&mut self, shared: &LaneShare, until: Instant) -> Result<bool, Error> {
        let dispatcher = Arc::clone(&self.dispatcher);
        let before = dispatcher.in_flight.lanes().open;
        let keep = shared.held.first(shared.fair);
        let excess = shared.held.without(keep);
        dispatcher.hold_lanes(&self.member(), keep, until, shared.members);
        dispatcher.telemetry.lanes_owned.set(shared.held.len() as f64);
        if keep != before {
            tracing::info!(
                lanes = keep.len(),
                handing_over = excess.len(),
                nodes = shared.members,
                "the lanes of this node"
            );
        }
        if !keep.without(before).is_empty() {
            self.alarm.ring();
        }
        let quiet = excess.without(dispatcher.in_flight.busy_lanes());
        if !quiet.is_empty() {
            let member = self.member();
            if let Err(error) = in_time("giving up lanes", self.store.give_up_lanes(&member, quiet)).await {
                // It may still be carried out, whenever that is: under this name nothing is certain any more. The next
                // look finds the new one not on the list, and joins.
                let lost = dispatcher.lose_lanes();
                dispatcher.telemetry.leases_lost.increment(lost);
                self.joined += 1;
                in_time("leaving", self.store.leave(&member)).await?;
                return Err(error);
            }
            self.tell().await;
        }
        Ok(excess != quiet)
    }

    fn member(&self) -> String {
        format!("{}#{}", self.node, self.joined)
    }

    async fn count_blocked_keys(&mut self) -> Result<(), Error> {
        if self.dispatcher.ownership != Ownership::Keys
            || self.counted.is_some_and(|counted| counted.elapsed() < COUNT_EVERY)
        {
            return Ok(());
        }
        self.counted = Some(Instant::now());
        let page = Page {
            after: 0,
            limit: COUNT_UP_TO,
        };
        let blocked = in_time("reading blocked keys", self.store.blocked_keys(page)).await?;
        let oldest = blocked.iter().map(|key| key.since).min();
        let age = oldest.map(|oldest| (chrono::Utc::now() - oldest).to_std().unwrap_or_default());
        self.dispatcher.telemetry.keys_blocked.set(blocked.len() as f64);
        self.dispatcher
            .telemetry
            .oldest_blocked
            .set(age.unwrap_or_default().as_secs_f64());
        Ok(())
    }
}

/// How long until the next look.
fn next_look(shared: &LaneShare, handing_over: bool, stirring: bool, often: Duration) -> Duration {
    let others_end = shared.next_end.map(|end| (end + Duration::from_millis(5)).max(SOONEST));
    // Where one node has all lanes, whoever comes changes nothing, and every look is a write that it would have to wait for.
    let one_has_all = shared.fair == 0 || (shared.members > 1 && shared.fair == LaneSet::ALL.len());
    let short = ((stirring && !one_has_all) || shared.held.len() < shared.fair).then_some(SHORT);
    let handing_over = handing_over.then_some(HANDING_OVER);
    [others_end, short, handing_over]
        .into_iter()
        .flatten()
        .fold(often, Duration::min)
}

impl Dispatcher {
    fn hold_lanes(&self, member: &str, open: LaneSet, until: Instant, members: usize) {
        self.in_flight.hold_lanes(member, open, until, members);
        for job in self.lines.close(LaneSet::ALL.without(open)) {
            self.in_flight.remove(job.admission);
        }
    }

    fn lose_lanes(&self) -> u64 {
        let lost = self.in_flight.lose_lanes();
        self.lines.close(LaneSet::ALL);
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(held: usize, fair: usize, next_end: Option<Duration>) -> LaneShare {
        LaneShare {
            held: LaneSet::ALL.first(held),
            fair,
            members: 2,
            next_end,
        }
    }

    const OFTEN: Duration = Duration::from_secs(2);

    #[test]
    fn a_node_that_has_its_share_looks_now_and_then() {
        assert_eq!(next_look(&shared(32, 32, None), false, false, OFTEN), OFTEN);
        assert_eq!(
            next_look(&shared(0, 0, None), false, false, OFTEN),
            OFTEN,
            "one that stands by"
        );
    }

    #[test]
    fn what_is_handed_over_does_not_wait_long() {
        assert_eq!(next_look(&shared(0, 32, None), false, false, OFTEN), SHORT);
        assert_eq!(next_look(&shared(64, 32, None), true, true, OFTEN), HANDING_OVER);
    }

    #[test]
    fn while_nodes_come_and_go_all_look_often() {
        assert_eq!(next_look(&shared(32, 32, None), false, true, OFTEN), SHORT);
        let alone = LaneShare {
            members: 1,
            ..shared(64, 64, None)
        };
        assert_eq!(next_look(&alone, false, true, OFTEN), SHORT);
    }

    #[test]
    fn where_one_node_has_all_lanes_nobody_looks_in_vain() {
        assert_eq!(next_look(&shared(64, 64, None), false, true, OFTEN), OFTEN);
        assert_eq!(next_look(&shared(0, 0, None), false, true, OFTEN), OFTEN);
    }

    #[test]
    fn a_node_that_dies_is_noticed_when_its_lease_ends_and_not_asked_after_all_the_time() {
        let soon = Duration::from_millis(700);
        assert_eq!(
            next_look(&shared(32, 32, Some(soon)), false, false, OFTEN),
            soon + Duration::from_millis(5)
        );
        assert_eq!(
            next_look(&shared(32, 32, Some(Duration::ZERO)), false, false, OFTEN),
            SOONEST
        );
    }
}
