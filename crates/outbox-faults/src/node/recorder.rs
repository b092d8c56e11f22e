//! A store that writes down who takes and settles what, for the checker to judge the fence by; and, if this process is to
//! be wrong, is wrong.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox::store::{
    Attempt, BlockedKey, Claim, Claimed, Explain, Filter, LaneRead, LaneRows, LaneSet, LaneShare, Lease, News,
    Ownership, Page, Purge, Purged, Settled, Settlement, Stats, Store, StoredEvent, Unsettled, Wakeups, Writers,
};
use outbox::testing::facts::{Fact, Log};
use outbox::{Error, EventId, async_trait};

use super::broken::Broken;
use crate::clock;

/// Puts a recorder before every store of this process.
pub(crate) fn watch(log: &Arc<Log>, record: bool) {
    let log = record.then(|| Arc::clone(log));
    outbox::failpoint::wrap_stores(move |store| {
        Arc::new(Recorder {
            store,
            broken: Broken::of_this_process(),
            log: log.clone(),
            lanes: Mutex::default(),
        })
    });
}

#[derive(Debug)]
struct Recorder {
    store: Arc<dyn Store>,
    broken: Option<Broken>,
    log: Option<Arc<Log>>,
    lanes: Mutex<Lanes>,
}

/// What is read from lanes is not claimed: instead of the row's token, when the lane was taken tells who came later.
#[derive(Debug, Default)]
struct Lanes {
    held: LaneSet,
    taken: HashMap<u8, Taking>,
    rows: HashMap<i64, Taking>,
}

/// A lane was taken at some moment between these. A node that is stopped in between hears of it long after another one has
/// taken it over: so somebody came later only if he asked when this one had been answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Taking {
    asked: i64,
    answered: i64,
}

impl Recorder {
    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whatever the answer will be: if they are ours after this, they were taken anew.
    fn let_go(&self, given_up: LaneSet) {
        let mut lanes = self.lanes();
        lanes.held = lanes.held.without(given_up);
    }

    fn write(&self, facts: &[Fact]) {
        // A log that cannot be written shows in the result: deliveries are missing from it as well.
        if let Some(log) = &self.log
            && let Err(error) = log.write_all(facts)
        {
            tracing::error!(%error, "the log cannot be written");
        }
    }
}

#[async_trait]
impl Store for Recorder {
    async fn claim(&self, claim: &Claim<'_>) -> Result<Vec<Claimed>, Error> {
        let claimed = match &self.broken {
            Some(broken) => broken.claim(&*self.store, claim).await?,
            None => self.store.claim(claim).await?,
        };
        let at = clock::now();
        let taken = |row: &Claimed| Fact::Taken {
            seq: row.lease.seq,
            token: row.lease.token,
            at,
        };
        self.write(&claimed.iter().map(taken).collect::<Vec<_>>());
        Ok(claimed)
    }

    async fn settle(&self, owner: &str, by: Ownership, settlements: &[Settlement]) -> Result<Settled, Error> {
        let at = clock::now();
        // Now, not when it is answered: what is read again meanwhile is read under another name.
        let token = |one: &Settlement| match by {
            Ownership::Rows => one.lease.token,
            _ => self.lanes().rows.get(&one.lease.seq).map_or(0, |lane| lane.answered),
        };
        let tokens: Vec<i64> = settlements.iter().map(token).collect();
        let settled = match &self.broken {
            Some(broken) => broken.settle(&*self.store, owner, by, settlements).await?,
            None => self.store.settle(owner, by, settlements).await?,
        };
        let accepted = match (settled.applied, settled.stale) {
            (_, 0) => Some(true),
            (0, _) => Some(false),
            _ => None,
        };
        let written = |(one, token): (&Settlement, i64)| Fact::Settled {
            seq: one.lease.seq,
            token,
            at,
            accepted,
        };
        self.write(&settlements.iter().zip(tokens).map(written).collect::<Vec<_>>());
        Ok(settled)
    }

    async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Lease>, Error> {
        match &self.broken {
            Some(broken) => broken.renew(&*self.store, leases, lease).await,
            None => self.store.renew(leases, lease).await,
        }
    }

    fn name(&self) -> &'static str {
        self.store.name()
    }

    fn table(&self) -> &str {
        self.store.table()
    }

    async fn schema_version(&self) -> Result<i64, Error> {
        self.store.schema_version().await
    }

    async fn read_leased(&self, leases: &[Lease], at_least: Duration) -> Result<Vec<Claimed>, Error> {
        self.store.read_leased(leases, at_least).await
    }

    async fn release(&self, leases: &[Lease]) -> Result<u64, Error> {
        self.store.release(leases).await
    }

    async fn release_all(&self) -> Result<u64, Error> {
        self.store.release_all().await
    }

    async fn purge(&self, purge: &Purge, after: i64) -> Result<Purged, Error> {
        self.store.purge(purge, after).await
    }

    async fn lead(&self, name: &str, owner: &str, lease: Duration) -> Result<bool, Error> {
        self.store.lead(name, owner, lease).await
    }

    async fn resign(&self, name: &str, owner: &str) -> Result<(), Error> {
        self.store.resign(name, owner).await
    }

    async fn share_lanes(
        &self,
        member: &str,
        joining: bool,
        lease: Duration,
        take: bool,
    ) -> Result<Option<LaneShare>, Error> {
        let asked = clock::now().cast_signed();
        let share = self.store.share_lanes(member, joining, lease, take).await?;
        let answered = clock::now().cast_signed();
        let held = share.as_ref().map_or(LaneSet::NONE, |share| share.held);
        let mut lanes = self.lanes();
        for lane in held.without(lanes.held).iter() {
            lanes.taken.insert(lane, Taking { asked, answered });
        }
        lanes.held = held;
        drop(lanes);
        Ok(share)
    }

    async fn give_up_lanes(&self, member: &str, lanes: LaneSet) -> Result<(), Error> {
        self.let_go(lanes);
        self.store.give_up_lanes(member, lanes).await
    }

    async fn leave(&self, member: &str) -> Result<(), Error> {
        self.let_go(LaneSet::ALL);
        self.store.leave(member).await
    }

    async fn unsettled(&self, after: i64) -> Result<Unsettled, Error> {
        self.store.unsettled(after).await
    }

    async fn writers(&self) -> Result<Option<Writers>, Error> {
        self.store.writers().await
    }

    async fn read_lanes(&self, read: &LaneRead<'_>) -> Result<LaneRows, Error> {
        let found = self.store.read_lanes(read).await?;
        let at = clock::now();
        let mut taken = Vec::new();
        let mut lanes = self.lanes();
        for row in &found.rows {
            let seq = row.row.lease.seq;
            let lane = lanes.taken.get(&row.lane).copied().unwrap_or_default();
            if lanes.rows.insert(seq, lane) != Some(lane) {
                let token = lane.asked;
                taken.push(Fact::Taken { seq, token, at });
            }
        }
        drop(lanes);
        self.write(&taken);
        Ok(found)
    }

    async fn blocked_keys(&self, page: Page) -> Result<Vec<BlockedKey>, Error> {
        self.store.blocked_keys(page).await
    }

    async fn unblock_key(&self, aggregate_type: &str, aggregate_id: &str) -> Result<bool, Error> {
        self.store.unblock_key(aggregate_type, aggregate_id).await
    }

    async fn fetch(&self, id: &EventId) -> Result<Option<StoredEvent>, Error> {
        self.store.fetch(id).await
    }

    async fn attempts(&self, id: &EventId) -> Result<Vec<Attempt>, Error> {
        self.store.attempts(id).await
    }

    async fn find(&self, filter: &Filter, page: Page) -> Result<Vec<StoredEvent>, Error> {
        self.store.find(filter, page).await
    }

    async fn count(&self, filter: &Filter, at_most: u64) -> Result<u64, Error> {
        self.store.count(filter, at_most).await
    }

    async fn replay(&self, filter: &Filter, limit: usize) -> Result<u64, Error> {
        self.store.replay(filter, limit).await
    }

    async fn discard(&self, filter: &Filter, limit: usize) -> Result<u64, Error> {
        self.store.discard(filter, limit).await
    }

    async fn stats(&self, at_most: u64) -> Result<Stats, Error> {
        self.store.stats(at_most).await
    }

    async fn notify(&self, news: News) -> Result<(), Error> {
        self.store.notify(news).await
    }

    async fn wakeups(&self) -> Result<Option<Box<dyn Wakeups>>, Error> {
        self.store.wakeups().await
    }

    async fn connect(&self) -> Result<(), Error> {
        self.store.connect().await
    }

    async fn explain(&self, statement: Explain) -> Result<String, Error> {
        self.store.explain(statement).await
    }
}
