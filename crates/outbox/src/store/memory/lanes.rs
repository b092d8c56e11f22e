use std::collections::BTreeMap;
use std::time::Duration;

use super::super::lane::fair_share;
use super::super::row::{from_micros, instant, micros};
use super::super::{
    BlockedKey, Instant, LANES, LaneRead, LaneRow, LaneRows, LaneSet, LaneShare, Page, Status, UNBLOCKED_AFTER,
    Unsettled, Wanted,
};
use super::rows::Rows;

/// Members, lanes and blocked keys, as a database would keep them.
#[derive(Default)]
pub(super) struct Lanes {
    /// In the order of joining.
    members: Vec<(String, Instant)>,
    owners: BTreeMap<u8, String>,
    blocked: BTreeMap<(String, String), Blocked>,
    /// How often dead events have been replayed.
    pub(super) replays: i64,
}

struct Blocked {
    /// 0: it has been unblocked.
    seq: i64,
    since: Instant,
    until: Option<Instant>,
}

impl Lanes {
    pub(super) fn is_member(&self, name: &str) -> bool {
        self.members.iter().any(|(member, _)| member == name)
    }

    pub(super) fn share(
        &mut self,
        member: &str,
        joining: bool,
        lease: Duration,
        take: bool,
        now: Instant,
    ) -> Option<LaneShare> {
        let until = now + micros(lease);
        match self.members.iter_mut().find(|(name, _)| name == member) {
            Some(known) => known.1 = until,
            None if joining => self.members.push((member.to_owned(), until)),
            None => return None,
        }
        self.members.retain(|(_, until)| *until > now);
        let place = self.members.iter().position(|(name, _)| name == member)?;
        let fair = fair_share(place, self.members.len(), usize::MAX);
        let held = |lanes: &Self| -> LaneSet {
            let mine = lanes.owners.iter().filter(|(_, owner)| *owner == member);
            mine.map(|(lane, _)| *lane).collect()
        };
        let missing = fair.saturating_sub(held(self).len());
        let free: Vec<u8> = (0..LANES as u8)
            .filter(|lane| !self.owners.get(lane).is_some_and(|owner| self.is_member(owner)))
            .take(if take { missing } else { 0 })
            .collect();
        for lane in free {
            self.owners.insert(lane, member.to_owned());
        }
        let others = self.members.iter().filter(|(name, _)| name != member);
        Some(LaneShare {
            held: held(self),
            fair,
            members: self.members.len(),
            next_end: others.map(|(_, until)| until - now).min().map(from_micros),
        })
    }

    pub(super) fn give_up(&mut self, member: &str, lanes: LaneSet) {
        self.owners
            .retain(|lane, owner| owner != member || !lanes.contains(*lane));
    }

    pub(super) fn leave(&mut self, member: &str) {
        self.give_up(member, LaneSet::ALL);
        self.members.retain(|(name, _)| name != member);
    }

    pub(super) fn strike_all(&mut self) {
        self.members.clear();
    }

    /// `until`: `None` parks it.
    pub(super) fn block(&mut self, key: (String, String), seq: i64, until: Option<Instant>, since: Instant) {
        self.blocked.insert(key, Blocked { seq, since, until });
    }

    fn is_blocked(&self, key: &(String, String), since: Instant) -> bool {
        let blocked = self.blocked.get(key);
        blocked.is_some_and(|blocked| blocked.until.is_none_or(|until| until > since))
    }

    /// The event that held it back, if it was blocked.
    fn unblock(&mut self, key: &(String, String), now: Instant) -> Option<i64> {
        if !self.is_blocked(key, now) {
            return None;
        }
        let blocked = self.blocked.get_mut(key).filter(|blocked| blocked.seq > 0)?;
        Some(blocked.free_soon(now))
    }

    fn first_parked(&self, after: i64) -> Option<i64> {
        let parked = self.blocked.values().filter(|blocked| blocked.until.is_none());
        parked.map(|blocked| blocked.seq).filter(|seq| *seq > after).min()
    }

    pub(super) fn is_parked_by(&self, seq: i64) -> bool {
        self.blocked
            .values()
            .any(|blocked| blocked.seq == seq && blocked.until.is_none())
    }

    pub(super) fn unblock_resolved(&mut self, now: Instant, is_dead: impl Fn(i64) -> bool) {
        let parked = self.blocked.values_mut().filter(|blocked| blocked.until.is_none());
        for blocked in parked.filter(|blocked| !is_dead(blocked.seq)) {
            blocked.free_soon(now);
        }
    }
}

impl Blocked {
    /// Returns which event has held it back.
    fn free_soon(&mut self, now: Instant) -> i64 {
        self.until = Some(now + micros(UNBLOCKED_AFTER));
        std::mem::take(&mut self.seq)
    }
}

impl Rows {
    pub(super) fn unblock_key(&mut self, key: &(String, String), now: Instant) -> bool {
        let Some(seq) = self.lanes.unblock(key, now) else {
            return false;
        };
        self.make_due(seq, now);
        true
    }

    pub(super) fn unsettled(&self, after: i64) -> Unsettled {
        let pending = self.pending_after(after).map(|row| row.seq()).min();
        Unsettled {
            first: pending.into_iter().chain(self.lanes.first_parked(after)).min(),
            replays: self.lanes.replays,
        }
    }

    pub(super) fn read_lanes(&self, read: &LaneRead<'_>, now: Instant) -> LaneRows {
        let wanted = self
            .pending_after(read.after)
            .filter(|row| read.lanes.contains(row.lane()));
        let wanted = wanted.filter(|row| match &read.wanted {
            Wanted::Deliverable { skip_recent } => {
                row.due_at() <= now && row.created_at() <= now - micros(*skip_recent) && row.is_free(now)
            }
            Wanted::InOrder {
                since,
                up_to,
                keys,
                without,
            } => {
                let key = row.key();
                let free = key
                    .as_ref()
                    .is_none_or(|key| !self.lanes.is_blocked(key, since.unwrap_or(now)));
                (row.status() == Status::Retry || row.due_at() <= now)
                    && free
                    && up_to.is_none_or(|up_to| row.seq() <= up_to)
                    && keys.is_none_or(|keys| key.as_ref().is_some_and(|key| keys.contains(key)))
                    && !key.is_some_and(|key| without.contains(&key))
            }
        });
        let rows = wanted.take(read.limit).map(|row| {
            let leased_until = row.leased_until();
            let mut claimed = row.claimed(now);
            claimed.recovered = leased_until.is_some_and(|until| until <= now);
            LaneRow {
                rests: from_micros(row.due_at().max(leased_until.unwrap_or(0)) - now),
                lane: row.lane(),
                row: claimed,
            }
        });
        LaneRows {
            rows: rows.collect(),
            last_seq: self.last_visible(),
            now,
        }
    }

    pub(super) fn blocked_keys(&self, page: Page, now: Instant) -> Vec<BlockedKey> {
        let mut found: Vec<BlockedKey> = self
            .lanes
            .blocked
            .iter()
            .filter(|(_, blocked)| blocked.until.is_none_or(|until| until > now) && blocked.seq > page.after)
            .map(|((aggregate_type, aggregate_id), blocked)| {
                let event = self.stored(blocked.seq);
                BlockedKey {
                    aggregate_type: aggregate_type.clone(),
                    aggregate_id: aggregate_id.clone(),
                    event_id: event.as_ref().map(|event| event.event_id.clone()),
                    seq: blocked.seq,
                    since: instant(blocked.since),
                    until: blocked.until.map(instant),
                    last_error: event.and_then(|event| event.last_error),
                }
            })
            .collect();
        found.sort_by_key(|key| key.seq);
        found.truncate(page.limit);
        found
    }
}
