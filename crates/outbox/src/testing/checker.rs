//! The checker: compares what was committed with what was delivered.
//!
//! Give it the [facts](super::facts) of every process, and what the tables hold in the end; it answers with a [`Report`].
//! It knows nothing of how the events travelled, so it checks any service that writes such a log.
//!
//! ```
//! use outbox::testing::checker::{Checker, Tables};
//! use outbox::testing::facts::Fact;
//!
//! let mut checker = Checker::default();
//! checker.add([Fact::intent("1"), Fact::committed("1")]);
//! checker.add([Fact::intent("2"), Fact::rolled_back("2"), Fact::delivered("2", 17)]);
//! let report = checker.report(&Tables::default());
//! assert_eq!((report.lost.len(), report.phantom.len()), (1, 1));
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};

use super::facts::Fact;
use crate::store::Status;

/// What the tables hold when everything is over.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Tables {
    /// The ids of the events whose business data is there: what was committed, according to the database. It decides where
    /// nobody was told the outcome. `None`: the rows of the outbox decide.
    pub business: Option<HashSet<String>>,
    /// The rows of the outbox.
    pub rows: HashMap<String, Status>,
    /// Finished rows may have been deleted.
    pub purged: bool,
}

/// Gathers facts, in any order.
#[derive(Clone, Debug, Default)]
pub struct Checker {
    events: HashMap<String, Account>,
    /// By row: the tokens it was taken under, and since when.
    taken: HashMap<i64, Vec<(i64, u64)>>,
    settled: Vec<Write>,
}

/// What is known of an event.
#[derive(Clone, Debug, Default)]
struct Account {
    intended: bool,
    /// What its order is kept by, and its place there.
    place: Option<(String, u64)>,
    poison: bool,
    outcome: Option<Outcome>,
    deliveries: u64,
    first: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Committed,
    RolledBack,
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    seq: i64,
    token: i64,
    at: u64,
    accepted: Option<bool>,
}

/// What the checker found. Ids are sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Events that are committed.
    pub committed: u64,
    /// Events that are committed and were delivered.
    pub delivered: u64,
    /// Deliveries beyond the first of an event.
    pub duplicates: u64,
    /// Committed, and never delivered; nor dead, unless it was poison.
    pub lost: Vec<String>,
    /// Delivered, and not committed.
    pub phantom: Vec<String>,
    /// Delivered for the first time after a later event of its key. A service without order has many.
    pub out_of_order: Vec<String>,
    /// Rows about which somebody wrote who no longer owned them, and was believed.
    pub stale_writes: Vec<i64>,
    /// Such writes that were refused, as they should be.
    pub stale_refused: u64,
    /// Commits with an unknown outcome, or none because the process died.
    pub unknown: u64,
    /// The caller was told committed and it is not, or rolled back and it is not.
    pub misreported: Vec<String>,
    /// Poison that is dead, as it should be.
    pub dead: u64,
    /// Committed without a row, although nothing is purged; finished without a delivery; or a row without a commit:
    /// outbox + dead + done is not what was committed.
    pub unaccounted: Vec<String>,
}

impl Report {
    /// Whether every rule holds that holds for any service. Order is judged by who promises it, and duplicates by who
    /// knows how many faults there were.
    pub fn is_sound(&self) -> bool {
        self.lost.is_empty()
            && self.phantom.is_empty()
            && self.stale_writes.is_empty()
            && self.misreported.is_empty()
            && self.unaccounted.is_empty()
    }
}

impl Checker {
    /// Adds facts of a process.
    pub fn add(&mut self, facts: impl IntoIterator<Item = Fact>) {
        for fact in facts {
            self.add_one(fact);
        }
    }

    fn add_one(&mut self, fact: Fact) {
        match fact {
            Fact::Intent { id, key, place, poison } => {
                let account = self.event(id);
                account.intended = true;
                account.place = key.zip(place);
                account.poison = poison;
            }
            Fact::Committed { id } => self.event(id).outcome = Some(Outcome::Committed),
            Fact::RolledBack { id } => self.event(id).outcome = Some(Outcome::RolledBack),
            Fact::Unknown { id } => self.event(id).outcome = Some(Outcome::Unknown),
            Fact::Delivered { id, at, .. } => {
                let account = self.event(id);
                account.deliveries += 1;
                account.first = Some(account.first.map_or(at, |first| first.min(at)));
            }
            Fact::Taken { seq, token, at } => self.taken.entry(seq).or_default().push((token, at)),
            Fact::Settled {
                seq,
                token,
                at,
                accepted,
            } => self.settled.push(Write {
                seq,
                token,
                at,
                accepted,
            }),
        }
    }

    fn event(&mut self, id: String) -> &mut Account {
        self.events.entry(id).or_default()
    }

    /// What the facts and the tables say together.
    pub fn report(&self, tables: &Tables) -> Report {
        let mut report = Report::default();
        let mut keys: BTreeMap<&str, Vec<(u64, u64, &String)>> = BTreeMap::new();
        for (id, account) in &self.events {
            let committed = self.is_committed(id, account, tables, &mut report);
            if account.deliveries > 0 && !committed {
                report.phantom.push(id.clone());
            }
            if !committed {
                continue;
            }
            report.committed += 1;
            report.duplicates += account.deliveries.saturating_sub(1);
            let row = tables.rows.get(id).copied();
            match account.first {
                Some(first) => {
                    report.delivered += 1;
                    if let Some((key, place)) = &account.place {
                        keys.entry(key).or_default().push((*place, first, id));
                    }
                }
                None if account.poison && row == Some(Status::Dead) => report.dead += 1,
                None => report.lost.push(id.clone()),
            }
            let gone = row.is_none() && !(tables.purged && account.deliveries > 0);
            let done_for_nothing = row == Some(Status::Done) && account.deliveries == 0;
            // Without business data, nothing is known of the rows of a service that was not asked for them.
            if (gone && tables.business.is_some()) || done_for_nothing {
                report.unaccounted.push(id.clone());
            }
        }
        for id in tables.rows.keys() {
            let known = self.events.get(id);
            let in_business = tables.business.as_ref().is_none_or(|ids| ids.contains(id));
            if known.is_none_or(|account| !account.intended) || !in_business {
                report.unaccounted.push(id.clone());
            }
        }
        for events in keys.values_mut() {
            out_of_order(events, &mut report.out_of_order);
        }
        self.fence(&mut report);
        for ids in [
            &mut report.lost,
            &mut report.phantom,
            &mut report.out_of_order,
            &mut report.misreported,
            &mut report.unaccounted,
        ] {
            ids.sort_unstable();
        }
        report
    }

    /// Whether an event is committed: what the database says, or else what the caller was told.
    fn is_committed(&self, id: &String, account: &Account, tables: &Tables, report: &mut Report) -> bool {
        let found = match &tables.business {
            Some(ids) => ids.contains(id),
            None => tables.rows.contains_key(id),
        };
        // A row that is not there may have been purged; the business data is always there.
        let sure = found || tables.business.is_some();
        match account.outcome {
            Some(Outcome::Committed) => {
                if sure && !found {
                    report.misreported.push(id.clone());
                }
                true
            }
            Some(Outcome::RolledBack) => {
                if found {
                    report.misreported.push(id.clone());
                }
                found
            }
            Some(Outcome::Unknown) | None => {
                report.unknown += u64::from(account.intended);
                found || (account.intended && !sure && tables.purged && account.deliveries > 0)
            }
        }
    }

    /// A write is stale if, before it was asked for, the row had already been taken under a later token.
    fn fence(&self, report: &mut Report) {
        for write in &self.settled {
            let taken = self.taken.get(&write.seq).map_or(&[][..], Vec::as_slice);
            if !taken.iter().any(|(token, at)| *token > write.token && *at < write.at) {
                continue;
            }
            match write.accepted {
                Some(true) => report.stale_writes.push(write.seq),
                Some(false) => report.stale_refused += 1,
                None => {}
            }
        }
        report.stale_writes.sort_unstable();
    }
}

/// Finds those that came after a later one of their key: `(place, first delivery, id)`.
fn out_of_order(events: &mut [(u64, u64, &String)], found: &mut Vec<String>) {
    events.sort_unstable();
    let mut earliest_later = u64::MAX;
    for (_, first, id) in events.iter().rev() {
        if *first > earliest_later {
            found.push((*id).clone());
        }
        earliest_later = earliest_later.min(*first);
    }
}

#[cfg(test)]
mod tests;
