//! Settlements by kind: each kind is one statement, and each database gets the batch in the form it likes.

#[cfg(any(feature = "mysql", feature = "sqlite"))]
use std::fmt::Write;

use super::row::{join_names, micros};
use super::{LANES, LaneSet, Lease, Settlement, Verdict, cut};

/// Settlements by kind, with values as the columns hold them.
#[derive(Debug, Default)]
pub struct Batch {
    pub(super) done: Vec<Lease>,
    pub(super) deleted: Vec<Lease>,
    /// Where all of these rows lie. All lanes, if of one of them it is not known.
    pub(super) lanes: LaneSet,
    /// The changes of each kind are in the order of their rows.
    pub(super) retry: Vec<Change>,
    pub(super) dead: Vec<Change>,
    pub(super) defer: Vec<Change>,
    /// Those of the dead that hold back their key.
    parked: Vec<i64>,
}

/// What is written to a row that is not done. What a kind has no use for is empty.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) lease: Lease,
    /// Microseconds from now until it is due.
    pub(super) after: i64,
    pub(super) error: String,
    pub(super) done_by: Option<String>,
}

impl Batch {
    pub(super) fn of(settlements: &[Settlement]) -> Self {
        let mut batch = Self::default();
        for Settlement { lease, verdict, lane } in settlements {
            let lease = *lease;
            match lane {
                Some(lane) if u32::from(*lane) < LANES => batch.lanes.insert(*lane),
                _ => batch.lanes = LaneSet::ALL,
            }
            let change = |after: i64, error: &str, done_by: &[String]| Change {
                lease,
                after,
                error: cut(error),
                done_by: join_names(done_by),
            };
            match verdict {
                Verdict::Done => batch.done.push(lease),
                Verdict::DoneAndDeleted => batch.deleted.push(lease),
                Verdict::Retry { after, error, done_by } => batch.retry.push(change(micros(*after), error, done_by)),
                Verdict::Dead { error, done_by } => batch.dead.push(change(0, error, done_by)),
                Verdict::DeadAndParked { error, done_by } => {
                    batch.dead.push(change(0, error, done_by));
                    batch.parked.push(lease.seq);
                }
                Verdict::Defer { after, done_by } => batch.defer.push(change(micros(*after), "", done_by)),
            }
        }
        for changes in [&mut batch.retry, &mut batch.dead, &mut batch.defer] {
            changes.sort_by_key(|change| (change.lease.seq, change.lease.token));
        }
        batch
    }

    /// Whether some of them keep later events of their key from being delivered.
    pub(super) fn holds_keys_back(&self) -> bool {
        !(self.retry.is_empty() && self.defer.is_empty() && self.parked.is_empty())
    }

    /// Rows that are to be delivered later.
    pub(super) fn later(&self) -> Vec<i64> {
        let later = self.retry.iter().chain(&self.defer);
        later.map(|change| change.lease.seq).collect()
    }

    /// Rows whose key waits for an operator.
    pub(super) fn parked(&self) -> Vec<i64> {
        self.parked.clone()
    }

    /// Whether all that it has is delivered rows of one kind.
    pub(super) fn is_done_only(&self) -> bool {
        self.is_one_statement(false) && self.defer.is_empty()
    }

    /// Whether one statement writes it all, which needs no transaction around it. A failure takes two, unless the database
    /// can chain them.
    pub(super) fn is_one_statement(&self, failures_take_one: bool) -> bool {
        let failed = [self.retry.len(), self.dead.len()];
        let kinds = [self.done.len(), self.deleted.len(), self.defer.len()]
            .into_iter()
            .chain(failed);
        kinds.filter(|count| *count > 0).count() == 1 && (failures_take_one || failed == [0, 0])
    }
}

/// The token, if it is the same for all of them: so it is for rows that nobody has had before, and for those of one claim of
/// such rows.
pub(super) fn one_token(leases: &[Lease]) -> Option<i64> {
    let Lease { token, .. } = leases.first()?;
    leases.iter().all(|lease| lease.token == *token).then_some(*token)
}

/// Rows of one token that lie close together: a database reads from the first to the last, and looks none of them up.
#[cfg(feature = "postgres")]
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) first: i64,
    pub(super) last: i64,
    /// A bit for each number from the first to the last, from the lowest bit of the first byte on: whether it is one of them.
    pub(super) bits: Vec<u8>,
    pub(super) token: i64,
}

#[cfg(feature = "postgres")]
impl Stretch {
    /// One row in so many, at the least: more would be read in vain than it takes to look each up. Where nodes share the
    /// lanes, a batch of one of them is as sparse as they are many.
    const SPARSEST: i64 = 8;

    pub(super) fn of(leases: &[Lease]) -> Option<Self> {
        let token = one_token(leases)?;
        let seqs = || leases.iter().map(|lease| lease.seq);
        let (first, last) = (seqs().min()?, seqs().max()?);
        let length = last.checked_sub(first)?.checked_add(1)?;
        if length / Self::SPARSEST > leases.len() as i64 {
            return None;
        }
        let mut bits = vec![0; usize::try_from(length).ok()?.div_ceil(8)];
        for seq in seqs() {
            let at = usize::try_from(seq - first).ok()?;
            bits[at / 8] |= 1 << (at % 8);
        }
        Some(Self {
            first,
            last,
            bits,
            token,
        })
    }
}

/// Leases as one JSON value, `[[seq, token], ..]`: for databases without arrays.
#[cfg(feature = "mysql")]
pub(super) fn leases_json<'a>(leases: impl IntoIterator<Item = &'a Lease>) -> String {
    enclosed('[', leases, ']', |json, Lease { seq, token }| {
        write!(json, "[{seq},{token}]")
    })
}

/// Leases as one JSON object, `{"seq": token, ..}`.
#[cfg(feature = "sqlite")]
pub(super) fn leases_object<'a>(leases: impl IntoIterator<Item = &'a Lease>) -> String {
    enclosed('{', leases, '}', |json, Lease { seq, token }| {
        write!(json, "\"{seq}\":{token}")
    })
}

/// Their seqs alone, `[seq, ..]`.
#[cfg(feature = "sqlite")]
pub(super) fn seqs_json(leases: &[Lease]) -> String {
    enclosed('[', leases, ']', |json, Lease { seq, .. }| write!(json, "{seq}"))
}

#[cfg(any(feature = "mysql", feature = "sqlite"))]
fn enclosed<'a>(
    open: char,
    leases: impl IntoIterator<Item = &'a Lease>,
    close: char,
    write: impl Fn(&mut String, &Lease) -> std::fmt::Result,
) -> String {
    let mut json = String::from(open);
    for (place, lease) in leases.into_iter().enumerate() {
        json.push_str(if place == 0 { "" } else { "," });
        write(&mut json, lease).expect("a string takes all that is written to it");
    }
    json.push(close);
    json
}

/// Changes as one JSON value, `[[seq, token, after, error, done_by], ..]`.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(super) fn changes_json(changes: &[Change]) -> String {
    let rows = changes.iter().map(
        |Change {
             lease,
             after,
             error,
             done_by,
         }| { serde_json::json!([lease.seq, lease.token, after, error, done_by]) },
    );
    rows.collect::<serde_json::Value>().to_string()
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use super::*;

    fn stretch(seqs: &[i64]) -> Option<Stretch> {
        let leases: Vec<Lease> = seqs.iter().map(|&seq| Lease { seq, token: 7 }).collect();
        Stretch::of(&leases)
    }

    #[test]
    fn a_stretch_has_a_bit_for_each_of_its_rows_and_none_for_others() {
        let Stretch {
            first,
            last,
            bits,
            token,
        } = stretch(&[20, 11, 12, 10]).unwrap();
        assert_eq!((first, last, token), (10, 20, 7));
        assert_eq!(bits, [0b0000_0111, 0b0000_0100]);
        assert_eq!(stretch(&[i64::MAX]).unwrap().bits, [1]);
    }

    #[test]
    fn rows_far_apart_are_none() {
        assert!(stretch(&[1, 16]).is_some());
        assert!(stretch(&[1, 24]).is_none());
        assert_eq!(stretch(&[i64::MIN, i64::MAX]), None);
        assert_eq!(stretch(&[]), None);
    }

    #[test]
    fn rows_with_several_tokens_are_none() {
        let leases = [Lease { seq: 1, token: 1 }, Lease { seq: 2, token: 2 }];
        assert_eq!(Stretch::of(&leases), None);
    }
}
