//! What the demo found out about itself.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::log::Fact;
use crate::output::digits;

/// All facts of all nodes, by event.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    events: HashMap<String, Trace>,
    /// How many nodes are ready, and how many have stopped producing.
    pub(crate) ready: usize,
    pub(crate) quiet: usize,
    /// For the progress line.
    pub(crate) committed: u64,
    pub(crate) delivered: u64,
    pub(crate) failed: u64,
    /// Transactions that failed and were meant to be committed; and why the first did.
    trouble: u64,
    first_trouble: Option<String>,
}

/// What is known of an event.
#[derive(Debug, Default)]
struct Trace {
    listeners: usize,
    delayed: bool,
    place: Option<(String, i64)>,
    committed_at: Option<i64>,
    rolled_back: bool,
    /// The first call of a listener: when, and whether from memory.
    first_call: Option<(i64, bool)>,
    /// How often each listener succeeded.
    successes: HashMap<String, u64>,
    delivered_at: Option<i64>,
    retries: HashSet<u32>,
}

impl Trace {
    fn is_delivered(&self) -> bool {
        self.listeners > 0 && self.successes.len() >= self.listeners
    }
}

impl Tally {
    pub(crate) fn add(&mut self, fact: Fact) {
        match fact {
            Fact::Ready => self.ready += 1,
            Fact::Quiet => self.quiet += 1,
            Fact::Intent {
                id,
                listeners,
                delayed,
                place,
            } => {
                let trace = self.events.entry(id).or_default();
                (trace.listeners, trace.delayed, trace.place) = (listeners, delayed, place);
            }
            Fact::Committed { id, at } => {
                self.committed += 1;
                self.events.entry(id).or_default().committed_at = Some(at);
            }
            Fact::RolledBack { id } => self.events.entry(id).or_default().rolled_back = true,
            Fact::Trouble { error } => {
                self.trouble += 1;
                self.first_trouble.get_or_insert(error);
            }
            Fact::Started {
                id, attempt, hot, at, ..
            } => {
                let trace = self.events.entry(id).or_default();
                if trace.first_call.is_none_or(|(first, _)| at < first) {
                    trace.first_call = Some((at, hot));
                }
                if attempt > 1 {
                    trace.retries.insert(attempt);
                }
            }
            Fact::Delivered { id, listener, at } => {
                let trace = self.events.entry(id).or_default();
                let before = trace.is_delivered();
                trace.delivered_at = trace.delivered_at.max(Some(at));
                *trace.successes.entry(listener).or_default() += 1;
                self.delivered += u64::from(!before && trace.is_delivered());
            }
            Fact::Failed { .. } => self.failed += 1,
        }
    }

    /// Events of which a later one of the same customer was delivered first. Those that were delayed have given up their
    /// place.
    fn out_of_order(&self, orders: &HashSet<String>) -> u64 {
        let mut lines: HashMap<&str, Vec<(i64, i64)>> = HashMap::new();
        let kept = |(id, trace): &(&String, &Trace)| orders.contains(*id) && !trace.delayed;
        for (_, trace) in self.events.iter().filter(kept) {
            if let (Some((customer, place)), Some((called_at, _))) = (&trace.place, trace.first_call) {
                lines.entry(customer).or_default().push((*place, called_at));
            }
        }
        let mut overtaken = 0;
        for mut line in lines.into_values() {
            line.sort_unstable();
            let mut latest = i64::MIN;
            for (_, called_at) in line {
                overtaken += u64::from(called_at < latest);
                latest = latest.max(called_at);
            }
        }
        overtaken
    }

    /// From the first commit to the last delivery. Without delayed events, for which nobody does anything but wait.
    fn events_per_s(&self) -> f64 {
        let prompt = || self.events.values().filter(|trace| !trace.delayed);
        let first = prompt().filter_map(|trace| trace.committed_at).min();
        let last = prompt().filter_map(|trace| trace.delivered_at).max();
        let delivered = prompt().filter(|trace| trace.is_delivered()).count();
        match (first, last) {
            (Some(first), Some(last)) if last > first => delivered as f64 * 1e6 / (last - first) as f64,
            _ => 0.0,
        }
    }
}

/// How the demo was run.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) database: &'static str,
    pub(crate) nodes: usize,
    pub(crate) producers: usize,
    pub(crate) seconds: u64,
    /// How many nodes were killed.
    pub(crate) killed: usize,
    /// Every customer's events are to be delivered in order.
    pub(crate) ordered: bool,
}

/// The sums.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    setting: Setting,
    pub(crate) committed: u64,
    rolled_back: u64,
    pub(crate) delivered: u64,
    duplicates: u64,
    retries: u64,
    pub(crate) dead: u64,
    lost: u64,
    phantom: u64,
    out_of_order: u64,
    /// Events whose producer was told something else than the database holds.
    contradicted: u64,
    trouble: u64,
    first_trouble: Option<String>,
    latency: Percentiles,
    hot_latency: Percentiles,
    events_per_s: f64,
}

impl Summary {
    /// Compares what the nodes say with what the database holds: `orders` are the ids of the events of all orders in
    /// the shop's table, and are there if and only if their transaction was committed.
    pub(crate) fn new(setting: Setting, tally: &Tally, orders: &HashSet<String>, dead: &HashSet<String>) -> Self {
        let mut summary = Self {
            setting,
            committed: orders.len() as u64,
            rolled_back: 0,
            delivered: 0,
            duplicates: 0,
            retries: 0,
            dead: 0,
            lost: 0,
            phantom: 0,
            out_of_order: tally.out_of_order(orders),
            contradicted: 0,
            trouble: tally.trouble,
            first_trouble: tally.first_trouble.clone(),
            latency: Percentiles::default(),
            hot_latency: Percentiles::default(),
            events_per_s: 0.0,
        };
        let unheard_of = Trace::default();
        for id in orders {
            let trace = tally.events.get(id).unwrap_or(&unheard_of);
            let is_dead = dead.contains(id);
            summary.delivered += u64::from(trace.is_delivered());
            summary.dead += u64::from(is_dead);
            summary.lost += u64::from(!trace.is_delivered() && !is_dead);
            summary.contradicted += u64::from(trace.rolled_back);
        }
        let (mut all, mut hot) = (Vec::new(), Vec::new());
        for (id, trace) in &tally.events {
            summary.duplicates += trace.successes.values().map(|times| times - 1).sum::<u64>();
            summary.retries += trace.retries.len() as u64;
            if !orders.contains(id) {
                summary.rolled_back += 1;
                summary.phantom += u64::from(trace.first_call.is_some());
                summary.contradicted += u64::from(trace.committed_at.is_some());
            }
            if let (Some(committed_at), Some((called_at, from_memory)), false) =
                (trace.committed_at, trace.first_call, trace.delayed)
            {
                // A worker may be faster than the thread whose commit returns.
                let latency = u64::try_from(called_at - committed_at).unwrap_or(0);
                all.push(latency);
                if from_memory {
                    hot.push(latency);
                }
            }
        }
        summary.latency = Percentiles::of(all);
        summary.hot_latency = Percentiles::of(hot);
        summary.events_per_s = tally.events_per_s();
        summary
    }

    /// What does not hold, if anything.
    pub(crate) fn complaint(&self) -> Option<String> {
        let mut complaints = Vec::new();
        if self.committed == 0 {
            complaints.push("nothing was committed".to_owned());
        }
        if self.lost > 0 {
            complaints.push(format!("{} committed and neither delivered nor dead", self.lost));
        }
        if self.phantom > 0 {
            complaints.push(format!("{} rolled back and delivered all the same", self.phantom));
        }
        if self.out_of_order > 0 {
            complaints.push(format!(
                "{} delivered after a later one of their customer",
                self.out_of_order
            ));
        }
        if self.contradicted > 0 {
            complaints.push(format!("{} whose commit was reported wrongly", self.contradicted));
        }
        if self.committed != self.delivered + self.dead {
            complaints.push(format!(
                "{} committed, but {} delivered and {} dead",
                self.committed, self.delivered, self.dead
            ));
        }
        if self.duplicates > 0 && self.setting.killed == 0 {
            complaints.push(format!("{} delivered twice although nothing failed", self.duplicates));
        }
        (!complaints.is_empty()).then(|| complaints.join("; "))
    }

    pub(crate) fn to_json(&self) -> Value {
        let setting = &self.setting;
        json!({
            "ok": self.complaint().is_none(),
            "database": setting.database,
            "nodes": setting.nodes,
            "producers": setting.producers,
            "seconds": setting.seconds,
            "killed": setting.killed,
            "committed": self.committed,
            "rolled_back": self.rolled_back,
            "delivered": self.delivered,
            "duplicates": self.duplicates,
            "retries": self.retries,
            "dead": self.dead,
            "lost": self.lost,
            "phantom": self.phantom,
            "ordered": setting.ordered,
            "out_of_order": self.out_of_order,
            "failed_transactions": self.trouble,
            "p50_us": self.latency.p50,
            "p99_us": self.latency.p99,
            "hot_p50_us": self.hot_latency.p50,
            "hot_p99_us": self.hot_latency.p99,
            "hot_share": (self.hot_share() * 1000.0).round() / 1000.0,
            "events_per_s": (self.events_per_s * 10.0).round() / 10.0,
        })
    }

    fn hot_share(&self) -> f64 {
        if self.latency.count == 0 {
            return 0.0;
        }
        self.hot_latency.count as f64 / self.latency.count as f64
    }

    /// For people.
    pub(crate) fn to_text(&self) -> String {
        let setting = &self.setting;
        let mut rows = vec![
            ("committed", self.committed, "events of committed transactions"),
            (
                "rolled back",
                self.rolled_back,
                "events of transactions and savepoints that were rolled back",
            ),
            (
                "delivered",
                self.delivered,
                "every listener of the event has answered Ok",
            ),
            ("dead", self.dead, "given up after some attempts: the poison order"),
            (
                "retries",
                self.retries,
                "a listener failed or panicked, and was called again",
            ),
            (
                "duplicates",
                self.duplicates,
                "a listener that had answered Ok was called again",
            ),
            ("lost", self.lost, "committed, and neither delivered nor dead"),
            ("phantom", self.phantom, "rolled back, and delivered all the same"),
        ];
        if setting.ordered {
            rows.push((
                "out of order",
                self.out_of_order,
                "delivered after a later one of the same customer",
            ));
        }
        let mut text = format!(
            "{}, {}, {} for {} s{}\n\n",
            setting.database,
            crate::output::count(setting.nodes as u64, u64::MAX, "node"),
            crate::output::count(setting.producers as u64, u64::MAX, "producer")
                + if setting.nodes > 1 { " each" } else { "" },
            setting.seconds,
            match setting.killed {
                0 => String::new(),
                killed => format!(", {killed} killed half way"),
            },
        );
        for (name, number, meaning) in rows {
            text.push_str(&format!("{name:<12} {:>9}  {meaning}\n", digits(number)));
        }
        text.push_str(&format!(
            "\ncommit to listener: {}; from memory ({:.0} %): {}\n",
            self.latency,
            self.hot_share() * 100.0,
            self.hot_latency
        ));
        text.push_str(&format!("{:.0} events per second\n", self.events_per_s));
        if let Some(trouble) = &self.first_trouble {
            let failed = crate::output::count(self.trouble, u64::MAX, "transaction");
            text.push_str(&format!("{failed} could not be committed; the first: {trouble}\n"));
        }
        if self.complaint().is_none() {
            text.push_str("\nEvery committed event was delivered or is dead, and no rolled-back one was delivered.\n");
        }
        text
    }
}

/// In microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Percentiles {
    count: usize,
    p50: u64,
    p99: u64,
}

impl Percentiles {
    fn of(mut values: Vec<u64>) -> Self {
        values.sort_unstable();
        let at = |hundredth: usize| {
            let rank = (values.len() * hundredth).div_ceil(100).saturating_sub(1);
            values.get(rank).copied().unwrap_or(0)
        };
        Self {
            count: values.len(),
            p50: at(50),
            p99: at(99),
        }
    }
}

impl std::fmt::Display for Percentiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let millis = |micros: u64| micros as f64 / 1000.0;
        write!(f, "p50 {:.1} ms, p99 {:.1} ms", millis(self.p50), millis(self.p99))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(killed: usize) -> Setting {
        Setting {
            database: "sqlite",
            nodes: 2,
            producers: 1,
            seconds: 1,
            killed,
            ordered: false,
        }
    }

    fn intent(id: &str) -> Fact {
        Fact::Intent {
            id: id.to_owned(),
            listeners: 2,
            delayed: false,
            place: None,
        }
    }

    #[test]
    fn event_that_was_overtaken_is_out_of_order() {
        let of = |id: &str, place: i64, delayed: bool| Fact::Intent {
            id: id.to_owned(),
            listeners: 1,
            delayed,
            place: Some(("customer".to_owned(), place)),
        };
        let call = |id: &str, at: i64| Fact::Started {
            id: id.to_owned(),
            listener: "mail".to_owned(),
            attempt: 1,
            hot: false,
            at,
        };
        let facts = [
            of("a", 0, false),
            of("b", 1, false),
            of("late", 2, true),
            of("c", 3, false),
            call("a", 10),
            call("c", 20),
            call("b", 30),
            call("late", 40),
            // Again, as after a crash: only the first time counts.
            call("a", 50),
        ];
        let tally = tally(facts);
        assert_eq!(tally.out_of_order(&set(&["a", "b", "c", "late"])), 1);
        assert_eq!(tally.out_of_order(&set(&["a", "c"])), 0, "b was rolled back");
    }

    fn committed(id: &str) -> Fact {
        let id = id.to_owned();
        Fact::Committed { id, at: 1_000 }
    }

    fn delivered(id: &str, listener: &str) -> [Fact; 2] {
        let (id, listener) = (id.to_owned(), listener.to_owned());
        let started = Fact::Started {
            id: id.clone(),
            listener: listener.clone(),
            attempt: 1,
            hot: true,
            at: 1_500,
        };
        [
            started,
            Fact::Delivered {
                id,
                listener,
                at: 2_000,
            },
        ]
    }

    fn tally(facts: impl IntoIterator<Item = Fact>) -> Tally {
        let mut tally = Tally::default();
        facts.into_iter().for_each(|fact| tally.add(fact));
        tally
    }

    fn set(ids: &[&str]) -> HashSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn delivered_by_every_listener_or_dead_is_fine() {
        let mut facts = vec![intent("a"), committed("a"), intent("b"), committed("b"), intent("c")];
        facts.extend(delivered("a", "mail"));
        facts.extend(delivered("a", "packing"));
        facts.extend(delivered("b", "mail"));
        let summary = Summary::new(setting(0), &tally(facts), &set(&["a", "b"]), &set(&["b"]));
        assert_eq!(summary.complaint(), None);
        assert_eq!(
            (summary.committed, summary.rolled_back, summary.delivered, summary.dead),
            (2, 1, 1, 1)
        );
        assert_eq!(summary.latency.p50, 500);
    }

    #[test]
    fn committed_event_that_one_listener_never_saw_is_lost() {
        let mut facts = vec![intent("a"), committed("a")];
        facts.extend(delivered("a", "mail"));
        let summary = Summary::new(setting(0), &tally(facts), &set(&["a"]), &set(&[]));
        assert_eq!(
            summary.complaint().unwrap(),
            "1 committed and neither delivered nor dead; 1 committed, but 0 delivered and 0 dead"
        );
    }

    #[test]
    fn event_of_a_node_that_died_before_it_could_tell_is_judged_by_the_table() {
        let summary = Summary::new(setting(1), &tally([intent("a"), intent("b")]), &set(&["a"]), &set(&[]));
        assert_eq!((summary.committed, summary.rolled_back, summary.lost), (1, 1, 1));
    }

    #[test]
    fn call_for_a_rolled_back_event_is_a_phantom() {
        let mut facts = vec![intent("a"), committed("a"), intent("b")];
        facts.extend(delivered("a", "mail"));
        facts.extend(delivered("a", "packing"));
        facts.push(delivered("b", "mail")[0].clone());
        let summary = Summary::new(setting(0), &tally(facts), &set(&["a"]), &set(&[]));
        assert_eq!(summary.complaint().unwrap(), "1 rolled back and delivered all the same");
    }

    #[test]
    fn duplicates_are_excused_by_a_kill_only() {
        let mut facts = vec![intent("a"), committed("a")];
        facts.extend(delivered("a", "mail"));
        facts.extend(delivered("a", "mail"));
        facts.extend(delivered("a", "packing"));
        let tally = tally(facts);
        let summary = |killed| Summary::new(setting(killed), &tally, &set(&["a"]), &set(&[]));
        assert_eq!(summary(1).complaint(), None);
        assert_eq!(
            summary(0).complaint().unwrap(),
            "1 delivered twice although nothing failed"
        );
    }

    #[test]
    fn percentiles_are_nearest_ranks() {
        let percentiles = Percentiles::of((1..=200).rev().collect());
        assert_eq!((percentiles.p50, percentiles.p99), (100, 198));
        assert_eq!(Percentiles::of(Vec::new()), Percentiles::default());
    }
}
