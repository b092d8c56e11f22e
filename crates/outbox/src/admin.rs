//! What operators do, for the command line, and whatever else has a face.

use std::sync::Arc;

use crate::error::Error;
use crate::event::EventId;
use crate::purge::{self, PurgePolicy};
use crate::service::in_time;
use crate::store::{Attempt, BlockedKey, Filter, News, Page, Stats, Status, Store, StoredEvent};

/// Events per step of an action on many.
const STEP: usize = 500;

/// Sees and repairs what is in the table. Every action on a row puts up its fence, so that a delivery under way cannot
/// undo it.
#[derive(Clone, Debug)]
pub struct Admin {
    store: Arc<dyn Store>,
}

impl Admin {
    /// On the given tables.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store }
    }

    /// How much there is to do; counts end at `at_most` per status.
    ///
    /// # Errors
    /// [`Error::Database`], [`Error::Timeout`]; so for all methods.
    pub async fn stats(&self, at_most: u64) -> Result<Stats, Error> {
        in_time("reading the state of the outbox", self.store.stats(at_most)).await
    }

    /// One event.
    pub async fn show(&self, id: &EventId) -> Result<Option<StoredEvent>, Error> {
        in_time("reading an event", self.store.fetch(id)).await
    }

    /// The failed attempts of an event, the oldest first.
    pub async fn attempts(&self, id: &EventId) -> Result<Vec<Attempt>, Error> {
        in_time("reading failed attempts", self.store.attempts(id)).await
    }

    /// Events that match, in the order they were written.
    pub async fn list(&self, filter: &Filter, page: Page) -> Result<Vec<StoredEvent>, Error> {
        in_time("finding events", self.store.find(filter, page)).await
    }

    /// How many events match, counted up to `at_most`.
    pub async fn count(&self, filter: &Filter, at_most: u64) -> Result<u64, Error> {
        in_time("counting events", self.store.count(filter, at_most)).await
    }

    /// Makes dead events that match new again, in steps; `progress` hears how many so far. Pollers of other processes are
    /// woken where the database can. Cancelled, the steps so far stand.
    pub async fn replay(&self, filter: &Filter, progress: impl FnMut(u64)) -> Result<u64, Error> {
        let filter = Filter {
            statuses: vec![Status::Dead],
            ..filter.clone()
        };
        let replayed = self
            .in_steps(progress, async |limit| self.store.replay(&filter, limit).await)
            .await?;
        if replayed > 0 {
            metrics::counter!(crate::telemetry::REPLAYED, "outbox" => self.store.table().to_owned())
                .increment(replayed);
            in_time("notifying", self.store.notify(News::Events)).await?;
        }
        Ok(replayed)
    }

    /// Deletes events that match and that nobody is delivering, in steps; `progress` hears how many so far. Cancelled, the
    /// steps so far stand.
    pub async fn discard(&self, filter: &Filter, progress: impl FnMut(u64)) -> Result<u64, Error> {
        self.in_steps(progress, async |limit| self.store.discard(filter, limit).await)
            .await
    }

    /// Keys whose events wait, because one of them failed or is dead, in the order of those events.
    pub async fn blocked_keys(&self, page: Page) -> Result<Vec<BlockedKey>, Error> {
        in_time("reading blocked keys", self.store.blocked_keys(page)).await
    }

    /// Lets a key go on: with the event that failed; or, if that is dead, with the one after it. Its owner takes it up with
    /// the first poll after two seconds, at most a `poll_interval` later. False if the key was not blocked.
    pub async fn unblock_key(&self, aggregate_type: &str, aggregate_id: &str) -> Result<bool, Error> {
        let unblocked = in_time("unblocking a key", self.store.unblock_key(aggregate_type, aggregate_id)).await?;
        if unblocked {
            in_time("notifying", self.store.notify(News::Events)).await?;
        }
        Ok(unblocked)
    }

    /// Purges once; `progress` hears how many so far.
    pub async fn purge(&self, policy: &PurgePolicy, progress: impl FnMut(u64)) -> Result<u64, Error> {
        purge::run_once(&*self.store, policy, progress).await
    }

    async fn in_steps(
        &self,
        mut progress: impl FnMut(u64),
        step: impl AsyncFn(usize) -> Result<u64, Error>,
    ) -> Result<u64, Error> {
        let mut total = 0;
        loop {
            let done = in_time("changing events", step(STEP)).await?;
            total += done;
            progress(total);
            if done < STEP as u64 {
                return Ok(total);
            }
        }
    }
}
