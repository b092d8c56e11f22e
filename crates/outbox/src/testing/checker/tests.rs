use std::collections::{BTreeMap, HashMap, HashSet};

use proptest::prelude::*;

use super::*;

fn check(facts: Vec<Fact>, tables: &Tables) -> Report {
    let mut checker = Checker::default();
    checker.add(facts);
    checker.report(tables)
}

/// The tables after events were committed and handled.
fn tables(rows: &[(&str, Status)]) -> Tables {
    Tables {
        business: Some(rows.iter().map(|(id, _)| (*id).to_owned()).collect()),
        rows: rows.iter().map(|(id, status)| ((*id).to_owned(), *status)).collect(),
        purged: false,
    }
}

#[test]
fn a_service_without_faults_is_sound() {
    let facts = vec![
        Fact::intent("1"),
        Fact::committed("1"),
        Fact::delivered("1", 1),
        Fact::intent("2"),
        Fact::rolled_back("2"),
    ];
    let report = check(facts, &tables(&[("1", Status::Done)]));
    assert!(report.is_sound(), "{report:?}");
    assert_eq!((report.committed, report.delivered, report.duplicates), (1, 1, 0));
}

#[test]
fn committed_and_never_delivered_is_lost_whatever_the_table_says() {
    for status in [Status::New, Status::Retry, Status::Done, Status::Dead] {
        let report = check(vec![Fact::intent("1"), Fact::committed("1")], &tables(&[("1", status)]));
        assert_eq!(report.lost, ["1"], "{status:?}");
    }
}

#[test]
fn done_without_a_delivery_is_unaccounted_for() {
    let report = check(
        vec![Fact::intent("1"), Fact::committed("1")],
        &tables(&[("1", Status::Done)]),
    );
    assert_eq!(report.unaccounted, ["1"]);
}

#[test]
fn poison_may_be_dead_and_nothing_else_may() {
    let intent = |poison| Fact::Intent {
        id: "1".to_owned(),
        key: None,
        place: None,
        poison,
    };
    let dead = tables(&[("1", Status::Dead)]);
    let report = check(vec![intent(true), Fact::committed("1")], &dead);
    assert!(report.is_sound() && report.dead == 1, "{report:?}");
    assert_eq!(check(vec![intent(false), Fact::committed("1")], &dead).lost, ["1"]);
    let done = tables(&[("1", Status::Done)]);
    assert_eq!(check(vec![intent(true), Fact::committed("1")], &done).lost, ["1"]);
}

#[test]
fn delivered_and_not_committed_is_phantom() {
    let rolled_back = vec![Fact::intent("1"), Fact::rolled_back("1"), Fact::delivered("1", 1)];
    let died = vec![Fact::intent("1"), Fact::delivered("1", 1)];
    let from_nowhere = vec![Fact::delivered("1", 1)];
    for facts in [rolled_back, died, from_nowhere] {
        assert_eq!(check(facts, &tables(&[])).phantom, ["1"]);
    }
}

#[test]
fn the_table_decides_where_nobody_was_told() {
    for outcome in [Some(Fact::unknown("1")), None] {
        let facts: Vec<Fact> = [Fact::intent("1")].into_iter().chain(outcome).collect();
        let report = check(facts.clone(), &tables(&[("1", Status::New)]));
        assert_eq!((report.committed, report.unknown), (1, 1));
        assert_eq!(report.lost, ["1"]);
        let report = check(facts, &tables(&[]));
        assert!(report.is_sound() && report.committed == 0, "{report:?}");
    }
}

#[test]
fn without_business_data_the_rows_of_the_outbox_decide() {
    let facts = vec![Fact::intent("1"), Fact::unknown("1"), Fact::delivered("1", 1)];
    let mut tables = Tables::default();
    assert_eq!(check(facts.clone(), &tables).phantom, ["1"]);
    tables.purged = true;
    let report = check(facts.clone(), &tables);
    assert!(
        report.is_sound() && report.committed == 1,
        "it was delivered and purged: {report:?}"
    );
    tables.rows.insert("1".to_owned(), Status::Done);
    assert!(check(facts, &tables).is_sound());
}

#[test]
fn a_caller_that_was_told_the_wrong_outcome_is_reported() {
    let told_committed = vec![Fact::intent("1"), Fact::committed("1")];
    assert_eq!(check(told_committed, &tables(&[])).misreported, ["1"]);
    let told_rolled_back = vec![Fact::intent("1"), Fact::rolled_back("1"), Fact::delivered("1", 1)];
    let report = check(told_rolled_back, &tables(&[("1", Status::Done)]));
    assert_eq!(report.misreported, ["1"]);
    assert_eq!(report.phantom, [""; 0], "it was committed, so it may be delivered");
}

#[test]
fn a_row_without_a_commit_and_a_commit_without_a_row_are_unaccounted_for() {
    let mut without_commit = tables(&[]);
    without_commit.rows.insert("1".to_owned(), Status::New);
    let facts = vec![Fact::intent("1"), Fact::rolled_back("1")];
    assert_eq!(check(facts, &without_commit).unaccounted, ["1"]);

    let mut without_row = tables(&[("1", Status::Done)]);
    without_row.rows.clear();
    let facts = vec![Fact::intent("1"), Fact::committed("1"), Fact::delivered("1", 1)];
    assert_eq!(check(facts.clone(), &without_row).unaccounted, ["1"]);
    without_row.purged = true;
    assert!(check(facts, &without_row).is_sound());
}

#[test]
fn a_first_delivery_after_a_later_one_is_out_of_order_and_a_second_is_not() {
    let facts = |deliveries: &[(&str, u64)]| {
        let mut facts = Vec::new();
        for (place, id) in ["1", "2", "3"].into_iter().enumerate() {
            facts.push(Fact::keyed_intent(id, "a", place as u64));
            facts.push(Fact::committed(id));
        }
        facts.extend(deliveries.iter().map(|(id, at)| Fact::delivered(*id, *at)));
        facts
    };
    let tables = tables(&[("1", Status::Done), ("2", Status::Done), ("3", Status::Done)]);
    let order = |deliveries: &[(&str, u64)]| check(facts(deliveries), &tables).out_of_order;
    assert_eq!(order(&[("1", 1), ("2", 2), ("3", 3), ("1", 4)]), [""; 0]);
    assert_eq!(order(&[("2", 1), ("1", 2), ("3", 3)]), ["1"]);
    assert_eq!(order(&[("3", 1), ("1", 2), ("2", 3), ("1", 4)]), ["1", "2"]);
}

#[test]
fn a_write_is_stale_if_the_row_had_been_taken_under_a_later_token_before() {
    let facts = |token: i64, at: u64, accepted: bool| {
        vec![
            Fact::Taken {
                seq: 1,
                token: 5,
                at: 100,
            },
            Fact::Settled {
                seq: 1,
                token,
                at,
                accepted: Some(accepted),
            },
        ]
    };
    let stale = |facts| {
        let report = check(facts, &Tables::default());
        (report.stale_writes.len(), report.stale_refused)
    };
    assert_eq!(stale(facts(4, 101, true)), (1, 0));
    assert_eq!(stale(facts(4, 101, false)), (0, 1));
    assert_eq!(stale(facts(4, 99, true)), (0, 0), "it may have been written before");
    assert_eq!(stale(facts(5, 101, true)), (0, 0), "by the owner");
}

/// What becomes of an event in a random history.
#[derive(Clone, Copy, Debug)]
struct Fate {
    key: u8,
    committed: bool,
    /// Whether the process could tell.
    told: bool,
    deliveries: u64,
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = (0..3_u8, any::<bool>(), any::<bool>(), 0..4_u64);
    let fate = fate.prop_map(|(key, committed, told, deliveries)| Fate {
        key,
        committed,
        told,
        deliveries,
    });
    prop::collection::vec(fate, 0..40)
}

proptest! {
    /// Counts every event once, in one column, whatever the order of the facts; compared with a count by hand.
    #[test]
    fn every_event_is_counted_once(fates in fates(), shuffle in any::<prop::sample::Index>()) {
        let mut facts = Vec::new();
        let mut found = tables(&[]);
        let mut expected = Report::default();
        let mut at = 0;
        for (number, fate) in fates.iter().enumerate() {
            let id = format!("{number:03}");
            facts.push(Fact::keyed_intent(&id, fate.key.to_string(), number as u64));
            match (fate.told, fate.committed) {
                (true, true) => facts.push(Fact::committed(&id)),
                (true, false) => facts.push(Fact::rolled_back(&id)),
                (false, _) => expected.unknown += 1,
            }
            for _ in 0..fate.deliveries {
                at += 1;
                facts.push(Fact::delivered(&id, at));
            }
            if fate.committed {
                found.business.as_mut().unwrap().insert(id.clone());
                found.rows.insert(id.clone(), if fate.deliveries > 0 { Status::Done } else { Status::New });
                expected.committed += 1;
                expected.duplicates += fate.deliveries.saturating_sub(1);
                if fate.deliveries > 0 {
                    expected.delivered += 1;
                } else {
                    expected.lost.push(id);
                }
            } else if fate.deliveries > 0 {
                expected.phantom.push(id);
            }
        }
        let middle = shuffle.index(facts.len().max(1)).min(facts.len());
        facts.rotate_left(middle);
        prop_assert_eq!(check(facts, &found), expected);
    }

    /// Finds exactly those that a slow and obvious definition finds.
    #[test]
    fn out_of_order_is_what_it_is_by_definition(deliveries in prop::collection::vec((0..3_u64, 0..8_u64), 0..60)) {
        let mut facts = Vec::new();
        let mut first: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        for (at, (key, place)) in deliveries.into_iter().enumerate() {
            let id = format!("{key}.{place}");
            facts.push(Fact::keyed_intent(&id, key.to_string(), place));
            facts.push(Fact::committed(&id));
            facts.push(Fact::delivered(&id, at as u64));
            first.entry((key, place)).or_insert(at as u64);
        }
        let expected: HashSet<String> = first
            .iter()
            .filter(|((key, place), at)| first.iter().any(|((k, p), a)| k == key && p > place && a < at))
            .map(|((key, place), _)| format!("{key}.{place}"))
            .collect();
        let rows: HashMap<String, Status> = first
            .keys()
            .map(|(key, place)| (format!("{key}.{place}"), Status::Done))
            .collect();
        let tables = Tables { business: Some(rows.keys().cloned().collect()), rows, purged: false };
        let found: HashSet<String> = check(facts, &tables).out_of_order.into_iter().collect();
        prop_assert_eq!(found, expected);
    }
}
