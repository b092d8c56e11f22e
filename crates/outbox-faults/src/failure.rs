use std::io;
use std::process::ExitCode;
use std::time::Duration;

use crate::fault::{Fault, Kind};

/// Why the harness could not do its work. A broken invariant is not one of these: it is a result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Outbox(#[from] outbox::Error),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{what}: not within {limit:?}")]
    TooSlow { what: String, limit: Duration },
    #[error("{server} is not installed: run scripts/services start, or give the URL of a server")]
    NotInstalled { server: Kind },
    #[error("{command} failed: {output}")]
    Command { command: String, output: String },
    #[error("a node ended early ({status}); see {log}")]
    NodeEnded { status: String, log: String },
    #[error("{fault} does not apply to any of the databases")]
    NothingToDo { fault: Fault },
    #[error("unknown database {given:?}: sqlite, postgres, mariadb, or a URL")]
    UnknownDatabase { given: String },
    #[error("a proxy needs the port of a server on this machine, and the URL has none")]
    NoPort,
    #[error("an invariant broke: run again with the seed that is shown")]
    Broken,
    #[error("interrupted")]
    Interrupted,
}

impl Failure {
    pub(crate) fn report(&self) -> ExitCode {
        eprintln!("outbox-faults: {self}");
        ExitCode::from(1)
    }

    pub(crate) fn too_slow(what: impl Into<String>, limit: Duration) -> Self {
        Self::TooSlow {
            what: what.into(),
            limit,
        }
    }
}

/// Runs `work` within `limit`.
pub(crate) async fn within<T, E: Into<Failure>>(
    what: &str,
    limit: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result.map_err(Into::into),
        Err(_) => Err(Failure::too_slow(what, limit)),
    }
}
