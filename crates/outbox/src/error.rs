use crate::event::{EventError, EventId};
use crate::listen::DuplicateListener;
use crate::table::TableNameError;

/// What can go wrong in the library.
///
/// No message holds a payload, a header's value or a database URL.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An event breaks a rule; nothing was written.
    #[error(transparent)]
    Event(#[from] EventError),
    /// A connection that is not inside a transaction; nothing was written.
    #[error(
        "publish needs an open transaction, and this connection has none: \
         begin one, or use Outbox::begin or Outbox::transaction"
    )]
    NotInTransaction,
    /// Two events with one id, in this batch or in the table.
    #[error("an event with the id {id} is already in the outbox: every event needs an id of its own")]
    DuplicateEventId {
        /// The id that is taken.
        id: EventId,
    },
    /// Two events with one id; the database does not say which of the batch it is.
    #[error("an event of this batch is already in the outbox: every event needs an id of its own")]
    DuplicateEventIdInBatch,
    /// A table name that is no plain identifier.
    #[error(transparent)]
    TableName(#[from] TableNameError),
    /// Two listeners for the same events, and no names to tell them apart.
    #[error(transparent)]
    DuplicateListener(#[from] DuplicateListener),
    /// A database URL that names no database we know.
    #[error(
        "unknown database URL scheme {scheme:?}: use sqlite://, postgres://, mysql:// or mariadb:// \
         (and the library's feature of that name)"
    )]
    UnknownScheme {
        /// What stands before the colon. The rest of the URL may hold a password.
        scheme: String,
    },
    /// A database that this build of the library leaves out.
    #[error("this program was built without {feature}: enable the feature {feature:?} of the outbox crate")]
    FeatureDisabled {
        /// The cargo feature that brings it in.
        feature: &'static str,
    },
    /// The tables are not there.
    #[error("the table {table} does not exist: run `outbox migrate up`, or outbox::migrate::up")]
    SchemaMissing {
        /// The table that was looked for.
        table: String,
    },
    /// The tables are of an older version of the library.
    #[error(
        "the schema of {table} is at version {found}, this library needs {needed}: \
         run `outbox migrate up`, or outbox::migrate::up"
    )]
    SchemaOutdated {
        /// The table.
        table: String,
        /// What the database has.
        found: i64,
        /// What the library needs.
        needed: i64,
    },
    /// COMMIT was sent and no answer came: it may or may not have happened.
    ///
    /// Nothing went to the hot path. If it did happen, the events are delivered from the table.
    #[error("the outcome of the commit is unknown: read your data before you try again ({source})")]
    CommitOutcomeUnknown {
        /// What came instead of the answer.
        source: sqlx::Error,
    },
    /// The database had rolled the transaction back before it was asked to commit, because an earlier statement
    /// failed: nothing was committed, nothing will be delivered.
    #[error(
        "nothing was committed: an earlier statement failed and the database rolled the transaction back ({source})"
    )]
    NotCommitted {
        /// What the database said.
        source: sqlx::Error,
    },
    /// A statement failed.
    #[error("{operation}: {source}")]
    Database {
        /// What was being done.
        operation: &'static str,
        /// What the database or the connection said.
        source: sqlx::Error,
    },
    /// The runtime ended before the work did.
    #[error("the async runtime has ended: keep it alive until the shutdown is done")]
    Stopped,
    /// Something did not happen in time.
    #[error("{operation} took longer than {limit:?}")]
    Timeout {
        /// What was being done.
        operation: &'static str,
        /// How long it was given.
        limit: std::time::Duration,
    },
}

impl Error {
    /// Whether the same call may succeed later: a lost connection, a deadlock, a busy database.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Timeout { .. } => true,
            Self::Database { source, .. } => is_retryable(source),
            _ => false,
        }
    }
}

/// Tells where a statement failed, for `map_err`.
pub(crate) fn database(operation: &'static str) -> impl Fn(sqlx::Error) -> Error {
    move |source| Error::Database { operation, source }
}

/// A deadlock, or two transactions that cannot both be: the statement was rolled back and may be run again.
pub(crate) fn is_conflict(error: &sqlx::Error) -> bool {
    let Some(database) = error.as_database_error() else {
        return false;
    };
    match database.code().as_deref() {
        // serialization_failure, deadlock_detected (PostgreSQL); 40001 is a deadlock of MySQL, too.
        Some("40001" | "40P01") => true,
        // SQLITE_BUSY, SQLITE_BUSY_RECOVERY, SQLITE_LOCKED, SQLITE_BUSY_SNAPSHOT, SQLITE_BUSY_TIMEOUT
        Some("5" | "261" | "6" | "262" | "517" | "773") => true,
        // A lock wait timeout of MySQL (1205) and a row changed since the snapshot was taken (MariaDB 1020).
        Some("HY000") => matches!(mysql_number(error), Some(1205 | 1020)),
        _ => false,
    }
}

fn is_retryable(error: &sqlx::Error) -> bool {
    use sqlx::Error as E;
    match error {
        E::Io(_) | E::Tls(_) | E::Protocol(_) | E::PoolTimedOut | E::PoolClosed | E::WorkerCrashed => true,
        E::Database(database) => {
            is_conflict(error)
                // connection exceptions, shutdown and crash of PostgreSQL; out of connections or memory
                || database.code().is_some_and(|code| {
                    code.starts_with("08") || code.starts_with("57P") || code.starts_with("53")
                })
        }
        _ => false,
    }
}

#[cfg(feature = "mysql")]
fn mysql_number(error: &sqlx::Error) -> Option<u16> {
    let database = error.as_database_error()?;
    Some(database.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()?.number())
}

#[cfg(not(feature = "mysql"))]
fn mysql_number(_error: &sqlx::Error) -> Option<u16> {
    None
}
