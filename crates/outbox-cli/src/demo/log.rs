//! What a node of the demo has done: one fact per line, in a file of its own, so that it can be read after a `kill -9`.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use serde::{Deserialize, Serialize};

/// Something a node has done. `at` is in microseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub(crate) enum Fact {
    /// It is ready; its producers start.
    Ready,
    /// An event has been written and its transaction is still open. Always before the commit is sent: what is committed
    /// has an intent, even if the node was killed before it could tell.
    Intent {
        id: String,
        /// How many listeners will hear of it.
        listeners: usize,
        /// It is to be delivered later.
        delayed: bool,
        /// Whose order is to be kept, and its place in it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        place: Option<(String, i64)>,
    },
    /// The commit has returned.
    Committed { id: String, at: i64 },
    /// The transaction, or the savepoint around the event, has been rolled back.
    RolledBack { id: String },
    /// A transaction failed that was meant to be committed.
    Trouble { error: String },
    /// A listener has been called.
    Started {
        id: String,
        listener: String,
        attempt: u32,
        hot: bool,
        at: i64,
    },
    /// It answered `Ok`.
    Delivered { id: String, listener: String, at: i64 },
    /// It did not, or is about to panic.
    Failed { id: String, listener: String },
    /// Its producers have stopped.
    Quiet,
}

/// Where a node writes its facts.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    started: Instant,
    /// When it started, in microseconds since 1970.
    epoch: i64,
}

impl Log {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Ok(Self {
            file: OpenOptions::new().create(true).append(true).open(path)?,
            started: Instant::now(),
            epoch: epoch.map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX)),
        })
    }

    /// The time, in microseconds since 1970. Within a node it never goes back, whatever is done to the machine's clock.
    pub(crate) fn now(&self) -> i64 {
        let passed = i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX);
        self.epoch.saturating_add(passed)
    }

    /// Appends a line with a single write, which a kill cannot cut in two.
    pub(crate) fn write(&self, fact: &Fact) -> io::Result<()> {
        let mut line = serde_json::to_vec(fact)?;
        line.push(b'\n');
        (&self.file).write_all(&line)
    }
}

/// Reads the facts of a node while it writes them.
#[derive(Debug)]
pub(crate) struct Tail {
    path: PathBuf,
    file: Option<File>,
    /// The start of a line whose end is not there yet.
    rest: Vec<u8>,
}

impl Tail {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            file: None,
            rest: Vec::new(),
        }
    }

    /// Hands over what has been written since the last call.
    pub(crate) fn read(&mut self, mut each: impl FnMut(Fact)) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => match File::open(&self.path) {
                Ok(file) => self.file.insert(file),
                // The node has not got that far.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
            },
        };
        file.read_to_end(&mut self.rest)?;
        let complete = self
            .rest
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1);
        for line in self.rest[..complete]
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            each(serde_json::from_slice(line)?);
        }
        self.rest.drain(..complete);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_as_they_were_written_and_once() {
        let path = std::env::temp_dir().join(format!("outbox-demo-log-{:016x}", rand::random::<u64>()));
        let mut tail = Tail::new(path.clone());
        let read = |tail: &mut Tail| {
            let mut facts = Vec::new();
            tail.read(|fact| facts.push(fact)).unwrap();
            facts
        };
        assert_eq!(read(&mut tail), []);

        let log = Log::create(&path).unwrap();
        let intent = Fact::Intent {
            id: "1".to_owned(),
            listeners: 2,
            delayed: false,
            place: Some(("customer".to_owned(), 7)),
        };
        log.write(&Fact::Ready).unwrap();
        log.write(&intent).unwrap();
        assert_eq!(read(&mut tail), [Fact::Ready, intent]);

        (&log.file).write_all(br#"{"fact":"qu"#).unwrap();
        assert_eq!(read(&mut tail), []);
        (&log.file).write_all(b"iet\"}\n").unwrap();
        assert_eq!(read(&mut tail), [Fact::Quiet]);
        std::fs::remove_file(path).unwrap();
    }
}
