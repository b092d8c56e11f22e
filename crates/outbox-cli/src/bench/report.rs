//! What was measured: as a table, as Markdown, as JSON.

use serde::Serialize;

use crate::output::{self, digits};

/// The rates of a limit and of the framework, measured in turns because the machine is never the same for long.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rates {
    pub(crate) limit: Vec<f64>,
    pub(crate) framework: Vec<f64>,
}

/// One result.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    pub(crate) scenario: &'static str,
    pub(crate) variant: String,
    pub(crate) database: &'static str,
    pub(crate) events: u64,
    /// Events per second, of the framework.
    pub(crate) framework_per_s: Option<f64>,
    /// Events per second, of what it is compared with.
    pub(crate) limit_per_s: Option<f64>,
    /// The one divided by the other: the median over the rounds, in which they follow each other.
    pub(crate) ratio: Option<f64>,
    /// Between these lies the middle half of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_low: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_high: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_us: Option<u64>,
    /// The most memory of a draining process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rss_mb: Option<f64>,
}

impl Finding {
    pub(crate) fn new(scenario: &'static str, variant: impl Into<String>, database: &'static str, events: u64) -> Self {
        Self {
            scenario,
            variant: variant.into(),
            database,
            events,
            framework_per_s: None,
            limit_per_s: None,
            ratio: None,
            ratio_low: None,
            ratio_high: None,
            p50_us: None,
            p99_us: None,
            rss_mb: None,
        }
    }

    /// With the median of each side, and of what one was of the other, round by round: whatever slows the machine down for
    /// a minute slows both.
    pub(crate) fn rates(mut self, rates: &Rates) -> Self {
        let rounds = rates.framework.iter().zip(&rates.limit);
        let ratios: Vec<f64> = rounds.map(|(framework, limit)| framework / limit).collect();
        self.framework_per_s = median(&rates.framework).map(f64::round);
        self.limit_per_s = median(&rates.limit).map(f64::round);
        let thousandths = |ratio: f64| (ratio * 1000.0).round() / 1000.0;
        self.ratio = median(&ratios).map(thousandths);
        (self.ratio_low, self.ratio_high) = middle_half(&ratios).map(|ratio| ratio.map(thousandths)).into();
        self
    }

    pub(crate) fn rss(mut self, kilobytes: Option<u64>) -> Self {
        self.rss_mb = kilobytes.map(|kilobytes| (kilobytes as f64 / 102.4).round() / 10.0);
        self
    }

    /// With the percentiles of latencies in microseconds.
    pub(crate) fn latencies(mut self, mut micros: Vec<u64>) -> Self {
        micros.sort_unstable();
        self.p50_us = percentile(&micros, 50);
        self.p99_us = percentile(&micros, 99);
        self
    }

    fn cells(&self) -> [String; 9] {
        let rate = |rate: Option<f64>| rate.map_or_else(String::new, |rate| digits(rate as u64));
        let latency = |micros: Option<u64>| micros.map_or_else(String::new, |micros| format!("{} us", digits(micros)));
        [
            self.scenario.to_owned(),
            self.variant.clone(),
            self.database.to_owned(),
            rate(self.framework_per_s),
            rate(self.limit_per_s),
            self.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            self.ratio_low
                .zip(self.ratio_high)
                .map_or_else(String::new, |(low, high)| format!("{low:.2} to {high:.2}")),
            [latency(self.p50_us), latency(self.p99_us)]
                .join("  ")
                .trim()
                .to_owned(),
            self.rss_mb
                .map_or_else(String::new, |megabytes| format!("{megabytes:.1} MB")),
        ]
    }

    /// In one line.
    pub(crate) fn summary(&self) -> String {
        let [
            scenario,
            variant,
            database,
            framework,
            limit,
            ratio,
            middle,
            latency,
            memory,
        ] = self.cells();
        let mut line = format!("{database} {scenario}, {variant}:");
        if !framework.is_empty() {
            line.push_str(&format!(" {framework}/s of {limit}/s, ratio {ratio} ({middle})"));
        }
        for more in [latency, memory] {
            if !more.is_empty() {
                line.push_str(&format!(" {more}"));
            }
        }
        line
    }
}

const HEADINGS: [&str; 9] = [
    "SCENARIO",
    "VARIANT",
    "DATABASE",
    "FRAMEWORK/S",
    "LIMIT/S",
    "RATIO",
    "MIDDLE HALF",
    "P50  P99",
    "MEMORY",
];

pub(crate) fn print(findings: &[Finding]) -> std::io::Result<()> {
    let rows: Vec<_> = findings.iter().map(Finding::cells).collect();
    output::table(HEADINGS, &rows)
}

pub(crate) fn markdown(findings: &[Finding]) -> String {
    let mut text = String::from(
        "| scenario | variant | database | framework/s | limit/s | ratio | middle half | p50, p99 | memory |\n\
         |---|---|---|---:|---:|---:|---:|---:|---:|\n",
    );
    for finding in findings {
        text.push_str(&format!(
            "| {} |\n",
            finding.cells().join(" | ").replace("us  ", "us, ")
        ));
    }
    text
}

/// The one in the middle; of an even number, the lower of the two.
fn median(rates: &[f64]) -> Option<f64> {
    let mut sorted = rates.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}

/// Without a quarter of them at either end, rounded down.
fn middle_half(ratios: &[f64]) -> [Option<f64>; 2] {
    let mut sorted = ratios.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.get(sorted.len() / 4..sorted.len() - sorted.len() / 4);
    let middle = middle.unwrap_or_default();
    [middle.first().copied(), middle.last().copied()]
}

/// The smallest value that so many percent do not exceed.
fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    let place = (sorted.len() * percent).div_ceil(100);
    sorted.get(place.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_that_of_neighbours() {
        let rates = Rates {
            limit: vec![100.0, 80.0, 200.0, 100.0],
            framework: vec![75.0, 10.0, 180.0, 80.0],
        };
        let finding = Finding::new("drain", "row claims", "sqlite", 5).rates(&rates);
        assert_eq!(
            (finding.framework_per_s, finding.limit_per_s),
            (Some(75.0), Some(100.0))
        );
        assert_eq!(finding.ratio, Some(0.75));
        assert_eq!((finding.ratio_low, finding.ratio_high), (Some(0.75), Some(0.8)));
        assert_eq!(
            markdown(&[finding]).lines().last(),
            Some("| drain | row claims | sqlite | 75 | 100 | 0.75 | 0.75 to 0.80 |  |  |")
        );
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let finding = Finding::new("latency", "hot path", "sqlite", 200).latencies((1..=200).rev().collect());
        assert_eq!((finding.p50_us, finding.p99_us), (Some(100), Some(198)));
        let finding = Finding::new("latency", "hot path", "sqlite", 0).latencies(Vec::new());
        assert_eq!(finding.p50_us, None);
    }
}
