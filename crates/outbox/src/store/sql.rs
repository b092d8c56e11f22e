//! The store of a database that speaks SQL: what a [`Driver`] says, as a [`Store`]. What is not on the hot path (`admin.rs`,
//! `read.rs`, `share.rs`) is written once, with the dialect's spelling.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::Pool;
use sqlx::pool::PoolOptions;
use tracing::Instrument;

use super::batch::Batch;
use super::driver::Driver;
use super::{Attempt, Claim, Claimed, Explain, Filter, Lease, Page, Purge, Purged, Settled, Settlement, Stats};
use super::{BlockedKey, LaneRead, LaneRows, LaneSet, LaneShare, News, Ownership, Store, StoredEvent, Wakeups};
use super::{Unsettled, Wanted, Writers, admin, read, share};
use crate::error::{Error, database, is_conflict};
use crate::event::EventId;
use crate::table::TableName;

/// A small pool of our own to the database of the user's pool.
///
/// The application may use up all of its connections, and the delivery still goes on; and settings which our statements
/// want do not touch the application's.
pub(crate) fn own_pool<D: Driver>(theirs: &Pool<D>) -> Pool<D> {
    let connect = (*theirs.connect_options()).clone();
    let options = PoolOptions::new()
        .min_connections(0)
        .max_connections(4)
        .acquire_timeout(Duration::from_secs(10))
        .idle_timeout(Duration::from_secs(300))
        .test_before_acquire(false);
    let (options, connect) = D::own_options(options, connect);
    options.connect_lazy_with(connect)
}

/// How often a statement is tried that loses against another transaction.
const CONFLICT_TRIES: u32 = 10;

/// Runs `work` again after a deadlock or a busy database: both mean that nothing happened.
pub(crate) async fn retrying<T, F: Future<Output = Result<T, sqlx::Error>>>(
    operation: &'static str,
    mut work: impl FnMut() -> F,
) -> Result<T, Error> {
    let mut tried = 1;
    loop {
        match work().await {
            Err(error) if is_conflict(&error) && tried < CONFLICT_TRIES => {
                tracing::debug!(operation, tried, %error, "lost against another transaction, trying again");
                let longest = 2_u64 << tried;
                tokio::time::sleep(Duration::from_millis(rand::random_range(1..=longest))).await;
                tried += 1;
            }
            result => return result.map_err(database(operation)),
        }
    }
}

/// The store of a database that speaks SQL.
pub(crate) struct SqlStore<D: Driver> {
    /// For whatever is not the poller's.
    pub(super) pool: Pool<D>,
    /// For what the poller does: see [`Driver::reading`].
    pub(super) reading: Pool<D>,
    pub(super) table: TableName,
    sql: Arc<D::Sql>,
}

/// A statement on its way.
type Running<'a, T> = Pin<Box<dyn Future<Output = Result<T, sqlx::Error>> + Send + 'a>>;

impl<D: Driver> SqlStore<D> {
    /// On the given pool, which should be our own: see [`own_pool`].
    pub(crate) fn new(pool: Pool<D>, table: &TableName) -> Self {
        Self {
            reading: D::reading(&pool),
            pool,
            table: table.clone(),
            sql: Arc::new(D::statements(table)),
        }
    }

    /// Runs `work` to its end, even if the caller gives up on it: dropped half way, while a statement is being prepared,
    /// it would leave a connection of MySQL out of step with its server, and that would go back to the pool.
    async fn run<T: Send + 'static, A: Send + Sync + 'static>(
        &self,
        operation: &'static str,
        arguments: A,
        work: impl for<'a> Fn(&'a Self, &'a A) -> Running<'a, T> + Send + Sync + 'static,
    ) -> Result<T, Error> {
        let store = Self {
            pool: self.pool.clone(),
            reading: self.reading.clone(),
            table: self.table.clone(),
            sql: Arc::clone(&self.sql),
        };
        let task = async move { retrying(operation, || work(&store, &arguments)).await };
        match tokio::spawn(task.in_current_span()).await {
            Ok(result) => result,
            Err(stopped) => match stopped.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down.
                Err(_) => Err(database(operation)(sqlx::Error::WorkerCrashed)),
            },
        }
    }
}

impl<D: Driver> SqlStore<D> {
    async fn write(&self, owner: &str, by: Ownership, batch: &Batch) -> Result<u64, sqlx::Error> {
        let member = (by != Ownership::Rows).then_some(owner);
        let blocks = by == Ownership::Keys && batch.holds_keys_back();
        if D::is_one_statement(batch, member) && !blocks {
            return D::write(&mut *self.pool.acquire().await?, &self.sql, owner, batch, member).await;
        }
        let mut tx = D::begin(&self.pool, &self.sql).await?;
        if let Some(member) = member
            && !share::hold(self, &mut tx, member).await?
        {
            tx.rollback().await?;
            return Ok(0);
        }
        let applied = D::write(&mut tx, &self.sql, owner, batch, None).await?;
        if blocks {
            read::block(self, &mut tx, &batch.later(), false).await?;
            read::block(self, &mut tx, &batch.parked(), true).await?;
        }
        tx.commit().await?;
        Ok(applied)
    }
}

impl<D: Driver> fmt::Debug for SqlStore<D> {
    /// Without the pool, whose options hold the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlStore")
            .field("database", &D::DATABASE)
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl<D: Driver> Store for SqlStore<D> {
    fn name(&self) -> &'static str {
        D::DATABASE
    }

    fn table(&self) -> &str {
        self.table.as_str()
    }

    async fn schema_version(&self) -> Result<i64, Error> {
        crate::migrate::version(&self.pool, &self.table).await
    }

    async fn claim(&self, claim: &Claim<'_>) -> Result<Vec<Claimed>, Error> {
        let Claim {
            lease,
            limit,
            skip_recent,
            after,
            ..
        } = *claim;
        let mut claimed = self
            .run("claiming events", claim.owner.to_owned(), move |store, owner| {
                let claim = Claim {
                    owner,
                    lease,
                    limit,
                    skip_recent,
                    after,
                };
                Box::pin(async move { D::claim(&store.pool, &store.reading, &store.sql, &claim).await })
            })
            .await?;
        claimed.sort_unstable_by_key(|row| (row.due_at, row.lease.seq));
        Ok(claimed)
    }

    async fn read_leased(&self, leases: &[Lease], at_least: Duration) -> Result<Vec<Claimed>, Error> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        self.run("reading leased events", leases.to_vec(), move |store, leases| {
            Box::pin(D::read_leased(&store.reading, &store.sql, leases, at_least))
        })
        .await
    }

    async fn settle(&self, owner: &str, by: Ownership, settlements: &[Settlement]) -> Result<Settled, Error> {
        if settlements.is_empty() {
            return Ok(Settled::default());
        }
        let arguments = (owner.to_owned(), Batch::of(settlements));
        let applied = self
            .run("settling events", arguments, move |store, (owner, batch)| {
                Box::pin(store.write(owner, by, batch))
            })
            .await?;
        Ok(Settled {
            applied,
            stale: (settlements.len() as u64).saturating_sub(applied),
        })
    }

    async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Lease>, Error> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        self.run("renewing leases", leases.to_vec(), move |store, leases| {
            Box::pin(D::renew(&store.pool, &store.sql, leases, lease))
        })
        .await
    }

    async fn release(&self, leases: &[Lease]) -> Result<u64, Error> {
        if leases.is_empty() {
            return Ok(0);
        }
        self.run("releasing leases", leases.to_vec(), |store, leases| {
            Box::pin(D::release(&store.pool, &store.sql, leases))
        })
        .await
    }

    async fn release_all(&self) -> Result<u64, Error> {
        self.run("releasing all leases", (), |store, ()| {
            Box::pin(admin::release_all(store))
        })
        .await
    }

    async fn purge(&self, purge: &Purge, after: i64) -> Result<Purged, Error> {
        self.run("purging events", purge.clone(), move |store, purge| {
            Box::pin(admin::purge(store, purge, after))
        })
        .await
    }

    async fn lead(&self, name: &str, owner: &str, lease: Duration) -> Result<bool, Error> {
        let arguments = (name.to_owned(), owner.to_owned());
        self.run("taking a named lease", arguments, move |store, (name, owner)| {
            Box::pin(admin::lead(store, name, owner, lease))
        })
        .await
    }

    async fn resign(&self, name: &str, owner: &str) -> Result<(), Error> {
        let arguments = (name.to_owned(), owner.to_owned());
        self.run("giving up a named lease", arguments, |store, (name, owner)| {
            Box::pin(admin::resign(store, name, owner))
        })
        .await
    }

    async fn share_lanes(
        &self,
        member: &str,
        joining: bool,
        lease: Duration,
        take: bool,
    ) -> Result<Option<LaneShare>, Error> {
        self.run("sharing lanes", member.to_owned(), move |store, member| {
            Box::pin(share::share(store, member, joining, lease, take))
        })
        .await
    }

    async fn give_up_lanes(&self, member: &str, lanes: LaneSet) -> Result<(), Error> {
        self.run("giving up lanes", member.to_owned(), move |store, member| {
            Box::pin(share::give_up(store, member, lanes))
        })
        .await
    }

    async fn leave(&self, member: &str) -> Result<(), Error> {
        self.run("leaving", member.to_owned(), |store, member| {
            Box::pin(share::leave(store, member))
        })
        .await
    }

    async fn read_lanes(&self, read: &LaneRead<'_>) -> Result<LaneRows, Error> {
        if read.lanes.is_empty() || read.limit == 0 {
            return Ok(LaneRows::default());
        }
        let (statement, begins) = (read::statement(self, read), read::begins(read));
        self.run("reading lanes", statement, move |store, statement| {
            Box::pin(read::read(store, statement.clone(), begins))
        })
        .await
    }

    async fn unsettled(&self, after: i64) -> Result<Unsettled, Error> {
        self.run("reading lanes", (), move |store, ()| {
            Box::pin(read::unsettled(store, after))
        })
        .await
    }

    async fn writers(&self) -> Result<Option<Writers>, Error> {
        self.run("asking who writes", (), |store, ()| {
            Box::pin(D::writers(&store.reading, &store.table))
        })
        .await
    }

    async fn blocked_keys(&self, page: Page) -> Result<Vec<BlockedKey>, Error> {
        self.run("reading blocked keys", (), move |store, ()| {
            Box::pin(read::blocked(store, page))
        })
        .await
    }

    async fn unblock_key(&self, aggregate_type: &str, aggregate_id: &str) -> Result<bool, Error> {
        let key = (aggregate_type.to_owned(), aggregate_id.to_owned());
        self.run("unblocking a key", key, |store, (aggregate_type, aggregate_id)| {
            Box::pin(read::unblock(store, aggregate_type, aggregate_id))
        })
        .await
    }

    async fn fetch(&self, id: &EventId) -> Result<Option<StoredEvent>, Error> {
        let found = self.find(&Filter::id(id), Page { after: 0, limit: 1 }).await?;
        Ok(found.into_iter().next())
    }

    async fn attempts(&self, id: &EventId) -> Result<Vec<Attempt>, Error> {
        self.run("reading failed attempts", id.clone(), |store, id| {
            Box::pin(admin::attempts(store, id))
        })
        .await
    }

    async fn find(&self, filter: &Filter, page: Page) -> Result<Vec<StoredEvent>, Error> {
        self.run("finding events", filter.clone(), move |store, filter| {
            Box::pin(admin::find(store, filter, page))
        })
        .await
    }

    async fn count(&self, filter: &Filter, at_most: u64) -> Result<u64, Error> {
        self.run("counting events", filter.clone(), move |store, filter| {
            Box::pin(admin::count(store, filter, at_most))
        })
        .await
    }

    async fn replay(&self, filter: &Filter, limit: usize) -> Result<u64, Error> {
        self.run("replaying events", filter.clone(), move |store, filter| {
            Box::pin(admin::replay(store, filter, limit))
        })
        .await
    }

    async fn discard(&self, filter: &Filter, limit: usize) -> Result<u64, Error> {
        self.run("discarding events", filter.clone(), move |store, filter| {
            Box::pin(admin::discard(store, filter, limit))
        })
        .await
    }

    async fn stats(&self, at_most: u64) -> Result<Stats, Error> {
        self.run("reading the state of the outbox", (), move |store, ()| {
            Box::pin(admin::stats(store, at_most))
        })
        .await
    }

    async fn notify(&self, news: News) -> Result<(), Error> {
        D::notify(&self.pool, &self.table, news)
            .await
            .map_err(database("notifying"))
    }

    async fn wakeups(&self) -> Result<Option<Box<dyn Wakeups>>, Error> {
        D::wakeups(&self.pool, &self.table).await.map_err(database("listening"))
    }

    /// What a node needs as soon as it delivers: a connection that reads, and two that write.
    async fn connect(&self) -> Result<(), Error> {
        self.run("connecting", (), |store, ()| {
            Box::pin(async move {
                let mut held = Vec::new();
                for _ in 0..store.pool.options().get_max_connections().min(2) {
                    held.push(store.pool.acquire().await?);
                }
                // Let go before: it may be the same pool.
                drop(held);
                store.reading.acquire().await.map(drop)
            })
        })
        .await
    }

    async fn explain(&self, statement: Explain) -> Result<String, Error> {
        let failed = database("explaining a statement");
        let wanted = match statement {
            Explain::ReadLanes => Wanted::Deliverable {
                skip_recent: Duration::ZERO,
            },
            Explain::ReadInOrder => Wanted::InOrder {
                since: None,
                up_to: None,
                keys: None,
                without: &[],
            },
            _ => return D::explain(&self.pool, &self.sql, statement).await.map_err(failed),
        };
        let read = LaneRead {
            lanes: LaneSet::ALL,
            after: 0,
            limit: 100,
            wanted,
        };
        let statement = read::statement(self, &read);
        D::explain_read(&self.pool, statement).await.map_err(failed)
    }
}
