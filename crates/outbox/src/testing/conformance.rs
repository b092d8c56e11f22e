//! The suite that every store passes: one case for each promise of the [`Store`] contract.
//!
//! A database takes part with a [`Harness`], and [`store_conformance!`](crate::store_conformance) makes a test of each
//! case:
//!
//! ```text
//! mod conformance {
//!     outbox::store_conformance!(postgres, crate::OnPostgres);
//! }
//! // runs conformance::postgres::stale_token_is_refused and all the others
//! ```
//!
//! No case waits for a fixed time and then hopes: each polls until what must happen has happened, or fails.
#![allow(clippy::unwrap_used, reason = "this is test code, which is to panic")]

mod admin;
mod claim;
mod clock;
mod lanes;
mod lead;
mod lease;
mod pace;
mod purge;
mod races;
mod settle;
mod write;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::event::{Event, EventId};
use crate::store::{Born, Claim, Claimed, Lease, NewRow, Ownership, Settled, Settlement, Store, StoredEvent, Verdict};
use crate::table::TableName;
use crate::write::Backend;

pub use admin::*;
pub use claim::*;
pub use clock::*;
pub use lanes::*;
pub use lead::*;
pub use lease::*;
pub use pace::*;
pub use purge::*;
pub use races::*;
pub use settle::*;
pub use write::*;

/// A database for one case.
pub trait Harness: Sized + Send + Sync + 'static {
    /// Which one.
    type Database: Backend;

    /// Creates tables, empty and up to date, that no other case uses. `case` may become part of a name.
    fn open(case: &str) -> impl Future<Output = Self> + Send;

    /// Where events are written.
    fn pool(&self) -> &<Self::Database as Backend>::Pool;

    /// The event table.
    fn table(&self) -> TableName {
        TableName::default()
    }

    /// Another store on the same tables, as another process would have it.
    fn store(&self) -> Arc<dyn Store> {
        Self::Database::store(self.pool(), &self.table())
    }

    /// Puts JSON into a row's headers past the library, as another program might.
    fn overwrite_headers(&self, id: &EventId, headers: &str) -> impl Future<Output = ()> + Send;
}

/// Makes a module with one test for each case of the suite. The crate needs `tokio` with `macros` and `rt-multi-thread`.
#[macro_export]
macro_rules! store_conformance {
    ($name:ident, $harness:ty) => {
        mod $name {
            $crate::store_conformance! { @cases $harness:
                // write
                every_field_comes_back
                every_way_of_writing_is_the_same
                json_comes_back_byte_for_byte
                bytes_come_back_byte_for_byte
                payload_at_the_limit_comes_back
                seq_is_the_order_of_writing
                rolled_back_rows_are_not_there
                rows_of_a_rolled_back_savepoint_are_not_there
                duplicate_id_is_refused
                failed_batch_leaves_nothing
                // claim
                claim_takes_the_longest_due_first
                claim_takes_no_more_than_asked_for
                claim_starts_after_a_place
                claim_leaves_recent_rows_alone
                claimed_row_is_not_claimed_again
                claim_counts_the_lag_from_when_the_row_was_due
                undecodable_row_can_be_settled
                // lease
                born_leased_row_belongs_to_its_writer
                born_lease_ends
                expired_lease_is_taken_over
                renewed_lease_does_not_end
                renew_returns_only_what_is_still_ours
                released_row_is_free_at_once
                release_all_ends_every_lease
                read_leased_returns_only_what_is_still_ours
                // settle
                settle_writes_mixed_outcomes
                stale_token_is_refused
                tokens_are_compared_row_by_row
                rows_between_the_settled_ones_are_left_alone
                repeated_settlement_changes_nothing
                settlement_after_the_lease_is_written_if_nobody_took_over
                done_and_deleted_row_is_gone
                retried_row_is_due_later
                deferred_row_counts_no_attempt
                finished_listeners_are_remembered
                long_error_is_cut
                error_with_nul_is_kept
                large_batch_is_settled_at_once
                nothing_to_settle_is_no_error
                // pace
                rare_statements_follow_each_other_at_once
                small_batches_follow_each_other_at_once
                // clock
                delayed_row_is_not_claimed_before_it_is_due
                row_available_at_an_instant_is_not_claimed_before
                application_clock_does_not_matter
                // races
                no_row_is_claimed_twice
                only_one_of_many_settlements_counts
                dropped_claim_leaves_the_store_usable
                // admin
                find_keeps_to_the_filter
                find_matches_error_text_literally
                find_goes_page_by_page
                count_ends_at_the_bound
                failed_attempts_are_remembered
                replay_makes_a_dead_event_new
                replay_goes_batch_by_batch
                replay_leaves_other_events_alone
                discard_deletes_what_matches
                discard_leaves_leased_events_alone
                stats_count_by_status_and_type
                stats_end_at_the_bound
                schema_is_up_to_date
                // purge
                purge_deletes_by_status
                purge_deletes_by_age
                purge_deletes_by_type
                purge_goes_step_by_step
                purge_never_deletes_pending_rows
                purge_forgets_the_attempts
                purge_by_age_alone_asks_for_no_status
                // lanes
                members_share_the_lanes
                joining_can_be_tried_again
                member_that_does_not_take_gets_nothing
                dead_member_is_struck_off
                member_that_leaves_frees_its_lanes
                no_lane_has_two_owners
                lanes_are_read_in_the_order_of_writing
                key_is_in_one_lane
                leased_rows_are_left_to_their_owner
                member_that_was_struck_off_settles_nothing
                takeover_and_settlement_do_not_overlap
                failed_event_holds_back_its_key
                key_is_free_when_its_event_is_due
                parked_key_waits_for_an_operator
                delayed_event_holds_nobody_back
                keys_can_be_asked_for_or_left_out
                unsettled_row_is_pending_or_parks_its_key
                writers_are_told_of_until_they_have_ended
                row_of_a_lane_is_settled_like_any_other
                rows_are_read_and_settled_by_whatever_lanes
                // lead
                one_of_many_leads
                leader_stays_until_the_lease_ends
                leader_that_resigns_is_replaced_at_once
                named_leases_are_independent
                notification_is_heard_where_there_is_one
            }
        }
    };
    (@cases $harness:ty: $($case:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn $case() {
            let harness = <$harness as $crate::testing::conformance::Harness>::open(stringify!($case)).await;
            $crate::testing::conformance::$case(&harness).await;
        }
    )*};
}

/// A lease that does not end while a test runs.
const LONG: Duration = Duration::from_secs(600);
/// A lease whose end a test waits for.
const SHORT: Duration = Duration::from_millis(300);
/// How long to wait for what must happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// Polls until `probe` finds something.
async fn until<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < end, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn event(event_type: &'static str) -> Event {
    Event::json(event_type, "{}").unwrap()
}

fn events(count: usize) -> Vec<Event> {
    (0..count).map(|_| event("Counted")).collect()
}

/// Writes and commits.
async fn write<H: Harness>(h: &H, events: &[Event]) -> Vec<i64> {
    write_born(h, events, None).await
}

async fn write_born<H: Harness>(h: &H, events: &[Event], born: Option<Born<'_>>) -> Vec<i64> {
    let statements = H::Database::statements(&h.table());
    let rows: Vec<_> = events.iter().map(|event| NewRow { event, born }).collect();
    let chunks: Vec<_> = rows.chunks(500).collect();
    let mut tx = H::Database::begin(h.pool(), &statements).await.unwrap();
    let inserted = H::Database::insert(&mut tx, &statements, &chunks).await.unwrap();
    H::Database::commit(tx).await.unwrap();
    if inserted.seqs.len() == events.len() {
        return inserted.seqs;
    }
    let (store, mut seqs) = (h.store(), Vec::new());
    for event in events {
        seqs.push(fetch(&*store, event.id()).await.seq);
    }
    seqs
}

/// Writes one event that is due at once.
async fn write_one<H: Harness>(h: &H) -> EventId {
    let event = event("Single");
    write(h, std::slice::from_ref(&event)).await;
    event.id().clone()
}

async fn claim(store: &dyn Store, owner: &str, lease: Duration) -> Vec<Claimed> {
    let claim = Claim {
        owner,
        lease,
        limit: 5_000,
        skip_recent: Duration::ZERO,
        after: None,
    };
    store.claim(&claim).await.unwrap()
}

/// Claims all there is, which is one row.
async fn claim_one(store: &dyn Store, owner: &str, lease: Duration) -> Claimed {
    let mut claimed = claim(store, owner, lease).await;
    assert_eq!(claimed.len(), 1, "{claimed:?}");
    claimed.remove(0)
}

async fn fetch(store: &dyn Store, id: &EventId) -> StoredEvent {
    let found = store.fetch(id).await.unwrap();
    found.unwrap_or_else(|| panic!("{id} is not in the table"))
}

/// A row with all that may not change behind our back.
async fn snapshot(store: &dyn Store, id: &EventId) -> String {
    format!("{:?}", fetch(store, id).await)
}

async fn settle(store: &dyn Store, settlements: &[(Lease, Verdict)]) -> Settled {
    let settlements: Vec<_> = settlements
        .iter()
        .map(|(lease, verdict)| Settlement::new(*lease, verdict.clone()))
        .collect();
    store.settle("settler", Ownership::Rows, &settlements).await.unwrap()
}

/// Settles what must be ours.
async fn settle_one(store: &dyn Store, lease: Lease, verdict: Verdict) {
    let settled = settle(store, &[(lease, verdict)]).await;
    assert_eq!((settled.applied, settled.stale), (1, 0));
}

fn retry(after: Duration, error: &str) -> Verdict {
    Verdict::Retry {
        after,
        error: error.to_owned(),
        done_by: Vec::new(),
    }
}

fn dead(error: &str) -> Verdict {
    Verdict::Dead {
        error: error.to_owned(),
        done_by: Vec::new(),
    }
}

fn defer(after: Duration) -> Verdict {
    Verdict::Defer {
        after,
        done_by: Vec::new(),
    }
}

/// Writes events that are dead for the given reason.
async fn write_dead<H: Harness>(h: &H, store: &dyn Store, events: &[Event], error: &str) {
    write(h, events).await;
    settle_all(store, dead(error)).await;
}

/// Settles everything that is due in the same way.
async fn settle_all(store: &dyn Store, verdict: Verdict) {
    let claimed = claim(store, "settler", LONG).await;
    let all: Vec<_> = claimed.iter().map(|row| (row.lease, verdict.clone())).collect();
    assert_eq!(settle(store, &all).await.applied, all.len() as u64);
}
