use std::io;
use std::process::{ExitCode, ExitStatus};

/// Why a command ended without doing what it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Outbox(#[from] outbox::Error),
    /// Standard output cannot be written, or the process cannot be set up.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Events would be lost.
    #[error(
        "this drops the table {table} and its companions with {events} in it, {pending} of them not delivered: \
         add --yes to do it"
    )]
    WouldLoseEvents {
        table: String,
        events: String,
        pending: String,
    },
    /// A newer release has made tables that this one does not know how to undo.
    #[error(
        "the tables of {table} are at version {found}, and this command knows no further than {known}: \
         use the release that made them"
    )]
    TablesTooNew { table: String, found: i64, known: i64 },
    #[error("there is no event with the id {id} in {table}")]
    NoSuchEvent { id: String, table: String },
    #[error("the event {id} is not dead: its status is {status}")]
    NotDead { id: String, status: &'static str },
    #[error("the event {id} is being delivered by {node}, until {until} at most: try again later")]
    BeingDelivered { id: String, node: String, until: String },
    #[error("the event {id} has been changed meanwhile, and was left alone")]
    Changed { id: String },
    #[error("the key {key} is not blocked: see `outbox keys list`")]
    NotBlocked { key: String },
    /// An action on many, and neither a terminal nor a yes.
    #[error("this would {action}: add --yes to do it; nothing was changed")]
    NeedsYes { action: String },
    #[error("nothing was changed")]
    Declined,
    #[error("say which events: an ID, one or more filters, or --all (see --help)")]
    NothingSelected,
    /// A statement on tables of the command's own: the demo's shop, the benchmark's loops.
    #[error("the tables of the command's own: {0}")]
    OwnTables(#[from] sqlx::Error),
    #[error("the demo failed: {complaint}")]
    DemoFailed { complaint: String },
    #[error("a node ended early ({status}); its reason is above")]
    NodeFailed { status: ExitStatus },
    #[error("the nodes did not get ready")]
    NodesNotReady,
    #[error("a node does not stop")]
    NodeDoesNotStop,
    #[error("--kill-one needs at least two nodes: one must be left to deliver")]
    NobodyLeft,
    #[error("the nodes are processes, which cannot share a database in memory: give it a file")]
    DatabaseInMemory,
    #[error("the benchmark {scenario} does not get on: {done} of {events} events are delivered")]
    BenchStuck {
        scenario: &'static str,
        done: u64,
        events: u64,
    },
    #[error("the benchmark {scenario} went wrong: {complaint}")]
    BenchFailed { scenario: &'static str, complaint: String },
    #[error("interrupted")]
    Interrupted,
    #[error("a background task of the outbox has died")]
    TaskDied,
}

impl Failure {
    /// Says it in one line on standard error.
    pub(crate) fn report(&self) -> ExitCode {
        // Whoever read our output has seen enough: `outbox .. | head`.
        if matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::BrokenPipe) {
            return ExitCode::SUCCESS;
        }
        let message = self.to_string();
        let line: Vec<&str> = message.split_whitespace().collect();
        complain(&format!("error: {}\n", line.join(" ")));
        ExitCode::from(if matches!(self, Self::NothingSelected) { 2 } else { 1 })
    }
}

/// Prints help where it was asked for, and what is wrong with the arguments otherwise.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    let text = error.render();
    if error.use_stderr() && text.to_string().contains("://") {
        // The argument that is wrong is shown, and may be a URL.
        complain(&without_passwords(&text.to_string()));
    } else {
        // Nobody is left to tell that the help could not be printed.
        let _ = error.print();
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

fn complain(text: &str) {
    use io::Write;
    // Nobody is left to tell that standard error is closed.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Hides what stands between `://` and the last `@` of the same word.
fn without_passwords(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for word in text.split_inclusive(char::is_whitespace) {
        match (word.find("://"), word.rfind('@')) {
            (Some(scheme), Some(at)) if scheme + 3 <= at => {
                shown.push_str(&word[..scheme + 3]);
                shown.push_str("***");
                shown.push_str(&word[at..]);
            }
            _ => shown.push_str(word),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_hidden_wherever_a_url_stands() {
        assert_eq!(
            without_passwords("unexpected 'postgres://scott:ti@ger@db:1/x' found\n\n  see mysql://db, a@b"),
            "unexpected 'postgres://***@db:1/x' found\n\n  see mysql://db, a@b"
        );
    }

    #[test]
    fn reader_that_has_seen_enough_is_no_error() {
        assert_eq!(
            Failure::Io(io::ErrorKind::BrokenPipe.into()).report(),
            ExitCode::SUCCESS
        );
    }
}
