//! Draining by hand: one connection reads the next batch while another one writes the last.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sqlx::Pool;
use sqlx::pool::PoolConnection;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{BareDatabase, Row, Statements};
use crate::failure::Failure;

/// How a hand-written loop gets rows, and gets rid of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BareLoop {
    /// Several of these loops could run at once.
    ClaimAndUpdate,
    /// This one believes that it is alone.
    ReadAndUpdate,
    ReadAndDelete,
}

/// Where the last batch ended.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    seq: i64,
    due: i64,
}

/// Batches that are read and not yet written.
const READ_AHEAD: usize = 2;

#[derive(Debug)]
pub(crate) struct BareDrain<D: BareDatabase> {
    pub(crate) pool: Pool<D>,
    pub(crate) sql: Arc<Statements>,
    pub(crate) kind: BareLoop,
    pub(crate) batch: i64,
    /// How many are done so far.
    pub(crate) done: Arc<AtomicU64>,
}

impl<D: BareDatabase> BareDrain<D> {
    /// Connects, so that the measurement need not. The second connection is for the writer, where there is one.
    pub(crate) async fn connect(&self) -> Result<[PoolConnection<D>; 2], sqlx::Error> {
        let mut connections = [self.pool.acquire().await?, self.pool.acquire().await?];
        for connection in &mut connections {
            D::script(&mut *connection, D::SESSION.to_owned()).await?;
        }
        Ok(connections)
    }

    /// Runs until there is nothing left.
    pub(crate) async fn run(self: Arc<Self>, [reader, writer]: [PoolConnection<D>; 2]) -> Result<(), Failure> {
        if D::ONE_WRITER && self.kind == BareLoop::ClaimAndUpdate {
            return self.in_turns(reader).await;
        }
        let (batches, read) = mpsc::channel(READ_AHEAD);
        let mut both = JoinSet::new();
        both.spawn(Arc::clone(&self).read_all(reader, batches));
        both.spawn(self.write_all(writer, read));
        while let Some(ended) = both.join_next().await {
            ended.map_err(std::io::Error::other)??;
        }
        Ok(())
    }

    /// Both are writes, and only one can be at a time.
    async fn in_turns(&self, mut connection: PoolConnection<D>) -> Result<(), Failure> {
        let mut after = Mark::default();
        loop {
            let rows = self.read(&mut connection, &mut after).await?;
            if rows.is_empty() {
                return Ok(());
            }
            self.write(&mut connection, &deliver(&rows)).await?;
        }
    }

    async fn read_all(
        self: Arc<Self>,
        mut connection: PoolConnection<D>,
        batches: mpsc::Sender<Vec<i64>>,
    ) -> Result<(), sqlx::Error> {
        let mut after = Mark::default();
        loop {
            let rows = self.read(&mut connection, &mut after).await?;
            if rows.is_empty() || batches.send(deliver(&rows)).await.is_err() {
                return Ok(());
            }
        }
    }

    async fn write_all(
        self: Arc<Self>,
        mut connection: PoolConnection<D>,
        mut batches: mpsc::Receiver<Vec<i64>>,
    ) -> Result<(), sqlx::Error> {
        while let Some(seqs) = batches.recv().await {
            self.write(&mut connection, &seqs).await?;
        }
        Ok(())
    }

    async fn read(&self, connection: &mut D::Connection, after: &mut Mark) -> Result<Vec<Row>, sqlx::Error> {
        let rows = match self.kind {
            BareLoop::ClaimAndUpdate => D::take(connection, &self.sql, after.due, self.batch).await,
            BareLoop::ReadAndUpdate | BareLoop::ReadAndDelete => {
                D::read_after(connection, &self.sql, after.seq, self.batch).await
            }
        }?;
        for row in &rows {
            after.seq = after.seq.max(row.0);
            after.due = after.due.max(row.1);
        }
        Ok(rows)
    }

    async fn write(&self, connection: &mut D::Connection, seqs: &[i64]) -> Result<(), sqlx::Error> {
        match self.kind {
            BareLoop::ClaimAndUpdate | BareLoop::ReadAndUpdate => D::mark_done(connection, &self.sql, seqs).await?,
            BareLoop::ReadAndDelete => D::remove(connection, &self.sql, seqs).await?,
        }
        self.done.fetch_add(seqs.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// The listener, which does nothing.
fn deliver(rows: &[Row]) -> Vec<i64> {
    rows.iter().map(|row| black_box(row).0).collect()
}
