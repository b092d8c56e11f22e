//! The tables and their versions: made and changed by migrations of our own, remembered in a table of our own, so that
//! they never collide with the application's.
//!
//! Safe to run from many processes at once: one does the work, the others wait and find it done.

use chrono::{DateTime, Utc};
use sqlx::Pool;

use crate::error::{Error, database};
use crate::store::{Dialect, Driver, Serialized, Statement, Store, quote};
use crate::table::TableName;

/// A step from one version of the tables to the next.
#[derive(Debug)]
#[non_exhaustive]
pub struct Migration {
    /// The version that it leads to.
    pub version: i64,
    /// What it does, in a few words.
    pub name: &'static str,
    up: &'static str,
    down: &'static str,
}

impl Migration {
    pub(crate) const fn new(version: i64, name: &'static str, up: &'static str, down: &'static str) -> Self {
        Self {
            version,
            name,
            up,
            down,
        }
    }
}

/// A migration and whether it has run.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Step {
    /// The version that it leads to.
    pub version: i64,
    /// What it does, in a few words.
    pub name: &'static str,
    /// When it ran, by the database's clock; `None` if it has not.
    pub applied_at: Option<DateTime<Utc>>,
}

/// The version that this library needs.
pub const LATEST: i64 = 1;

/// Brings the tables up to date, and returns the versions that were missing.
///
/// # Errors
/// [`Error::Database`].
pub async fn up<D: Driver>(pool: &Pool<D>, table: &TableName) -> Result<Vec<i64>, Error> {
    let failed = database("migrating");
    let mut alone = D::serialized(pool, table).await.map_err(&failed)?;
    let done = async {
        let connection = alone.connection();
        D::script(connection, create_history::<D>(table)).await?;
        let history = history::<D>(connection, table).await?;
        let mut done = Vec::new();
        for migration in D::MIGRATIONS {
            if !history.iter().any(|(version, _)| *version == migration.version) {
                D::script(connection, fill(migration.up, table)).await?;
                D::script(connection, remember::<D>(migration, table)).await?;
                done.push(migration.version);
            }
        }
        Ok(done)
    }
    .await
    .map_err(&failed)?;
    finish(alone).await?;
    Ok(done)
}

/// Takes the tables back to version `to`; zero drops them, and every event in them. Returns the versions undone.
///
/// # Errors
/// [`Error::Database`].
pub async fn down<D: Driver>(pool: &Pool<D>, table: &TableName, to: i64) -> Result<Vec<i64>, Error> {
    let failed = database("migrating");
    let mut alone = D::serialized(pool, table).await.map_err(&failed)?;
    let done = async {
        let connection = alone.connection();
        D::script(connection, create_history::<D>(table)).await?;
        let history = history::<D>(connection, table).await?;
        let mut done = Vec::new();
        for migration in D::MIGRATIONS.iter().rev().filter(|migration| migration.version > to) {
            if history.iter().any(|(version, _)| *version == migration.version) {
                D::script(connection, fill(migration.down, table)).await?;
                D::script(connection, forget::<D>(migration, table)).await?;
                done.push(migration.version);
            }
        }
        if to <= 0 {
            D::script(connection, format!("drop table {}", quote::<D>(&table.migration()))).await?;
        }
        Ok(done)
    }
    .await
    .map_err(&failed)?;
    finish(alone).await?;
    Ok(done)
}

async fn finish<D: Driver>(alone: Serialized<D>) -> Result<(), Error> {
    alone.finish().await.map_err(database("migrating"))
}

/// Every migration, and whether it has run.
///
/// # Errors
/// [`Error::Database`].
pub async fn status<D: Driver>(pool: &Pool<D>, table: &TableName) -> Result<Vec<Step>, Error> {
    let applied = read_history(pool, table).await?;
    let steps = D::MIGRATIONS.iter().map(|migration| Step {
        version: migration.version,
        name: migration.name,
        applied_at: applied
            .iter()
            .find(|(version, _)| *version == migration.version)
            .and_then(|(_, at)| DateTime::from_timestamp_micros(*at)),
    });
    Ok(steps.collect())
}

/// The SQL that creates the tables from nothing, for people with a migration tool of their own. It also writes the
/// history, so that the library finds what it needs.
pub fn print<D: Driver>(table: &TableName) -> String {
    let mut sql = format!(
        "-- The tables of the outbox {table}, for {}.\n\n{};\n",
        D::DATABASE,
        create_history::<D>(table)
    );
    for migration in D::MIGRATIONS {
        sql.push_str(&format!("\n-- Version {}: {}\n\n", migration.version, migration.name));
        sql.push_str(&fill(migration.up, table));
        sql.push_str(&format!("\n{};\n", remember::<D>(migration, table)));
    }
    sql
}

/// The version of the tables; zero if there are none.
pub(crate) async fn version<D: Driver>(pool: &Pool<D>, table: &TableName) -> Result<i64, Error> {
    let history = read_history(pool, table).await?;
    Ok(history.into_iter().map(|(version, _)| version).max().unwrap_or(0))
}

/// Refuses tables that this library cannot work with. Newer ones are fine: they are made so that older nodes can finish.
pub(crate) async fn check(store: &dyn Store, table: &TableName) -> Result<(), Error> {
    match store.schema_version().await? {
        0 => Err(Error::SchemaMissing {
            table: table.to_string(),
        }),
        found if found < LATEST => Err(Error::SchemaOutdated {
            table: table.to_string(),
            found,
            needed: LATEST,
        }),
        _ => Ok(()),
    }
}

/// Versions and when they were applied, in microseconds since 1970.
type History = Vec<(i64, i64)>;

async fn read_history<D: Driver>(pool: &Pool<D>, table: &TableName) -> Result<History, Error> {
    let failed = database("reading the version of the tables");
    let mut connection = pool.acquire().await.map_err(&failed)?;
    match history::<D>(&mut connection, table).await {
        Err(error) if D::is_missing_table(&error) => Ok(Vec::new()),
        result => result.map_err(&failed),
    }
}

async fn history<D: Driver>(connection: &mut D::Connection, table: &TableName) -> Result<History, sqlx::Error> {
    let statement = Statement::<D>::new(format!(
        "select version, {} from {} order by version",
        D::micros("applied_at"),
        quote::<D>(&table.migration())
    ));
    let rows = D::fetch(connection, statement).await?;
    rows.iter()
        .map(|row| Ok((D::int(row, 0)?.unwrap_or(0), D::int(row, 1)?.unwrap_or(0))))
        .collect()
}

fn create_history<D: Dialect>(table: &TableName) -> String {
    format!(
        "create table if not exists {} (version bigint not null primary key, name varchar(100) not null, \
         applied_at {} not null)",
        quote::<D>(&table.migration()),
        D::INSTANT
    )
}

fn remember<D: Dialect>(migration: &Migration, table: &TableName) -> String {
    format!(
        "insert into {} (version, name, applied_at) values ({}, '{}', {})",
        quote::<D>(&table.migration()),
        migration.version,
        migration.name,
        D::NOW
    )
}

fn forget<D: Dialect>(migration: &Migration, table: &TableName) -> String {
    format!(
        "delete from {} where version = {}",
        quote::<D>(&table.migration()),
        migration.version
    )
}

fn fill(template: &str, table: &TableName) -> String {
    template.replace("{table}", table.as_str())
}
