//! What each database says about itself. They answer the same questions, in the same order, each in its own file:
//! [`Dialect`] says how it spells things, [`Driver`] runs the statements of the hot path, written by hand for it.
#![allow(
    missing_docs,
    reason = "public only because `Backend` is implemented for every `Driver`"
)]

use std::fmt;
use std::future::Future;
use std::ops::DerefMut;
use std::time::Duration;

use sqlx::pool::PoolOptions;
use sqlx::{Connection, Pool, Transaction};

use super::batch::Batch;
use super::row::NUMBERS;
use super::statement::Statement;
use super::{Claim, Claimed, Explain, Inserted, Lease, NewRow, News, Wakeups, Writers};
use crate::error::Error;
use crate::migrate::Migration;
use crate::table::TableName;

/// How a database spells things.
pub trait Dialect: Send + Sync + 'static {
    /// Its name, for logs and metrics.
    const DATABASE: &'static str;
    /// Quotes an identifier.
    const QUOTE: char;
    /// The instant at which the statement started; the same throughout it, and fit for an index condition.
    const NOW: &'static str;
    /// Condition on a row that somebody may still have to deliver, exactly as the index of pending rows has it.
    const PENDING: &'static str;
    /// The column that index is sorted by: when a pending row is due.
    const DUE: &'static str;
    /// The type of a column that holds an instant.
    const INSTANT: &'static str;
    /// Condition on a pending row `t`, exactly as the index of pending rows in the order of writing has it.
    const PENDING_IN_ORDER: &'static str;
    /// A table without rows is seen to be so at once, and asking for it once is cheaper than a look-up for every row. Where deleted
    /// rows may stay for a while, all of them would be walked over.
    const EMPTY_IS_QUICKLY_SEEN: bool;
    /// At the end of a subquery that is to be a look-up for each row, by its index: as a join, planned while that table was
    /// empty, it would read all of it for each row.
    const FOR_EACH_ROW: &'static str = "";
    /// A statement that fails takes the whole transaction with it: then several need no savepoint to be atomic.
    const FAILS_WHOLE: bool;
    /// How many nodes may own lanes at once.
    const LANE_HOLDERS: usize;
    /// Ends a select that keeps others from deleting the row until the transaction ends.
    const HOLD: &'static str;
    /// Ends a select that locks the row for a delete, unless somebody has it.
    const LOCK_IF_FREE: &'static str;
    /// Ends an insert of a blocked key, where it may be there already.
    const REPLACE_BLOCK: &'static str;

    /// The n-th placeholder, from one.
    fn placeholder(n: usize) -> String;
    /// `instant` as microseconds since 1970.
    fn micros(instant: &str) -> String;
    /// The instant that is `micros` microseconds after `instant`; before it, if negative.
    fn shift(instant: &str, micros: &str) -> String;
    /// The instant that is `micros` microseconds after 1970.
    fn at(micros: &str) -> String;
    /// `bits` shifted to the right.
    fn shift_right(bits: &str, by: &str) -> String {
        format!("({bits} >> {by})")
    }
    /// How many rows at the most, after `limit`.
    fn limit(rows: String) -> String {
        rows
    }
    /// The event table as `t`, read by the index of pending rows in the order of writing.
    fn in_order_of_writing(table: &TableName) -> String;
    /// The last row of a quoted table, of whatever status.
    fn last_seq(table: &str) -> String {
        format!("(select max(seq) from {table})")
    }
    /// A number column as the 64 bits that the driver reads.
    fn integer(column: &str) -> String;
    /// An instant as [`Driver::instant`] reads it.
    fn read_instant(instant: &str) -> String {
        Self::micros(instant)
    }
    /// How many columns [`numbers_together`](Self::numbers_together) are.
    const NUMBER_COLUMNS: usize = NUMBERS;
    /// The numbers of a row, as [`Driver::numbers`] reads them.
    fn numbers_together(numbers: [String; NUMBERS]) -> String {
        numbers.join(", ")
    }
}

/// A quoted identifier. The name must have been checked: see [`TableName`].
pub(crate) fn quote<D: Dialect>(name: &str) -> String {
    format!("{0}{name}{0}", D::QUOTE)
}

/// What a database does for us, besides [`Dialect`].
pub trait Driver: sqlx::Database<Connection: Sync> + Dialect {
    /// All of them, in order.
    const MIGRATIONS: &'static [Migration];

    /// The statements of the hot path, made once per table.
    type Sql: fmt::Debug + Send + Sync + 'static;

    fn statements(table: &TableName) -> Self::Sql;

    /// Begins a transaction in which a write cannot fail for having read before (SQLite), and of which
    /// [`commit_checked`](Self::commit_checked) can tell the truth.
    fn begin(
        pool: &Pool<Self>,
        sql: &Self::Sql,
    ) -> impl Future<Output = Result<Transaction<'static, Self>, sqlx::Error>> + Send;

    /// Commits a transaction of [`begin`](Self::begin). Unlike a bare COMMIT it is an error if the database has already
    /// rolled the transaction back because of a failed statement: what we dispatch after it must be there. `written` has a
    /// row of each insert in it.
    ///
    /// A bare COMMIT is enough after an [`insert`](Self::insert) that was [`inside`](field@Inserted::inside) of it, if nothing else
    /// was run since, and nothing between that and earlier inserts.
    fn commit_checked(
        tx: Transaction<'static, Self>,
        written: &[(TableName, i64)],
    ) -> impl Future<Output = Result<(), Error>> + Send;

    fn is_missing_table(error: &sqlx::Error) -> bool;

    /// How our own connections differ from the user's.
    fn own_options(
        options: PoolOptions<Self>,
        connect: <Self::Connection as Connection>::Options,
    ) -> (PoolOptions<Self>, <Self::Connection as Connection>::Options);

    /// The connections of what the poller does, beside those of `own`. They do nothing else, and it does one thing after the
    /// other: so it is one connection most of the time, whose server has all that it needs at hand.
    fn reading(own: &Pool<Self>) -> Pool<Self> {
        own.options()
            .clone()
            .connect_lazy_with((*own.connect_options()).clone())
    }

    fn int(row: &Self::Row, column: usize) -> Result<Option<i64>, sqlx::Error>;
    fn text(row: &Self::Row, column: usize) -> Result<Option<String>, sqlx::Error>;
    fn bytes(row: &Self::Row, column: usize) -> Result<Option<Vec<u8>>, sqlx::Error>;
    /// [`Dialect::read_instant`], as microseconds since 1970.
    fn instant(row: &Self::Row, column: usize) -> Result<Option<i64>, sqlx::Error> {
        Self::int(row, column)
    }
    /// [`Dialect::numbers_together`], which are the first columns: three numbers, and then instants.
    fn numbers(row: &Self::Row) -> Result<[Option<i64>; NUMBERS], sqlx::Error> {
        let (int, instant) = (|at| Self::int(row, at), |at| Self::instant(row, at));
        Ok([
            int(0)?,
            int(1)?,
            int(2)?,
            instant(3)?,
            instant(4)?,
            instant(5)?,
            instant(6)?,
        ])
    }

    fn execute(
        connection: &mut Self::Connection,
        statement: Statement<Self>,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;
    fn fetch(
        connection: &mut Self::Connection,
        statement: Statement<Self>,
    ) -> impl Future<Output = Result<Vec<Self::Row>, sqlx::Error>> + Send;
    /// The same, each row read as it arrives: the database sends the next ones meanwhile.
    fn read<T: Send + Unpin>(
        connection: &mut Self::Connection,
        statement: Statement<Self>,
        read: impl FnMut(&Self::Row) -> Result<T, sqlx::Error> + Send,
    ) -> impl Future<Output = Result<Vec<T>, sqlx::Error>> + Send;
    /// Several statements without values, separated by semicolons.
    fn script(
        connection: &mut Self::Connection,
        script: String,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
    /// Runs `migrations`, which nobody else does meanwhile, as safely as the database can.
    fn serialized(
        pool: &Pool<Self>,
        table: &TableName,
    ) -> impl Future<Output = Result<Serialized<Self>, sqlx::Error>> + Send;

    /// Writes rows in the caller's transaction.
    fn insert(
        connection: &mut Self::Connection,
        sql: &Self::Sql,
        rows: &[NewRow<'_>],
    ) -> impl Future<Output = Result<Inserted, sqlx::Error>> + Send;
    fn claim(
        pool: &Pool<Self>,
        reading: &Pool<Self>,
        sql: &Self::Sql,
        claim: &Claim<'_>,
    ) -> impl Future<Output = Result<Vec<Claimed>, sqlx::Error>> + Send;
    fn read_leased(
        pool: &Pool<Self>,
        sql: &Self::Sql,
        leases: &[Lease],
        at_least: Duration,
    ) -> impl Future<Output = Result<Vec<Claimed>, sqlx::Error>> + Send;
    /// Whether [`write`](Self::write) can write this in one statement, which then needs no transaction around it.
    fn is_one_statement(batch: &Batch, member: Option<&str>) -> bool;
    /// Writes outcomes, and returns how many were not stale. A batch that [is one statement](Self::is_one_statement)
    /// checks itself that the member, where there is one, still is one.
    fn write(
        connection: &mut Self::Connection,
        sql: &Self::Sql,
        owner: &str,
        batch: &Batch,
        member: Option<&str>,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;
    fn renew(
        pool: &Pool<Self>,
        sql: &Self::Sql,
        leases: &[Lease],
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<Lease>, sqlx::Error>> + Send;
    fn release(
        pool: &Pool<Self>,
        sql: &Self::Sql,
        leases: &[Lease],
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;
    /// See [`Store::writers`](super::Store::writers).
    fn writers(
        _pool: &Pool<Self>,
        _table: &TableName,
    ) -> impl Future<Output = Result<Option<Writers>, sqlx::Error>> + Send {
        std::future::ready(Ok(None))
    }
    /// Tells all who listen; does nothing where the database cannot.
    fn notify(
        _pool: &Pool<Self>,
        _table: &TableName,
        _news: News,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        std::future::ready(Ok(()))
    }
    /// Hears what is told; `None` where the database cannot.
    fn wakeups(
        _pool: &Pool<Self>,
        _table: &TableName,
    ) -> impl Future<Output = Result<Option<Box<dyn Wakeups>>, sqlx::Error>> + Send {
        std::future::ready(Ok(None))
    }
    /// The plan of a reading statement.
    fn explain_read(
        pool: &Pool<Self>,
        statement: Statement<Self>,
    ) -> impl Future<Output = Result<String, sqlx::Error>> + Send;
    /// The text of the plan, and what it was asked for, with plausible values.
    fn explain(
        pool: &Pool<Self>,
        sql: &Self::Sql,
        statement: Explain,
    ) -> impl Future<Output = Result<String, sqlx::Error>> + Send;
}

/// A connection that alone may migrate, until it is finished.
pub struct Serialized<D: sqlx::Database> {
    pub(crate) held: Held<D>,
}

#[allow(
    dead_code,
    reason = "each database has one of them, and the features decide which databases there are"
)]
pub(crate) enum Held<D: sqlx::Database> {
    /// The database can roll DDL back: the lock is the transaction's.
    Transaction(Transaction<'static, D>),
    /// It cannot: the lock is the connection's, which is closed in the end.
    Connection(sqlx::pool::PoolConnection<D>),
}

impl<D: Driver> Serialized<D> {
    pub(crate) fn connection(&mut self) -> &mut D::Connection {
        match &mut self.held {
            Held::Transaction(tx) => tx.deref_mut(),
            Held::Connection(connection) => connection.deref_mut(),
        }
    }

    pub(crate) async fn finish(self) -> Result<(), sqlx::Error> {
        match self.held {
            Held::Transaction(tx) => tx.commit().await,
            Held::Connection(connection) => connection.close().await,
        }
    }
}
