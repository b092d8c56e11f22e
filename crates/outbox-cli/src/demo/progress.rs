//! How far the demo is, on standard error: a line that changes on a terminal, and now and then a line elsewhere.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use super::report::Tally;
use crate::output::digits;

/// Between lines, where they cannot change.
const PAUSE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Progress {
    /// How long orders are placed.
    seconds: Duration,
    terminal: bool,
    /// When the last line was written.
    last: Duration,
}

impl Progress {
    pub(crate) fn new(seconds: Duration) -> Self {
        Self {
            seconds,
            terminal: io::stderr().is_terminal(),
            last: Duration::ZERO,
        }
    }

    pub(crate) fn show(&mut self, elapsed: Duration, tally: &Tally) -> io::Result<()> {
        if !self.terminal && elapsed < self.last + PAUSE {
            return Ok(());
        }
        self.last = elapsed;
        let line = format!(
            "{:>4.1} s{}  committed {}  delivered {}  failed attempts {}",
            elapsed.as_secs_f64(),
            if elapsed > self.seconds { ", emptying" } else { "" },
            digits(tally.committed),
            digits(tally.delivered),
            digits(tally.failed),
        );
        let mut err = io::stderr().lock();
        if self.terminal {
            write!(err, "\r\x1b[K{line}")?;
            err.flush()
        } else {
            writeln!(err, "{line}")
        }
    }

    /// Something that happened.
    pub(crate) fn say(&self, what: &str) -> io::Result<()> {
        let start = if self.terminal { "\r\x1b[K" } else { "" };
        writeln!(io::stderr().lock(), "{start}{what}")
    }

    /// Makes room for what comes next.
    pub(crate) fn end(&self) -> io::Result<()> {
        if self.terminal {
            write!(io::stderr().lock(), "\r\x1b[K")?;
        }
        Ok(())
    }
}
