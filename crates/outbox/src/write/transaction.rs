use std::ops::{Deref, DerefMut};

use super::{Backend, COMMIT_TIMEOUT, Published, Staged, TxHandle};
use crate::error::Error;
use crate::table::TableName;
use crate::telemetry::COMMITTED;

/// A transaction that hands its events over when it is committed.
///
/// Use it as the database's own (`&mut *tx` is the connection), with one exception: set savepoints with
/// [`savepoint`](Self::savepoint). One in plain SQL is not seen here, and what was published in it would be delivered
/// although it was rolled back. Dropped, the transaction is rolled back and nothing is delivered.
///
/// # Cancellation
/// A [`commit`](Self::commit) whose future is dropped may or may not have happened; the events are then looked up in the
/// table and delivered if they are there.
pub struct Transaction<D: Backend> {
    inner: D::Transaction,
    staged: Vec<Staged>,
    /// Somebody has had the connection since the last event was written, and may have run what failed.
    touched: bool,
    /// Something that was published may have been undone by what came after it.
    doubtful: bool,
}

impl<D: Backend> Transaction<D> {
    pub(crate) fn new(inner: D::Transaction) -> Self {
        Self {
            inner,
            staged: Vec::new(),
            touched: false,
            doubtful: false,
        }
    }

    /// Commits, and hands the events to the dispatcher.
    ///
    /// # Errors
    /// [`Error::NotCommitted`] if the database refused, or had rolled back before because of a failed statement.
    /// [`Error::CommitOutcomeUnknown`] if no answer came: read your data before you try again. Nothing is delivered from
    /// memory then; what is in the table is delivered from there.
    pub async fn commit(self) -> Result<(), Error> {
        let Self {
            inner,
            mut staged,
            touched,
            doubtful,
        } = self;
        staged.iter_mut().for_each(Staged::begin_commit);
        let outcome = {
            let commit = std::pin::pin!(async {
                if touched || doubtful {
                    let written: Vec<(TableName, i64)> = staged.iter().filter_map(Staged::written).collect();
                    D::commit_checked(inner, &written).await
                } else {
                    // What was published last has told that the transaction stands.
                    D::commit(inner).await
                }
            });
            match tokio::time::timeout(COMMIT_TIMEOUT, commit).await {
                Ok(outcome) => outcome,
                Err(_) => Err(Error::CommitOutcomeUnknown {
                    source: sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()),
                }),
            }
        };
        match &outcome {
            Ok(()) => {
                tracing::trace!(target: COMMITTED, "committed");
                staged.into_iter().for_each(Staged::committed);
            }
            Err(Error::NotCommitted { .. }) => staged.into_iter().for_each(Staged::rolled_back),
            // Dropped undecided: to be looked up.
            Err(_) => drop(staged),
        }
        outcome
    }

    /// Rolls back; nothing is delivered. Dropping the transaction does the same, a little later.
    ///
    /// # Errors
    /// [`Error::Database`] if the connection is lost; the database then rolls back by itself.
    pub async fn rollback(self) -> Result<(), Error> {
        self.staged.into_iter().for_each(Staged::rolled_back);
        D::rollback(self.inner).await
    }

    /// A savepoint: what is published in it is delivered only if it is released and the transaction is committed.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn savepoint(&mut self) -> Result<Savepoint<'_, D>, Error> {
        self.touched = true;
        Savepoint::set(&mut *self.inner, &mut self.staged).await
    }
}

impl<D: Backend> Deref for Transaction<D> {
    type Target = D::Connection;

    fn deref(&self) -> &D::Connection {
        &self.inner
    }
}

impl<D: Backend> DerefMut for Transaction<D> {
    fn deref_mut(&mut self) -> &mut D::Connection {
        self.touched = true;
        &mut self.inner
    }
}

impl<D: Backend> std::fmt::Debug for Transaction<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction")
            .field("batches", &self.staged.len())
            .finish_non_exhaustive()
    }
}

impl<D: Backend> TxHandle<D> for Transaction<D> {
    type Receipt = Published;

    fn connection(&mut self) -> Result<&mut D::Connection, Error> {
        self.doubtful |= self.touched && !self.staged.is_empty();
        self.touched = true;
        Ok(&mut self.inner)
    }

    fn stage(&mut self, staged: Staged) -> Published {
        self.touched = !staged.inside;
        let published = Published { ids: staged.ids() };
        self.staged.push(staged);
        published
    }
}

/// A savepoint inside of a [`Transaction`]. Dropped, it is rolled back and its events are never delivered.
pub struct Savepoint<'a, D: Backend> {
    connection: &'a mut D::Connection,
    /// What was published around it.
    parent: &'a mut Vec<Staged>,
    staged: Vec<Staged>,
    /// To be rolled back when it is dropped.
    open: bool,
}

impl<'a, D: Backend> Savepoint<'a, D> {
    async fn set(connection: &'a mut D::Connection, parent: &'a mut Vec<Staged>) -> Result<Self, Error> {
        D::set_savepoint(connection).await?;
        Ok(Self {
            connection,
            parent,
            staged: Vec::new(),
            open: true,
        })
    }

    /// Keeps what was done since; it shares the fate of what is around it.
    ///
    /// # Errors
    /// [`Error::Database`]; the savepoint's events are then not delivered from memory.
    pub async fn release(mut self) -> Result<(), Error> {
        // A release that fails, or is cancelled, may have happened: then the events are in the table if the transaction is
        // committed all the same.
        self.staged.iter_mut().for_each(Staged::begin_commit);
        D::release_savepoint(self.connection).await?;
        self.open = false;
        self.staged.iter_mut().for_each(Staged::reopen);
        let mut staged = std::mem::take(&mut self.staged);
        self.parent.append(&mut staged);
        Ok(())
    }

    /// Undoes what was done since. Dropping the savepoint does the same, a little later.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn rollback(mut self) -> Result<(), Error> {
        std::mem::take(&mut self.staged)
            .into_iter()
            .for_each(Staged::rolled_back);
        D::rollback_savepoint(self.connection).await?;
        self.open = false;
        Ok(())
    }

    /// A savepoint inside of this one.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn savepoint(&mut self) -> Result<Savepoint<'_, D>, Error> {
        Savepoint::set(self.connection, &mut self.staged).await
    }
}

impl<D: Backend> Drop for Savepoint<'_, D> {
    fn drop(&mut self) {
        if self.open {
            D::abandon_savepoint(self.connection);
        }
    }
}

impl<D: Backend> Deref for Savepoint<'_, D> {
    type Target = D::Connection;

    fn deref(&self) -> &D::Connection {
        self.connection
    }
}

impl<D: Backend> DerefMut for Savepoint<'_, D> {
    fn deref_mut(&mut self) -> &mut D::Connection {
        self.connection
    }
}

impl<D: Backend> std::fmt::Debug for Savepoint<'_, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Savepoint")
            .field("batches", &self.staged.len())
            .finish_non_exhaustive()
    }
}

impl<D: Backend> TxHandle<D> for Savepoint<'_, D> {
    type Receipt = Published;

    fn connection(&mut self) -> Result<&mut D::Connection, Error> {
        Ok(self.connection)
    }

    fn stage(&mut self, staged: Staged) -> Published {
        let published = Published { ids: staged.ids() };
        self.staged.push(staged);
        published
    }
}
