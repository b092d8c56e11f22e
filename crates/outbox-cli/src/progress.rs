//! How far long work is, on standard error: a line that changes on a terminal, and now and then a line elsewhere.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Between lines, where they cannot change.
const PAUSE: Duration = Duration::from_secs(2);
/// Goes to the start of the line and clears it.
const CLEAR: &str = "\r\x1b[K";

/// A line of progress. Nobody is told if standard error is closed.
#[derive(Debug)]
pub(crate) struct Progress {
    terminal: bool,
    /// When the last line was written.
    last: Instant,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self {
            terminal: io::stderr().is_terminal(),
            last: Instant::now(),
        }
    }

    /// Shows how far it is.
    pub(crate) fn show(&mut self, line: impl Display) {
        let mut err = io::stderr().lock();
        if self.terminal {
            let _ = write!(err, "{CLEAR}{line}");
            let _ = err.flush();
        } else if self.last.elapsed() >= PAUSE {
            self.last = Instant::now();
            let _ = writeln!(err, "{line}");
        }
    }

    /// Says what happened, in a line that stays.
    pub(crate) fn say(&self, what: impl Display) {
        let start = if self.terminal { CLEAR } else { "" };
        let _ = writeln!(io::stderr().lock(), "{start}{what}");
    }
}

impl Drop for Progress {
    /// Makes room for what comes next.
    fn drop(&mut self) {
        if self.terminal {
            let _ = write!(io::stderr().lock(), "{CLEAR}");
        }
    }
}
