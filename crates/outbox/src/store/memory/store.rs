use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use super::super::{
    Attempt, Claim, Claimed, Explain, Filter, Instant, Lease, Page, Purge, Purged, Settled, Settlement,
};
use super::super::{BlockedKey, LaneRead, LaneRows, LaneSet, LaneShare, Ownership};
use super::super::{News, Stats, Store, StoredEvent, Unsettled, Wakeups};
use super::rows::Rows;
use super::{Calls, MemoryPool};
use crate::error::Error;
use crate::event::EventId;
use crate::table::TableName;

/// The delivery's side of a [`MemoryPool`]. Each method is atomic because it holds the pool's lock.
pub(super) struct MemoryStore {
    pool: MemoryPool,
    table: TableName,
}

impl MemoryStore {
    pub(super) fn new(pool: MemoryPool, table: TableName) -> Self {
        Self { pool, table }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Rows, Instant) -> T) -> T {
        self.pool.with(|shared| {
            let now = shared.now();
            work(shared.rows(&self.table), now)
        })
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn table(&self) -> &str {
        self.table.as_str()
    }

    async fn schema_version(&self) -> Result<i64, Error> {
        Ok(crate::migrate::LATEST)
    }

    async fn claim(&self, claim: &Claim<'_>) -> Result<Vec<Claimed>, Error> {
        Ok(self.with(|rows, now| rows.claim(claim, now)))
    }

    async fn read_leased(&self, leases: &[Lease], at_least: Duration) -> Result<Vec<Claimed>, Error> {
        Ok(self.with(|rows, now| rows.read_leased(leases, at_least, now)))
    }

    async fn settle(&self, owner: &str, by: Ownership, settlements: &[Settlement]) -> Result<Settled, Error> {
        let applied = self.with(|rows, now| {
            let settled = settlements
                .iter()
                .filter(|settlement| rows.settle(owner, by, settlement, now));
            settled.count() as u64
        });
        Ok(Settled {
            applied,
            stale: settlements.len() as u64 - applied,
        })
    }

    async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Lease>, Error> {
        Ok(self.with(|rows, now| rows.renew(leases, lease, now)))
    }

    async fn release(&self, leases: &[Lease]) -> Result<u64, Error> {
        Ok(self.with(|rows, _| rows.release(leases)))
    }

    async fn release_all(&self) -> Result<u64, Error> {
        Ok(self.with(|rows, _| rows.release_all()))
    }

    async fn purge(&self, purge: &Purge, after: i64) -> Result<Purged, Error> {
        Ok(self.with(|rows, now| rows.purge(purge, after, now)))
    }

    async fn lead(&self, name: &str, owner: &str, lease: Duration) -> Result<bool, Error> {
        Ok(self.with(|rows, now| rows.lead(name, owner, lease, now)))
    }

    async fn resign(&self, name: &str, owner: &str) -> Result<(), Error> {
        self.with(|rows, _| rows.resign(name, owner));
        Ok(())
    }

    async fn share_lanes(
        &self,
        member: &str,
        joining: bool,
        lease: Duration,
        take: bool,
    ) -> Result<Option<LaneShare>, Error> {
        Ok(self.with(|rows, now| rows.lanes.share(member, joining, lease, take, now)))
    }

    async fn give_up_lanes(&self, member: &str, lanes: LaneSet) -> Result<(), Error> {
        self.with(|rows, _| rows.lanes.give_up(member, lanes));
        Ok(())
    }

    async fn leave(&self, member: &str) -> Result<(), Error> {
        self.with(|rows, _| rows.lanes.leave(member));
        Ok(())
    }

    async fn read_lanes(&self, read: &LaneRead<'_>) -> Result<LaneRows, Error> {
        Ok(self.with(|rows, now| rows.read_lanes(read, now)))
    }

    async fn unsettled(&self, after: i64) -> Result<Unsettled, Error> {
        Ok(self.with(|rows, _| rows.unsettled(after)))
    }

    async fn blocked_keys(&self, page: Page) -> Result<Vec<BlockedKey>, Error> {
        Ok(self.with(|rows, now| rows.blocked_keys(page, now)))
    }

    async fn unblock_key(&self, aggregate_type: &str, aggregate_id: &str) -> Result<bool, Error> {
        let key = (aggregate_type.to_owned(), aggregate_id.to_owned());
        Ok(self.with(|rows, now| rows.unblock_key(&key, now)))
    }

    async fn fetch(&self, id: &EventId) -> Result<Option<StoredEvent>, Error> {
        let found = self.find(&Filter::id(id), Page { after: 0, limit: 1 }).await?;
        Ok(found.into_iter().next())
    }

    async fn attempts(&self, id: &EventId) -> Result<Vec<Attempt>, Error> {
        Ok(self.with(|rows, _| rows.attempts(id.as_str())))
    }

    async fn find(&self, filter: &Filter, page: Page) -> Result<Vec<StoredEvent>, Error> {
        Ok(self.with(|rows, _| rows.find(filter, page)))
    }

    async fn count(&self, filter: &Filter, at_most: u64) -> Result<u64, Error> {
        Ok(self.with(|rows, _| rows.count(filter, at_most)))
    }

    async fn replay(&self, filter: &Filter, limit: usize) -> Result<u64, Error> {
        Ok(self.with(|rows, now| rows.replay(filter, limit, now)))
    }

    async fn discard(&self, filter: &Filter, limit: usize) -> Result<u64, Error> {
        Ok(self.with(|rows, now| rows.discard(filter, limit, now)))
    }

    async fn stats(&self, at_most: u64) -> Result<Stats, Error> {
        Ok(self.with(|rows, now| rows.stats(at_most, now)))
    }

    async fn notify(&self, news: News) -> Result<(), Error> {
        self.pool.call(news);
        Ok(())
    }

    async fn wakeups(&self) -> Result<Option<Box<dyn Wakeups>>, Error> {
        let calls = self.pool.calls.subscribe();
        let lanes = calls.borrow().lanes;
        Ok(Some(Box::new(Listener { calls, lanes })))
    }

    async fn explain(&self, _statement: Explain) -> Result<String, Error> {
        Ok("in memory: pending rows lie in a tree of their own, leases are found by seq".to_owned())
    }
}

struct Listener {
    calls: watch::Receiver<Calls>,
    /// How often lanes had been told of when last heard.
    lanes: u64,
}

#[async_trait]
impl Wakeups for Listener {
    async fn next(&mut self) -> Result<News, Error> {
        // An error means that the database is gone: nobody will call again.
        if self.calls.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        let lanes = self.calls.borrow_and_update().lanes;
        Ok(match std::mem::replace(&mut self.lanes, lanes) == lanes {
            true => News::Events,
            false => News::Lanes,
        })
    }
}
