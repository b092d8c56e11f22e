//! SQL text with bound values, in the spelling of a database.
#![allow(
    missing_docs,
    reason = "public only because `Backend` is implemented for every `Driver`"
)]

use std::marker::PhantomData;

use futures_util::TryStreamExt;
use sqlx::{Database, Either, Execute, Executor};

use super::driver::Dialect;

/// A value for a placeholder.
#[derive(Clone, Debug)]
pub(crate) enum Bind {
    Int(i64),
    Text(String),
}

/// SQL text and the values of its placeholders. The text is made of our own literals and checked identifiers; whatever
/// comes from outside is bound.
#[derive(Debug)]
pub struct Statement<D> {
    sql: String,
    binds: Vec<Bind>,
    /// Run again and again: worth a plan that is kept.
    prepared: bool,
    dialect: PhantomData<D>,
}

// Not derived: a dialect is only a name.
impl<D> Clone for Statement<D> {
    fn clone(&self) -> Self {
        Self {
            sql: self.sql.clone(),
            binds: self.binds.clone(),
            prepared: self.prepared,
            dialect: PhantomData,
        }
    }
}

impl<D: Dialect> Statement<D> {
    pub(crate) fn new(sql: impl Into<String>) -> Self {
        Self {
            sql: sql.into(),
            binds: Vec::new(),
            prepared: false,
            dialect: PhantomData,
        }
    }

    /// A statement without values, for tests.
    #[doc(hidden)]
    pub fn plain(sql: &str) -> Self {
        Self::new(sql)
    }

    /// Keeps the plan: for a statement with one text, however often it runs.
    pub(crate) fn prepared(&mut self) -> &mut Self {
        self.prepared = true;
        self
    }

    /// The text alone, for its plan.
    pub(crate) fn prefixed(mut self, prefix: &str) -> Self {
        self.sql.insert_str(0, prefix);
        self.prepared = false;
        self
    }

    pub(crate) fn push(&mut self, sql: &str) -> &mut Self {
        self.sql.push_str(sql);
        self
    }

    /// Appends a placeholder with its value.
    pub(crate) fn bind(&mut self, value: impl Into<Bind>) -> &mut Self {
        let placeholder = self.placeholder(value);
        self.sql.push_str(&placeholder);
        self
    }

    /// A placeholder with its value, to stand in the very next text that is pushed.
    pub(crate) fn placeholder(&mut self, value: impl Into<Bind>) -> String {
        self.binds.push(value.into());
        D::placeholder(self.binds.len())
    }

    pub(crate) fn into_parts(self) -> (sqlx::AssertSqlSafe<String>, Vec<Bind>, bool) {
        (sqlx::AssertSqlSafe(self.sql), self.binds, self.prepared)
    }
}

/// A list, with its last one as often as it takes to make its length a power of two: so there are few texts of a statement.
pub(crate) fn filled_up<T>(list: &[T]) -> impl Iterator<Item = &T> {
    let missing = list.len().next_power_of_two() - list.len();
    list.iter().chain(list.last().into_iter().cycle().take(missing))
}

/// The query of a [`Statement`], with its values bound. A macro, because the types of a query differ by database.
macro_rules! query {
    ($statement:expr) => {{
        let (sql, binds, prepared) = $statement.into_parts();
        let mut query = sqlx::query(sql).persistent(prepared);
        for bind in binds {
            query = match bind {
                $crate::store::statement::Bind::Int(value) => query.bind(value),
                $crate::store::statement::Bind::Text(value) => query.bind(value),
            };
        }
        query
    }};
}
pub(super) use query;

/// Reads each row as it arrives, straight from the driver's stream. The driver's own way of doing so (`try_map`) puts a second one
/// around it, through which every event would be moved: 5 % of the processor time of a node that drains.
pub(super) async fn read_rows<'c, 'q, D: Database, T>(
    connection: impl Executor<'c, Database = D>,
    query: impl Execute<'q, D> + 'q,
    mut read: impl FnMut(&D::Row) -> Result<T, sqlx::Error>,
) -> Result<Vec<T>, sqlx::Error>
where
    'q: 'c,
{
    let mut rows = Vec::new();
    let mut steps = connection.fetch_many(query);
    while let Some(step) = steps.try_next().await? {
        if let Either::Right(row) = step {
            rows.push(read(&row)?);
        }
    }
    Ok(rows)
}

impl From<i64> for Bind {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<&str> for Bind {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}
