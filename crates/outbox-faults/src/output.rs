//! The results: a table for people, an object per line for programs; progress on standard error.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use serde::Serialize;

use crate::fault::{Fault, Kind};
use crate::mode::Mode;
use crate::scene::Verdict;

/// The runs of one fault, on one database, in one mode.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) fault: Fault,
    pub(crate) database: Kind,
    pub(crate) mode: Mode,
    pub(crate) runs: u64,
    /// How often the fault happened.
    pub(crate) faults: u64,
    pub(crate) committed: u64,
    pub(crate) delivered: u64,
    pub(crate) duplicates: u64,
    pub(crate) lost: u64,
    pub(crate) phantom: u64,
    /// `None` where no order is promised.
    pub(crate) out_of_order: Option<u64>,
    pub(crate) stale_writes: u64,
    /// Late writes that the fence has refused: it was needed.
    pub(crate) stale_refused: u64,
    pub(crate) unknown: u64,
    pub(crate) dead: u64,
    /// How often the machine was too busy for a node to keep its leases: faults that nobody planned.
    pub(crate) stalls: u64,
    /// The longest.
    pub(crate) recovery_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// The runs in which an invariant broke.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) failed: Vec<Failed>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Failed {
    pub(crate) seed: u64,
    pub(crate) broken: Vec<String>,
    /// Logs and, for SQLite, the database.
    pub(crate) kept: String,
}

impl Line {
    pub(crate) fn new(fault: Fault, database: Kind, mode: Mode) -> Self {
        Self {
            fault,
            database,
            mode,
            runs: 0,
            faults: 0,
            committed: 0,
            delivered: 0,
            duplicates: 0,
            lost: 0,
            phantom: 0,
            out_of_order: mode.keeps_order().then_some(0),
            stale_writes: 0,
            stale_refused: 0,
            unknown: 0,
            dead: 0,
            stalls: 0,
            recovery_ms: 0,
            note: None,
            failed: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, seed: u64, verdict: Verdict, kept: String) {
        let report = &verdict.report;
        self.runs += 1;
        self.faults += verdict.faults;
        self.committed += report.committed;
        self.delivered += report.delivered;
        self.duplicates += report.duplicates;
        self.lost += report.lost.len() as u64;
        self.phantom += report.phantom.len() as u64;
        if let Some(out_of_order) = &mut self.out_of_order {
            *out_of_order += report.out_of_order.len() as u64;
        }
        self.stale_writes += report.stale_writes.len() as u64;
        self.stale_refused += report.stale_refused;
        self.unknown += report.unknown;
        self.dead += report.dead;
        self.stalls += verdict.stalls;
        self.recovery_ms = self.recovery_ms.max(millis(verdict.recovery));
        if verdict.note.is_some() {
            self.note = verdict.note;
        }
        if !verdict.broken.is_empty() {
            let broken = verdict.broken;
            self.failed.push(Failed { seed, broken, kept });
        }
    }

    fn cells(&self) -> Vec<String> {
        let order = self.out_of_order.map_or("-".to_owned(), |count| count.to_string());
        vec![
            self.fault.to_string(),
            self.database.to_string(),
            self.mode.to_string(),
            self.runs.to_string(),
            self.faults.to_string(),
            self.committed.to_string(),
            self.delivered.to_string(),
            self.duplicates.to_string(),
            self.lost.to_string(),
            self.phantom.to_string(),
            order,
            self.stale_writes.to_string(),
            self.recovery_ms.to_string(),
        ]
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

const HEADINGS: [&str; 13] = [
    "fault",
    "database",
    "mode",
    "runs",
    "faults",
    "committed",
    "delivered",
    "duplicates",
    "lost",
    "phantom",
    "out_of_order",
    "stale_writes",
    "recovery_ms",
];
/// Of these, the first so many are words.
const WORDS: usize = 3;

/// The table, with what is to be said about its lines under it.
pub(crate) fn table(lines: &[Line]) -> String {
    let cells: Vec<Vec<String>> = lines.iter().map(Line::cells).collect();
    let width = |column: usize| {
        let widest = cells.iter().map(|cells| cells[column].len()).max().unwrap_or(0);
        widest.max(HEADINGS[column].len())
    };
    let widths: Vec<usize> = (0..HEADINGS.len()).map(width).collect();
    let row = |cells: &[String]| {
        let cells = cells.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column < WORDS {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        cells.collect::<Vec<_>>().join("  ")
    };
    let mut text = row(&HEADINGS.map(str::to_owned)) + "\n";
    for cells in &cells {
        text += &row(cells);
        text.push('\n');
    }
    for line in lines {
        let what = format!("{} on {}, {}", line.fault, line.database, line.mode);
        if let Some(note) = &line.note {
            text += &format!("\n{what}: {note}");
        }
        for failed in &line.failed {
            for broken in &failed.broken {
                text += &format!("\nFAILED {what}, seed {}: {broken}", failed.seed);
            }
            text += &format!("\n  repeat: {}\n  kept: {}", repeat(line, failed.seed), failed.kept);
        }
    }
    text
}

fn repeat(line: &Line, seed: u64) -> String {
    format!(
        "outbox-faults run --fault {} --database {} --mode {} --seed {seed}",
        line.fault, line.database, line.mode
    )
}

/// An object.
pub(crate) fn json(line: &Line) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, line)?;
    writeln!(out)?;
    out.flush()
}

/// Says how far it is, on standard error: a line for each run.
pub(crate) fn progress(line: impl std::fmt::Display) {
    let mut err = io::stderr().lock();
    // Nobody is told if standard error is closed.
    let _ = writeln!(err, "{line}");
    if err.is_terminal() {
        let _ = err.flush();
    }
}
