//! The log of facts that the [checker](super::checker) reads: what a service meant to do, what became of it, and what was
//! delivered. One JSON object per line, append only, a file for each process, so that it can be read after a `kill -9`.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! use outbox::testing::facts::{Fact, Log, read};
//!
//! # let path = std::env::temp_dir().join(format!("outbox-facts-{}", std::process::id()));
//! let log = Log::append(&path)?;
//! log.write(&Fact::intent("1"))?; // before COMMIT is sent
//! log.write(&Fact::committed("1"))?; // after it has returned
//! log.write(&Fact::delivered("1", 17))?; // in the listener, where its effect is
//! assert_eq!(read(&path)?.len(), 3);
//! # std::fs::remove_file(path)
//! # }
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Something that a process did or saw.
///
/// `at` is an instant of a clock that all processes share, in microseconds: deliveries are put in order by it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fact {
    /// An event is in a transaction that is still open. Written before COMMIT is sent, always: what is committed has an
    /// intent, even if the process died before it could tell.
    Intent {
        /// The event's id.
        id: String,
        /// What its order is kept by.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        /// Its place among the committed events of that key: greater than that of every earlier one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        place: Option<u64>,
        /// Nobody can deliver it: it is meant to end up dead.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        poison: bool,
    },
    /// The commit has returned.
    Committed {
        /// The event's id.
        id: String,
    },
    /// The transaction, or the savepoint around the event, was rolled back, or the database refused to commit it.
    RolledBack {
        /// The event's id.
        id: String,
    },
    /// The commit failed with [`CommitOutcomeUnknown`](crate::Error::CommitOutcomeUnknown).
    Unknown {
        /// The event's id.
        id: String,
    },
    /// A listener has done its work: this is the effect that must happen at least once.
    Delivered {
        /// The event's id.
        id: String,
        /// When.
        at: u64,
        /// Which attempt it was, from one.
        #[serde(default = "first")]
        attempt: u32,
    },
    /// A node has taken a row, under this token.
    Taken {
        /// The row.
        seq: i64,
        /// The fence.
        token: i64,
        /// When the database had answered.
        at: u64,
    },
    /// A node has written an outcome, under this token.
    Settled {
        /// The row.
        seq: i64,
        /// The fence.
        token: i64,
        /// When the database was asked.
        at: u64,
        /// Whether it was accepted; `None` if the answer was about several.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        accepted: Option<bool>,
    },
}

fn first() -> u32 {
    1
}

impl Fact {
    /// An event without a key is about to be committed.
    pub fn intent(id: impl Into<String>) -> Self {
        Self::Intent {
            id: id.into(),
            key: None,
            place: None,
            poison: false,
        }
    }

    /// An event of a key is about to be committed.
    pub fn keyed_intent(id: impl Into<String>, key: impl Into<String>, place: u64) -> Self {
        Self::Intent {
            id: id.into(),
            key: Some(key.into()),
            place: Some(place),
            poison: false,
        }
    }

    /// The commit has returned.
    pub fn committed(id: impl Into<String>) -> Self {
        Self::Committed { id: id.into() }
    }

    /// It was rolled back.
    pub fn rolled_back(id: impl Into<String>) -> Self {
        Self::RolledBack { id: id.into() }
    }

    /// Nobody knows whether it is committed.
    pub fn unknown(id: impl Into<String>) -> Self {
        Self::Unknown { id: id.into() }
    }

    /// It was delivered, at the first attempt.
    pub fn delivered(id: impl Into<String>, at: u64) -> Self {
        Self::Delivered {
            id: id.into(),
            at,
            attempt: 1,
        }
    }
}

/// Where a process writes its facts.
#[derive(Debug)]
pub struct Log {
    file: File,
}

impl Log {
    /// Opens the log of this process, or begins it.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn append(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file })
    }

    /// Appends a line with a single write, which a kill cannot cut in two.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, fact: &Fact) -> io::Result<()> {
        self.write_all(std::slice::from_ref(fact))
    }

    /// The same for several, together.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_all(&self, facts: &[Fact]) -> io::Result<()> {
        let mut lines = Vec::with_capacity(facts.len() * 80);
        for fact in facts {
            serde_json::to_writer(&mut lines, fact)?;
            lines.push(b'\n');
        }
        (&self.file).write_all(&lines)
    }
}

/// Reads the facts of one process. A last line without its end, which a full disk can leave behind, is ignored.
///
/// # Errors
/// The file cannot be read, or holds something else.
pub fn read(path: &Path) -> io::Result<Vec<Fact>> {
    let mut reader = BufReader::new(File::open(path)?);
    let mut facts = Vec::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        reader.read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            return Ok(facts);
        }
        facts.push(serde_json::from_slice(&line)?);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_as_they_were_written_without_a_torn_last_line() {
        let path = std::env::temp_dir().join(format!("outbox-facts-{:016x}", rand::random::<u64>()));
        let facts = vec![
            Fact::keyed_intent("1", "a", 1),
            Fact::Intent {
                id: "2".to_owned(),
                key: None,
                place: None,
                poison: true,
            },
            Fact::unknown("2"),
            Fact::delivered("1", 5),
            Fact::Settled {
                seq: 1,
                token: 2,
                at: 3,
                accepted: Some(true),
            },
        ];
        let log = Log::append(&path).unwrap();
        log.write(&facts[0]).unwrap();
        log.write_all(&facts[1..]).unwrap();
        (&log.file).write_all(br#"{"fact":"inte"#).unwrap();
        assert_eq!(read(&path).unwrap(), facts);
        std::fs::remove_file(path).unwrap();
    }
}
