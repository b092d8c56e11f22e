use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use super::super::row::{from_micros, instant, micros};
use super::super::{Attempt, Filter, Page, Stats, Status, StatusCount, StoredEvent};
use super::super::{
    BadRow, Claim, Claimed, Instant, Lease, NewRow, Ownership, Purge, Purged, Settlement, Verdict, cut,
};
use super::lanes::Lanes;
use crate::event::{Due, Event, EventError, Headers, Parts};

/// The tables of one outbox, as a database would keep them.
#[derive(Default)]
pub(super) struct Rows {
    /// Goes up with every insert, and never back: a rollback leaves a gap.
    last_seq: i64,
    rows: BTreeMap<i64, Row>,
    ids: HashMap<String, i64>,
    /// Pending rows alone, in the order they are due.
    pending: BTreeSet<(Instant, i64)>,
    named: HashMap<String, NamedLease>,
    pub(super) lanes: Lanes,
}

struct NamedLease {
    owner: String,
    lease_until: Instant,
}

/// A row of the event table, with its failed attempts.
pub(super) struct Row {
    lease: Lease,
    event: Event,
    /// What another program has written into the row's headers.
    foreign_headers: Option<String>,
    status: Status,
    attempts: u32,
    created_at: Instant,
    available_at: Instant,
    done_at: Option<Instant>,
    dead_at: Option<Instant>,
    last_error: Option<String>,
    locked_by: Option<String>,
    lease_until: Option<Instant>,
    done_by: Vec<String>,
    history: Vec<Attempt>,
}

impl Row {
    pub(super) fn new(seq: i64, row: &NewRow<'_>, now: Instant) -> Self {
        Self {
            lease: Lease {
                seq,
                token: row.token(),
            },
            event: as_read_back(row.event),
            foreign_headers: None,
            status: Status::New,
            attempts: 0,
            created_at: now,
            available_at: row.due_at().unwrap_or(now + row.due_after()),
            done_at: None,
            dead_at: None,
            last_error: None,
            locked_by: row.owner().map(str::to_owned),
            lease_until: row.lease().map(|lease| now + lease),
            done_by: Vec::new(),
            history: Vec::new(),
        }
    }

    pub(super) fn id(&self) -> &str {
        self.event.id().as_str()
    }

    pub(super) fn seq(&self) -> i64 {
        self.lease.seq
    }

    pub(super) fn status(&self) -> Status {
        self.status
    }

    pub(super) fn due_at(&self) -> Instant {
        self.available_at
    }

    pub(super) fn created_at(&self) -> Instant {
        self.created_at
    }

    pub(super) fn leased_until(&self) -> Option<Instant> {
        self.lease_until
    }

    /// What its order is kept by.
    pub(super) fn key(&self) -> Option<(String, String)> {
        let id = self.event.aggregate_id()?;
        Some((self.event.aggregate_type().to_string(), id.to_owned()))
    }

    pub(super) fn lane(&self) -> u8 {
        let mut hasher = DefaultHasher::new();
        match self.key() {
            Some(key) => key.hash(&mut hasher),
            None => self.id().hash(&mut hasher),
        }
        (hasher.finish() & 63) as u8
    }

    pub(super) fn is_free(&self, now: Instant) -> bool {
        self.lease_until.is_none_or(|until| until <= now)
    }

    fn free(&mut self) {
        self.locked_by = None;
        self.lease_until = None;
    }

    fn fail(&mut self, owner: &str, error: &str, now: Instant) {
        let error = cut(error);
        self.attempts += 1;
        self.lease.token += 1;
        self.history.push(Attempt {
            attempt: self.attempts,
            node: owner.to_owned(),
            error: error.clone(),
            failed_at: instant(now),
        });
        self.last_error = Some(error);
        self.free();
    }

    fn event(&self) -> Result<Event, EventError> {
        if let Some(headers) = &self.foreign_headers {
            Headers::from_json(headers)?;
        }
        Ok(self.event.clone())
    }

    pub(super) fn claimed(&self, now: Instant) -> Claimed {
        Claimed {
            lease: self.lease,
            event: self.event().map_err(|error| BadRow {
                event_id: self.id().to_owned(),
                error,
            }),
            attempts: self.attempts,
            done_by: self.done_by.clone(),
            due_at: self.available_at,
            lag: from_micros(now - self.available_at),
            recovered: false,
        }
    }

    fn stored(&self) -> StoredEvent {
        StoredEvent {
            seq: self.lease.seq,
            event_id: self.id().to_owned(),
            event: Ok(self.event.clone()),
            status: self.status,
            attempts: self.attempts,
            created_at: instant(self.created_at),
            available_at: instant(self.available_at),
            done_at: self.done_at.map(instant),
            dead_at: self.dead_at.map(instant),
            last_error: self.last_error.clone(),
            locked_by: self.locked_by.clone(),
            lease_until: self.lease_until.map(instant),
            token: self.lease.token,
            lane: self.lane().into(),
            done_by: self.done_by.clone(),
        }
    }
}

/// The event as a database gives it back: what it was due at is in the row, no longer in the event.
fn as_read_back(event: &Event) -> Event {
    Event::from_parts(Parts {
        id: event.id().clone(),
        event_type: event.event_type().clone(),
        aggregate_type: event.aggregate_type().clone(),
        aggregate_id: event.aggregate_id().map(str::to_owned),
        tenant_id: event.tenant_id().map(str::to_owned),
        occurred_at: event.occurred_at(),
        due: Due::Now,
        headers: event.headers().clone(),
        payload: event.payload().clone(),
    })
}

impl Rows {
    pub(super) fn next_seq(&mut self) -> i64 {
        self.last_seq += 1;
        self.last_seq
    }

    pub(super) fn has(&self, id: &str) -> bool {
        self.ids.contains_key(id)
    }

    pub(super) fn publish(&mut self, row: Row) {
        self.ids.insert(row.id().to_owned(), row.lease.seq);
        self.pending.insert((row.available_at, row.lease.seq));
        self.rows.insert(row.lease.seq, row);
    }

    pub(super) fn overwrite_headers(&mut self, id: &str, headers: &str) -> bool {
        let row = self.ids.get(id).and_then(|seq| self.rows.get_mut(seq));
        row.map(|row| row.foreign_headers = Some(headers.to_owned())).is_some()
    }

    /// Changes a row, and its place among the pending ones with it.
    fn change<T>(&mut self, seq: i64, change: impl FnOnce(&mut Row) -> T) -> Option<T> {
        let row = self.rows.get_mut(&seq)?;
        self.pending.remove(&(row.available_at, seq));
        let result = change(row);
        if row.status.is_pending() {
            self.pending.insert((row.available_at, seq));
        }
        Some(result)
    }

    fn remove(&mut self, seq: i64) {
        if let Some(row) = self.rows.remove(&seq) {
            self.ids.remove(row.id());
            self.pending.remove(&(row.available_at, seq));
        }
    }

    /// Whether the row still has the lease's token, and is to be delivered.
    fn is_held(&self, lease: Lease) -> bool {
        self.rows
            .get(&lease.seq)
            .is_some_and(|row| row.lease == lease && row.status.is_pending())
    }

    pub(super) fn claim(&mut self, claim: &Claim<'_>, now: Instant) -> Vec<Claimed> {
        let (due_at, seq) = claim.after.unwrap_or_default();
        if due_at > now {
            return Vec::new();
        }
        let old_enough = now - micros(claim.skip_recent);
        let picked: Vec<i64> = self
            .pending
            .range((due_at, seq + 1)..=(now, i64::MAX))
            .map(|(_, seq)| *seq)
            .filter(|seq| {
                let row = &self.rows[seq];
                row.created_at <= old_enough && row.is_free(now)
            })
            .take(claim.limit)
            .collect();
        picked
            .into_iter()
            .filter_map(|seq| {
                self.change(seq, |row| {
                    let recovered = row.lease_until.is_some();
                    row.locked_by = Some(claim.owner.to_owned());
                    row.lease_until = Some(now + micros(claim.lease));
                    row.lease.token += 1;
                    Claimed {
                        recovered,
                        ..row.claimed(now)
                    }
                })
            })
            .collect()
    }

    pub(super) fn read_leased(&self, leases: &[Lease], at_least: Duration, now: Instant) -> Vec<Claimed> {
        let held = leases.iter().filter(|lease| self.is_held(**lease));
        held.map(|lease| &self.rows[&lease.seq])
            .filter(|row| row.lease_until.is_some_and(|until| until >= now + micros(at_least)))
            .map(|row| row.claimed(now))
            .collect()
    }

    /// False if it is stale.
    pub(super) fn settle(&mut self, owner: &str, by: Ownership, settlement: &Settlement, now: Instant) -> bool {
        if !self.is_held(settlement.lease) || (by != Ownership::Rows && !self.lanes.is_member(owner)) {
            return false;
        }
        let seq = settlement.lease.seq;
        if by == Ownership::Keys
            && let Some(key) = self.rows[&seq].key()
        {
            match &settlement.verdict {
                Verdict::Retry { after, .. } | Verdict::Defer { after, .. } => {
                    self.lanes.block(key, seq, Some(now + micros(*after)), now);
                }
                Verdict::DeadAndParked { .. } => self.lanes.block(key, seq, None, now),
                _ => {}
            }
        }
        if settlement.verdict == Verdict::DoneAndDeleted {
            self.remove(seq);
            return true;
        }
        self.change(seq, |row| match &settlement.verdict {
            Verdict::Done | Verdict::DoneAndDeleted => {
                row.status = Status::Done;
                row.done_at = Some(now);
                row.free();
            }
            Verdict::Retry { after, error, done_by } => {
                row.fail(owner, error, now);
                row.status = Status::Retry;
                row.available_at = now + micros(*after);
                row.done_by.clone_from(done_by);
            }
            Verdict::Dead { error, done_by } | Verdict::DeadAndParked { error, done_by } => {
                row.fail(owner, error, now);
                row.done_by.clone_from(done_by);
                row.status = Status::Dead;
                row.dead_at = Some(now);
            }
            Verdict::Defer { after, done_by } => {
                row.lease.token += 1;
                row.available_at = now + micros(*after);
                row.done_by.clone_from(done_by);
                row.free();
            }
        })
        .is_some()
    }

    /// Changes rows that are leased under exactly these leases, and returns which those were.
    fn change_leased(&mut self, leases: &[Lease], mut change: impl FnMut(&mut Row)) -> Vec<Lease> {
        let mut changed = Vec::new();
        for lease in leases {
            if self.is_held(*lease) && self.rows[&lease.seq].lease_until.is_some() {
                self.change(lease.seq, &mut change);
                changed.push(*lease);
            }
        }
        changed
    }

    pub(super) fn renew(&mut self, leases: &[Lease], lease: Duration, now: Instant) -> Vec<Lease> {
        self.change_leased(leases, |row| row.lease_until = Some(now + micros(lease)))
    }

    pub(super) fn release(&mut self, leases: &[Lease]) -> u64 {
        let released = self.change_leased(leases, |row| {
            row.lease.token += 1;
            row.free();
        });
        released.len() as u64
    }

    pub(super) fn release_all(&mut self) -> u64 {
        let leased = self.pending.iter().map(|(_, seq)| &self.rows[seq]);
        let leases: Vec<Lease> = leased.map(|row| row.lease).collect();
        self.lanes.strike_all();
        self.release(&leases)
    }

    pub(super) fn purge(&mut self, purge: &Purge, after: i64, now: Instant) -> Purged {
        let cutoff = now - micros(purge.older_than);
        let step: Vec<&Row> = self
            .rows
            .range((Excluded(after), Unbounded))
            .take(purge.limit)
            .map(|(_, row)| row)
            .collect();
        let last = step.last().map(|row| row.seq());
        let more = step.len() == purge.limit && step.iter().any(|row| row.created_at < cutoff);
        let old: Vec<i64> = step
            .into_iter()
            .filter(|row| {
                let finished = match row.status {
                    _ if purge.by_age_alone => Some(row.created_at),
                    // Never a pending row, whatever was asked for.
                    Status::New | Status::Retry => None,
                    Status::Done => row.done_at,
                    Status::Dead => row.dead_at,
                };
                finished.is_some_and(|at| at < cutoff)
                    && (purge.by_age_alone || !self.lanes.is_parked_by(row.seq()))
                    && (purge.by_age_alone || purge.statuses.contains(&row.status))
                    && purge
                        .event_type
                        .as_deref()
                        .is_none_or(|wanted| wanted == row.event.event_type().as_str())
            })
            .map(Row::seq)
            .collect();
        for seq in &old {
            self.remove(*seq);
        }
        Purged {
            deleted: old.len() as u64,
            next: last.filter(|_| more),
        }
    }

    pub(super) fn lead(&mut self, name: &str, owner: &str, lease: Duration, now: Instant) -> bool {
        let taken = NamedLease {
            owner: owner.to_owned(),
            lease_until: now + micros(lease),
        };
        match self.named.get(name) {
            Some(held) if held.owner != owner && held.lease_until > now => false,
            _ => {
                self.named.insert(name.to_owned(), taken);
                true
            }
        }
    }

    pub(super) fn resign(&mut self, name: &str, owner: &str) {
        if self.named.get(name).is_some_and(|held| held.owner == owner) {
            self.named.remove(name);
        }
    }

    pub(super) fn attempts(&self, id: &str) -> Vec<Attempt> {
        let row = self.ids.get(id).and_then(|seq| self.rows.get(seq));
        row.map(|row| row.history.clone()).unwrap_or_default()
    }

    fn matching(&self, filter: &Filter, after: i64) -> impl Iterator<Item = &Row> {
        self.rows
            .range((Excluded(after), Unbounded))
            .map(|(_, row)| row)
            .filter(|row| filter.matches(&row.stored()))
    }

    pub(super) fn find(&self, filter: &Filter, page: Page) -> Vec<StoredEvent> {
        self.matching(filter, page.after)
            .take(page.limit)
            .map(|row| StoredEvent {
                event: row.event(),
                ..row.stored()
            })
            .collect()
    }

    pub(super) fn count(&self, filter: &Filter, at_most: u64) -> u64 {
        let at_most = usize::try_from(at_most).unwrap_or(usize::MAX);
        self.matching(filter, 0).take(at_most).count() as u64
    }

    pub(super) fn replay(&mut self, filter: &Filter, limit: usize, now: Instant) -> u64 {
        let dead = self.matching(filter, 0).filter(|row| row.status == Status::Dead);
        let picked: Vec<i64> = dead.take(limit).map(Row::seq).collect();
        for seq in &picked {
            self.change(*seq, |row| {
                row.status = Status::New;
                row.attempts = 0;
                row.last_error = None;
                row.dead_at = None;
                row.available_at = now;
                row.lease.token += 1;
                row.free();
            });
        }
        self.lanes.replays += i64::from(!picked.is_empty());
        self.unblock_resolved(now);
        picked.len() as u64
    }

    fn unblock_resolved(&mut self, now: Instant) {
        let rows = &self.rows;
        let is_dead = |seq: i64| rows.get(&seq).is_some_and(|row| row.status == Status::Dead);
        self.lanes.unblock_resolved(now, is_dead);
    }

    /// Pending rows after `seq`, in the order of writing.
    pub(super) fn pending_after(&self, seq: i64) -> impl Iterator<Item = &Row> {
        let later = self.rows.range((Excluded(seq), Unbounded)).map(|(_, row)| row);
        later.filter(|row| row.status.is_pending())
    }

    /// Brings an event forward that is to be delivered later.
    pub(super) fn make_due(&mut self, seq: i64, now: Instant) {
        self.change(seq, |row| row.available_at = row.available_at.min(now));
    }

    pub(super) fn last_visible(&self) -> i64 {
        self.rows.last_key_value().map_or(0, |(seq, _)| *seq)
    }

    pub(super) fn stored(&self, seq: i64) -> Option<StoredEvent> {
        self.rows.get(&seq).map(Row::stored)
    }

    pub(super) fn discard(&mut self, filter: &Filter, limit: usize, now: Instant) -> u64 {
        let free = self.matching(filter, 0).filter(|row| row.is_free(now));
        let picked: Vec<i64> = free.take(limit).map(Row::seq).collect();
        for seq in &picked {
            self.remove(*seq);
        }
        self.unblock_resolved(now);
        picked.len() as u64
    }

    pub(super) fn stats(&self, at_most: u64, now: Instant) -> Stats {
        let bound = usize::try_from(at_most).unwrap_or(usize::MAX);
        let pending: Vec<&Row> = self
            .pending
            .iter()
            .take(bound)
            .map(|(_, seq)| &self.rows[seq])
            .collect();
        let dead = self.rows.values().filter(|row| row.status == Status::Dead);
        let dead: Vec<&Row> = dead.take(bound).collect();
        let at_least = pending.len() >= bound || dead.len() >= bound;
        let mut counts = BTreeMap::<(Status, &str), u64>::new();
        for row in pending.into_iter().chain(dead) {
            *counts.entry((row.status, row.event.event_type().as_str())).or_default() += 1;
        }
        let counts = counts.into_iter().map(|((status, event_type), count)| StatusCount {
            status,
            event_type: event_type.to_owned(),
            count,
        });
        Stats {
            counts: counts.collect(),
            at_least,
            oldest_lag: self
                .pending
                .first()
                .map(|(due, _)| now - due)
                .filter(|lag| *lag >= 0)
                .map(from_micros),
        }
    }
}
