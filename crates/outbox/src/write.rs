//! Writing: events go into the table in the caller's own transaction, and to the dispatcher once it is committed.
//!
//! Correctness never depends on the hand-over. A row that its process will deliver from memory is *born leased* to it:
//! nobody else takes it meanwhile, and whatever is lost on the way (a forgotten receipt, a full queue, a cancelled
//! future, a crash) costs only time.

mod backend;
mod handle;
mod handoff;
mod hook;
mod transaction;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use crate::error::Error;
use crate::event::{Due, Event, EventId, IntoEvent};
use crate::failpoint::fail_point;
use crate::store::{Inserted, Lease, NewRow};
use crate::table::TableName;
use crate::trace;

pub(crate) use backend::commit_failed;
pub use backend::{Backend, PoolOf};
pub use handle::{Published, Receipt, TxHandle};
pub(crate) use handoff::{Committed, Handoff};
pub(crate) use hook::Hooks;
pub use hook::{HookError, WriterHook};
pub use transaction::{Savepoint, Transaction};

/// Rows per insert.
pub(crate) const CHUNK_ROWS: usize = 500;
/// Bytes per insert, roughly: far below what any server takes as one packet by default.
const CHUNK_BYTES: usize = 2 * 1024 * 1024;

/// What a writer needs, shared by all handles on one outbox.
#[derive(Debug)]
pub(crate) struct Writer<D: Backend> {
    pub(crate) statements: D::Statements,
    pub(crate) context: Arc<Context>,
}

/// The part of a [`Writer`] that does not know its database.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) table: TableName,
    pub(crate) hooks: Hooks,
    pub(crate) handoff: Arc<dyn Handoff>,
    pub(crate) clock: fn() -> DateTime<Utc>,
}

impl Context {
    /// Gives committed events to whoever delivers them.
    fn hand_over(&self, leases: &[Option<Lease>], events: &[Event], deadline: Instant) {
        let committed = leases
            .iter()
            .zip(events)
            .map(|(lease, event)| Committed {
                lease: *lease,
                event: event.clone(),
                deadline,
            })
            .collect();
        self.handoff.committed(committed);
    }
}

impl<D: Backend> Writer<D> {
    pub(crate) async fn publish<T: TxHandle<D>>(
        &self,
        tx: &mut T,
        events: impl IntoIterator<Item = impl IntoEvent> + Send,
    ) -> Result<T::Receipt, Error> {
        // A batch of one clock reading: what happens together happened at one time.
        let now = (self.context.clock)();
        let events = events
            .into_iter()
            .map(|event| event.into_event(now).map(trace::capture))
            .collect::<Result<Vec<_>, _>>()?;
        self.write(tx, events).await
    }

    async fn write<T: TxHandle<D>>(&self, tx: &mut T, events: Vec<Event>) -> Result<T::Receipt, Error> {
        let connection = tx.connection()?;
        let events = self.context.hooks.before_write(events);
        refuse_twins(&events)?;

        // Measured before the database starts the lease by its own clock, so ours ends first.
        let written_at = Instant::now();
        let born = self.context.handoff.born();
        let rows: Vec<NewRow<'_>> = events
            .iter()
            .map(|event| NewRow {
                event,
                // A delayed event never takes the hot path: whoever is there when it is due may have it.
                born: born.filter(|_| event.due() == Due::Now),
            })
            .collect();
        fail_point!("before-insert");
        let Inserted { seqs, inside } = self.insert(connection, &rows).await?;
        fail_point!("after-insert");
        let row = seqs.first().copied();
        let mut seqs = seqs.into_iter();
        let leases: Vec<Option<Lease>> = rows
            .iter()
            .map(|row| {
                let seq = seqs.next()?;
                row.born.map(|born| Lease { seq, token: born.token })
            })
            .collect();
        let deadline = born.map_or(written_at, |born| written_at + born.lease);

        #[cfg(feature = "failpoints")]
        if crate::failpoint::is_broken("hot-before-commit") {
            self.context.hand_over(&leases, &events, deadline);
        }
        self.context.hooks.after_write(&events);
        Ok(tx.stage(Staged {
            context: Arc::clone(&self.context),
            events,
            leases,
            deadline,
            inside,
            row,
            fate: Fate::Open,
        }))
    }

    async fn insert(&self, connection: &mut D::Connection, rows: &[NewRow<'_>]) -> Result<Inserted, Error> {
        if rows.is_empty() {
            return Ok(Inserted {
                seqs: Vec::new(),
                inside: false,
            });
        }
        let chunks = chunks(rows);
        D::insert(connection, &self.statements, &chunks)
            .await
            .map_err(|error| insert_failed::<D>(error, rows, &self.context.table))
    }
}

/// Cuts a batch into inserts of bounded rows and bytes.
fn chunks<'r, 'e>(rows: &'r [NewRow<'e>]) -> Vec<&'r [NewRow<'e>]> {
    let mut chunks = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (at, row) in rows.iter().enumerate() {
        let size = row.event.payload().as_bytes().len();
        if at > start && (at - start == CHUNK_ROWS || bytes + size > CHUNK_BYTES) {
            chunks.push(&rows[start..at]);
            (start, bytes) = (at, 0);
        }
        bytes += size;
    }
    chunks.push(&rows[start..]);
    chunks
}

/// Two events of one id in a batch.
fn refuse_twins(events: &[Event]) -> Result<(), Error> {
    if events.len() < 2 {
        return Ok(());
    }
    let mut seen = HashSet::with_capacity(events.len());
    match events.iter().find(|event| !seen.insert(event.id())) {
        Some(twin) => Err(Error::DuplicateEventId { id: twin.id().clone() }),
        None => Ok(()),
    }
}

fn insert_failed<D: Backend>(error: sqlx::Error, rows: &[NewRow<'_>], table: &TableName) -> Error {
    let database = error.as_database_error();
    if database.is_some_and(|error| error.is_unique_violation()) {
        return match rows {
            [row] => Error::DuplicateEventId {
                id: row.event.id().clone(),
            },
            _ => Error::DuplicateEventIdInBatch,
        };
    }
    if D::is_missing_table(&error) {
        return Error::SchemaMissing {
            table: table.to_string(),
        };
    }
    Error::Database {
        operation: "writing events",
        source: error,
    }
}

/// What a transaction has written and not yet decided.
///
/// Its fate is told by a method. If it is dropped without one, its transaction was rolled back, unless a commit was under
/// way: then nobody knows, and the delivery looks the rows up.
#[derive(Debug)]
pub struct Staged {
    context: Arc<Context>,
    events: Vec<Event>,
    leases: Vec<Option<Lease>>,
    /// The leases may have ended by then: measured with a clock that cannot be set.
    deadline: Instant,
    /// Written for certain inside of a transaction: see [`Inserted::inside`].
    inside: bool,
    /// One of the rows, which stands and falls with the others.
    row: Option<i64>,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// A drop now is a rollback.
    Open,
    /// A drop now leaves the outcome unknown.
    Unknown,
    /// Told.
    Decided,
}

impl Staged {
    fn ids(&self) -> Vec<EventId> {
        self.events.iter().map(|event| event.id().clone()).collect()
    }

    /// A row, to see whether they are there.
    fn written(&self) -> Option<(TableName, i64)> {
        Some((self.context.table.clone(), self.row?))
    }

    fn unconfirmed(&self) -> Vec<(Lease, Instant)> {
        let leases = self.leases.iter().flatten();
        leases.map(|lease| (*lease, self.deadline)).collect()
    }

    /// From here on a drop no longer means a rollback.
    fn begin_commit(&mut self) {
        self.fate = Fate::Unknown;
    }

    /// What was to be decided was not the last word: a drop is a rollback again.
    fn reopen(&mut self) {
        self.fate = Fate::Open;
    }

    /// The database has said that it is committed: deliver from memory.
    fn committed(mut self) {
        fail_point!("after-commit");
        self.fate = Fate::Decided;
        let events = std::mem::take(&mut self.events);
        self.context.hand_over(&self.leases, &events, self.deadline);
        self.context.hooks.after_commit(&events);
    }

    /// The caller has said that it is committed: look before delivering, since a savepoint around it may have been
    /// rolled back, or the whole transaction by an error that the caller did not see.
    fn said_to_be_committed(mut self) {
        self.fate = Fate::Decided;
        self.context.handoff.unconfirmed(self.unconfirmed());
        self.context.hooks.after_commit(&self.events);
    }

    /// Rolled back: nothing is delivered, ever.
    fn rolled_back(mut self) {
        self.fate = Fate::Decided;
        self.context.hooks.after_rollback(&self.events);
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        match self.fate {
            Fate::Open => self.context.hooks.after_rollback(&self.events),
            Fate::Unknown => self.context.handoff.unconfirmed(self.unconfirmed()),
            Fate::Decided => {}
        }
    }
}

/// How long a commit may take before its outcome counts as unknown.
pub(crate) const COMMIT_TIMEOUT: Duration = Duration::from_secs(60);
