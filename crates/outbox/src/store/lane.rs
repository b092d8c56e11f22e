//! Lanes: every row belongs to one of 64, by its key. A lane has one owner at a time, who reads it without claiming its
//! rows.
//!
//! The owner is a *member*: a node under the name it has joined with, which shows that it lives by renewing one lease.
//! When that ends, another member may strike it off the list; only then are its lanes free. Whatever the owner writes
//! about a row of its lanes, it writes while holding on to its own entry in that list, so that it is struck off before
//! (and writes nothing) or after (and has written everything).

use std::collections::HashSet;
use std::time::Duration;

use super::{Claimed, Instant};

/// How many lanes there are. Part of the tables: the column `lane` is computed with it.
pub const LANES: u32 = 64;

/// A set of lanes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct LaneSet(u64);

impl LaneSet {
    /// All of them.
    pub const ALL: Self = Self(u64::MAX);
    /// None.
    pub const NONE: Self = Self(0);

    /// The number whose bit n tells whether lane n is in the set.
    pub(crate) fn bits(self) -> i64 {
        self.0.cast_signed()
    }

    /// The first and the last of them. The first is beyond the last if there are none.
    pub(crate) fn range(self) -> (i64, i64) {
        let last = i64::from(LANES) - 1 - i64::from(self.0.leading_zeros());
        (i64::from(self.0.trailing_zeros()), last)
    }

    /// Adds a lane.
    pub fn insert(&mut self, lane: u8) {
        self.0 |= 1_u64.checked_shl(lane.into()).unwrap_or(0);
    }

    /// Whether a lane is in the set.
    pub fn contains(self, lane: u8) -> bool {
        self.0 & 1_u64.checked_shl(lane.into()).unwrap_or(0) != 0
    }

    /// How many there are.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those that are not in `other`.
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Those that are in both.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The lanes, in order.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..LANES as u8).filter(move |lane| self.contains(*lane))
    }

    /// At most `count` of them, the first ones.
    pub fn first(self, count: usize) -> Self {
        self.iter().take(count).collect()
    }
}

impl FromIterator<u8> for LaneSet {
    fn from_iter<I: IntoIterator<Item = u8>>(lanes: I) -> Self {
        let mut set = Self::NONE;
        lanes.into_iter().for_each(|lane| set.insert(lane));
        set
    }
}

impl std::fmt::Debug for LaneSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// What a member has of the lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneShare {
    /// The lanes it owns.
    pub held: LaneSet,
    /// How many it should own, so that all members own as many, give or take one.
    pub fair: usize,
    /// How many members there are.
    pub members: usize,
    /// When the first lease of another member ends, from now: it may be dead then.
    pub next_end: Option<Duration>,
}

/// How many lanes the member at `place`, in the order of joining, should own. No more than `holders` own any.
pub(crate) fn fair_share(place: usize, members: usize, holders: usize) -> usize {
    let holders = members.min(holders).max(1);
    let lanes = LANES as usize;
    if place < holders {
        lanes / holders + usize::from(place < lanes % holders)
    } else {
        0
    }
}

/// By what right a delivery is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// Each row was claimed: its token decides.
    Rows,
    /// The rows were read from lanes: the token decides, and the member must still be one.
    Lanes,
    /// The same; and an event that is not delivered holds back the later ones of its key.
    Keys,
}

/// Asks for pending rows of lanes, in the order of `seq`. Nothing is claimed: only the owner of the lanes may ask.
#[derive(Clone, Debug)]
pub struct LaneRead<'a> {
    /// The lanes.
    pub lanes: LaneSet,
    /// Only rows after this one.
    pub after: i64,
    /// How many at most.
    pub limit: usize,
    /// What to leave out.
    pub wanted: Wanted<'a>,
}

/// Which rows of its lanes a reader wants.
#[derive(Clone, Debug)]
pub enum Wanted<'a> {
    /// Those that can be delivered now, and that were written longer than this ago.
    Deliverable {
        /// Leaves younger rows alone.
        skip_recent: Duration,
    },
    /// Those in order: also rows that rest (to be tried again later, or leased), because they hold back what comes after
    /// them; but none of keys that are blocked. Events that their producer has delayed join in when they are due.
    InOrder {
        /// Where the pass began, by the database's clock: whatever was blocked then is left out to its end. `None`: it
        /// begins with this.
        since: Option<Instant>,
        /// Only rows up to this one. `None`: up to the last.
        up_to: Option<i64>,
        /// Only of these keys: aggregate type and id. `None`: of all.
        keys: Option<&'a [(String, String)]>,
        /// Of none of these keys.
        without: &'a [(String, String)],
    },
}

/// What a [`LaneRead`] found.
#[derive(Debug, Default)]
pub struct LaneRows {
    /// In the order of `seq`.
    pub rows: Vec<LaneRow>,
    /// The last row of the table, of whatever status, that could be seen; only for reads in order without a bound.
    pub last_seq: i64,
    /// When it was read, by the database's clock.
    pub now: Instant,
}

/// A row of a lane.
#[derive(Debug)]
pub struct LaneRow {
    /// The row. `recovered` says that it has a lease that has ended: release it before it is delivered.
    pub row: Claimed,
    /// Its lane.
    pub lane: u8,
    /// How long it cannot be delivered yet.
    pub rests: Duration,
}

/// Who may still add rows: the transactions that have begun to write to the table.
///
/// A transaction is one of them before it is given a `seq`. So when all of these have ended, every row up to `last_seq` is
/// there to be seen, or never will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writers {
    /// Names the run of the server: another one does not know what this one knew.
    pub server: i64,
    /// The last row that could be seen, just before they were listed. Zero: there was none.
    pub last_seq: i64,
    /// The transactions, by names that are never used again.
    pub transactions: HashSet<String>,
}

/// What is not done with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsettled {
    /// The first row that is pending, in whatever lane, or that parks its key.
    pub first: Option<i64>,
    /// How often dead events have been replayed: a row that was done with may no longer be.
    pub replays: i64,
}

/// How long a key that somebody unblocks is still left out.
///
/// A pass leaves a key out from its beginning to its end, or it would meet the key's later events and not the earlier ones. So
/// a key must be seen to be free by whoever reads after the time from which it is: that time lies ahead of the commit.
pub(crate) const UNBLOCKED_AFTER: Duration = Duration::from_secs(2);

/// A key whose events wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedKey {
    /// The aggregate's type.
    pub aggregate_type: String,
    /// The aggregate's id.
    pub aggregate_id: String,
    /// The event that holds the others back; `None` if it is gone.
    pub event_id: Option<String>,
    /// Its place in the order of writing.
    pub seq: i64,
    /// Since when.
    pub since: chrono::DateTime<chrono::Utc>,
    /// Until when; `None`: parked, until somebody unblocks it.
    pub until: Option<chrono::DateTime<chrono::Utc>>,
    /// Why the event failed.
    pub last_error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_shared_evenly_and_completely() {
        for members in 1..=100 {
            let shares: Vec<usize> = (0..members)
                .map(|place| fair_share(place, members, usize::MAX))
                .collect();
            assert_eq!(shares.iter().sum::<usize>(), LANES as usize);
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
        }
    }

    #[test]
    fn where_one_may_hold_them_the_first_does() {
        assert_eq!(
            (fair_share(0, 3, 1), fair_share(1, 3, 1), fair_share(2, 3, 1)),
            (64, 0, 0)
        );
    }

    #[test]
    fn a_set_has_what_was_put_into_it() {
        let set: LaneSet = [0, 5, 63, 200].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 5, 63]);
        assert_eq!((set.len(), LaneSet::ALL.len(), LaneSet::NONE.is_empty()), (3, 64, true));
        assert_eq!((set.range(), LaneSet::ALL.range()), ((0, 63), (0, 63)));
        assert_eq!(set.without([0].into_iter().collect()).first(1).range(), (5, 5));
        assert_eq!(LaneSet::NONE.range(), (64, -1));
        assert_eq!(
            set.without([5].into_iter().collect())
                .first(1)
                .iter()
                .collect::<Vec<_>>(),
            [0]
        );
    }
}
