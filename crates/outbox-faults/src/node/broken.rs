//! Ways for a store to be wrong on purpose. A checker that has never failed is not trusted: it must catch each of these,
//! and `hot-before-commit`, which is in the library's writer.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use outbox::Error;
use outbox::store::{
    Claim, Claimed, Filter, Lease, Ownership, Page, Settled, Settlement, Status, Store, StoredEvent, Verdict,
};

/// How the store of this process is wrong.
#[derive(Debug)]
pub(crate) enum Broken {
    /// Whoever writes last is right, whoever owns the row.
    UnfencedSettle,
    /// A cursor: what was written before its place and committed after it was there is never read.
    SkippingPoller(AtomicI64),
    /// Leases are said to be renewed, and are not.
    LostRenewal,
    /// An event is marked when it is read, not when it was handled.
    DoneBeforeListener,
}

impl Broken {
    /// `None`: it is to be right.
    pub(crate) fn of_this_process() -> Option<Self> {
        [
            ("unfenced-settle", Self::UnfencedSettle),
            ("skipping-poller", Self::SkippingPoller(AtomicI64::new(0))),
            ("lost-renewal", Self::LostRenewal),
            ("done-before-listener", Self::DoneBeforeListener),
        ]
        .into_iter()
        .find_map(|(name, broken)| outbox::failpoint::is_broken(name).then_some(broken))
    }

    pub(crate) async fn claim(&self, store: &dyn Store, claim: &Claim<'_>) -> Result<Vec<Claimed>, Error> {
        let mut rows = store.claim(claim).await?;
        match self {
            Self::SkippingPoller(cursor) => {
                let last = rows.iter().map(|row| row.lease.seq).max().unwrap_or(0);
                let cursor = cursor.fetch_max(last, Ordering::SeqCst);
                rows.retain(|row| row.lease.seq > cursor);
            }
            Self::DoneBeforeListener => {
                let done = |row: &Claimed| Settlement::new(row.lease, Verdict::Done);
                let done: Vec<_> = rows.iter().map(done).collect();
                store.settle(claim.owner, Ownership::Rows, &done).await?;
            }
            Self::UnfencedSettle | Self::LostRenewal => {}
        }
        Ok(rows)
    }

    pub(crate) async fn settle(
        &self,
        store: &dyn Store,
        owner: &str,
        by: Ownership,
        settlements: &[Settlement],
    ) -> Result<Settled, Error> {
        let settled = store.settle(owner, by, settlements).await?;
        if !matches!(self, Self::UnfencedSettle) || settled.stale == 0 {
            return Ok(settled);
        }
        for settlement in settlements {
            if let Some(lease) = lease_of_anybody(store, settlement.lease.seq).await? {
                let verdict = settlement.verdict.clone();
                store
                    .settle(owner, Ownership::Rows, &[Settlement::new(lease, verdict)])
                    .await?;
            }
        }
        Ok(Settled {
            applied: settlements.len() as u64,
            stale: 0,
        })
    }

    pub(crate) async fn renew(
        &self,
        store: &dyn Store,
        leases: &[Lease],
        lease: Duration,
    ) -> Result<Vec<Lease>, Error> {
        match self {
            Self::LostRenewal => Ok(leases.to_vec()),
            _ => store.renew(leases, lease).await,
        }
    }
}

/// The lease that a pending row has now, whoever holds it.
async fn lease_of_anybody(store: &dyn Store, seq: i64) -> Result<Option<Lease>, Error> {
    let page = Page {
        after: seq - 1,
        limit: 1,
    };
    let found = store.find(&Filter::all(), page).await?;
    let pending = |row: &&StoredEvent| row.seq == seq && matches!(row.status, Status::New | Status::Retry);
    Ok(found.iter().find(pending).map(|row| Lease { seq, token: row.token }))
}
