use sqlx::pool::PoolConnection;

use super::{Backend, Fate, Staged};
use crate::error::Error;
use crate::event::EventId;
use crate::store::Driver;

/// A transaction that events can be published in.
///
/// Implemented for what *is* a transaction: [`Transaction`](super::Transaction) and [`Savepoint`](super::Savepoint) of
/// ours, `sqlx::Transaction`, and a connection, which is asked at run time whether it is inside of one. Never for a pool:
///
/// ```compile_fail
/// # async fn f(outbox: outbox::Outbox<sqlx::Sqlite>, pool: sqlx::SqlitePool, event: outbox::Event) {
/// outbox.publish(&mut &pool, event).await;
/// # }
/// ```
///
/// Events go out after the commit, at least once, in no order. A publish whose future
/// is dropped has written its rows or has not, and they share the fate of the transaction; of a batch of more than 500,
/// PostgreSQL may have some. With MySQL's driver (sqlx 0.9) a connection on which any statement was dropped half way may
/// wait for an answer that never comes: drop the transaction as well, and give the pool's connections a time limit.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a transaction that events can be published in",
    label = "not a transaction",
    note = "begin one: `let mut tx = outbox.begin(&pool).await?`, or `pool.begin().await?`, and pass `&mut tx`"
)]
pub trait TxHandle<D: Backend>: Send {
    /// What publishing returns: how the hand-over after the commit is brought about.
    type Receipt;

    /// The connection that the caller's own statements run on.
    #[doc(hidden)]
    fn connection(&mut self) -> Result<&mut D::Connection, Error>;

    /// Keeps what was written until its fate is known.
    #[doc(hidden)]
    fn stage(&mut self, staged: Staged) -> Self::Receipt;
}

/// What was written in a transaction of ours, whose commit hands it over by itself.
#[derive(Clone, Debug)]
pub struct Published {
    pub(super) ids: Vec<EventId>,
}

impl Published {
    /// The ids of the events, in the order they were given; without those that a hook suppressed.
    pub fn ids(&self) -> &[EventId] {
        &self.ids
    }
}

/// What was written in a transaction of the caller's, who says when it is committed.
///
/// The saying only saves time. A receipt is taken as a hint: the rows are looked up before they are delivered, so a
/// savepoint that was rolled back does not deliver. Dropped without a word, its events are looked up as well.
#[derive(Debug)]
#[must_use = "call committed() after the commit, or the events wait for the poller"]
pub struct Receipt {
    staged: Staged,
}

impl Receipt {
    pub(crate) fn new(mut staged: Staged) -> Self {
        staged.fate = Fate::Unknown;
        Self { staged }
    }

    /// The ids of the events, in the order they were given; without those that a hook suppressed.
    pub fn ids(&self) -> Vec<EventId> {
        self.staged.ids()
    }

    /// The transaction has been committed: deliver at once.
    pub fn committed(self) {
        self.staged.said_to_be_committed();
    }

    /// The transaction, or the savepoint, has been rolled back. Tells the hooks; nothing else comes of it.
    pub fn rolled_back(self) {
        self.staged.rolled_back();
    }
}

impl<D: Driver> TxHandle<D> for sqlx::Transaction<'_, D> {
    type Receipt = Receipt;

    fn connection(&mut self) -> Result<&mut D::Connection, Error> {
        Ok(self)
    }

    fn stage(&mut self, staged: Staged) -> Receipt {
        Receipt::new(staged)
    }
}

fn inside_of_one<C: sqlx::Connection>(connection: &mut C) -> Result<&mut C, Error> {
    if connection.is_in_transaction() {
        Ok(connection)
    } else {
        Err(Error::NotInTransaction)
    }
}

impl<D: Driver> TxHandle<D> for PoolConnection<D> {
    type Receipt = Receipt;

    fn connection(&mut self) -> Result<&mut D::Connection, Error> {
        inside_of_one(&mut **self)
    }

    fn stage(&mut self, staged: Staged) -> Receipt {
        Receipt::new(staged)
    }
}

macro_rules! for_connection {
    ($feature:literal, $database:ty, $connection:ty) => {
        #[cfg(feature = $feature)]
        impl TxHandle<$database> for $connection {
            type Receipt = Receipt;

            fn connection(&mut self) -> Result<&mut $connection, Error> {
                inside_of_one(self)
            }

            fn stage(&mut self, staged: Staged) -> Receipt {
                Receipt::new(staged)
            }
        }
    };
}

for_connection!("sqlite", sqlx::Sqlite, sqlx::SqliteConnection);
for_connection!("postgres", sqlx::Postgres, sqlx::PgConnection);
for_connection!("mysql", sqlx::MySql, sqlx::MySqlConnection);
