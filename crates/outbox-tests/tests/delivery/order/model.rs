//! The reference: what a consumer may see of each key, in the order in which the log was written.

use std::collections::HashMap;

/// Checks deliveries, one by one, against the order of each key.
#[derive(Debug, Default)]
pub(crate) struct Model {
    /// The first number of each key that has not been delivered yet.
    next: HashMap<String, usize>,
    pub(crate) deliveries: usize,
    /// Deliveries of what was delivered before.
    pub(crate) again: usize,
    /// First deliveries that came too early.
    pub(crate) overtaken: Vec<String>,
}

impl Model {
    pub(crate) fn deliver(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        let (Some(key), Some(number)) = (
            words.next(),
            words.next().and_then(|number| number.parse::<usize>().ok()),
        ) else {
            panic!("not a delivery: {line}");
        };
        self.deliveries += 1;
        let next = self.next.entry(key.to_owned()).or_default();
        match number.cmp(next) {
            std::cmp::Ordering::Equal => *next += 1,
            std::cmp::Ordering::Less => self.again += 1,
            std::cmp::Ordering::Greater => {
                self.overtaken.push(format!("{line}, expected {next}"));
                *next = number + 1;
            }
        }
    }

    pub(crate) fn of(log: &str) -> Self {
        let mut model = Self::default();
        log.lines().for_each(|line| model.deliver(line));
        model
    }

    /// How many different events were delivered.
    pub(crate) fn delivered(&self) -> usize {
        self.next.values().sum()
    }
}

#[test]
fn the_model_knows_order_from_disorder() {
    let good = Model::of("a 0 1\nb 0 1\na 1 1\na 1 2\na 2 1\nb 1 1\n");
    assert_eq!((good.delivered(), good.again, good.overtaken.len()), (5, 1, 0));
    let bad = Model::of("a 0 1\na 2 1\na 1 1\n");
    assert_eq!(bad.overtaken, ["a 2 1, expected 1"]);
}
