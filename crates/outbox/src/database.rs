//! Which database a URL names, and a pool whose kind is known only at run time: for programs that get both from their
//! configuration, like the command line tool. An application that knows its database uses its own `sqlx::Pool`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, is_conflict};
use crate::migrate::{self, Step};
use crate::store::{Driver, Store};
use crate::table::TableName;
use crate::write::Backend;

/// How long a server may take to answer the first connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a statement waits for another writer of a SQLite file.
#[cfg(feature = "sqlite")]
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a SQLite file that is busy is opened again.
const CONNECT_TRIES: u32 = 10;

/// A database that an outbox can live in. Each is behind the feature of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Database {
    /// SQLite: `sqlite:`.
    #[cfg(feature = "sqlite")]
    Sqlite,
    /// PostgreSQL: `postgres:` or `postgresql:`.
    #[cfg(feature = "postgres")]
    Postgres,
    /// MySQL and MariaDB: `mysql:` or `mariadb:`.
    #[cfg(feature = "mysql")]
    MySql,
}

impl Database {
    /// The database that a URL names. Looks at nothing but the scheme, whose case does not matter.
    ///
    /// # Errors
    /// [`Error::UnknownScheme`]; [`Error::FeatureDisabled`] if the library was built without that database.
    pub fn from_url(url: &str) -> Result<Self, Error> {
        split(url).map(|(database, _)| database)
    }

    /// The name, as in [`Store::name`]: `sqlite`, `postgres`, `mysql`.
    pub fn as_str(self) -> &'static str {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite => "sqlite",
            #[cfg(feature = "postgres")]
            Self::Postgres => "postgres",
            #[cfg(feature = "mysql")]
            Self::MySql => "mysql",
        }
    }

    /// The SQL that creates the tables from nothing: [`migrate::print`] for this database.
    pub fn print_migrations(self, table: &TableName) -> String {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite => migrate::print::<sqlx::Sqlite>(table),
            #[cfg(feature = "postgres")]
            Self::Postgres => migrate::print::<sqlx::Postgres>(table),
            #[cfg(feature = "mysql")]
            Self::MySql => migrate::print::<sqlx::MySql>(table),
        }
    }
}

impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The database, and the URL as sqlx understands it: with the one spelling of the scheme that it knows.
fn split(url: &str) -> Result<(Database, String), Error> {
    let (scheme, rest) = url.split_once(':').unwrap_or(("", url));
    let database = match scheme.to_ascii_lowercase().as_str() {
        "sqlite" => {
            #[cfg(feature = "sqlite")]
            {
                Ok(Database::Sqlite)
            }
            #[cfg(not(feature = "sqlite"))]
            Err(Error::FeatureDisabled { feature: "sqlite" })
        }
        "postgres" | "postgresql" => {
            #[cfg(feature = "postgres")]
            {
                Ok(Database::Postgres)
            }
            #[cfg(not(feature = "postgres"))]
            Err(Error::FeatureDisabled { feature: "postgres" })
        }
        "mysql" | "mariadb" => {
            #[cfg(feature = "mysql")]
            {
                Ok(Database::MySql)
            }
            #[cfg(not(feature = "mysql"))]
            Err(Error::FeatureDisabled { feature: "mysql" })
        }
        // `user:password@host` has no scheme: what stands before its colon is none of our business.
        _ => Err(Error::UnknownScheme {
            scheme: if rest.starts_with("//") && is_scheme(scheme) {
                scheme.to_owned()
            } else {
                String::new()
            },
        }),
    }?;
    Ok((database, format!("{database}:{rest}")))
}

fn is_scheme(text: &str) -> bool {
    text.len() <= 40
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// A pool of connections to a database that is known only at run time. Cheap to clone; clones are the same pool.
#[derive(Clone)]
#[non_exhaustive]
pub enum AnyPool {
    /// To SQLite.
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::SqlitePool),
    /// To PostgreSQL.
    #[cfg(feature = "postgres")]
    Postgres(sqlx::PgPool),
    /// To MySQL or MariaDB.
    #[cfg(feature = "mysql")]
    MySql(sqlx::MySqlPool),
}

/// Runs `$body` with `$pool` as the pool that it really is.
macro_rules! with_pool {
    ($any:expr, $pool:ident => $body:expr) => {
        match *$any {
            #[cfg(feature = "sqlite")]
            AnyPool::Sqlite(ref $pool) => $body,
            #[cfg(feature = "postgres")]
            AnyPool::Postgres(ref $pool) => $body,
            #[cfg(feature = "mysql")]
            AnyPool::MySql(ref $pool) => $body,
        }
    };
}

impl AnyPool {
    /// Connects to the database of a URL. `mariadb://` is `mysql://`.
    ///
    /// A SQLite file is created if it is not there, unless the URL has a `mode`, and is put into WAL mode, so that
    /// readers do not wait for the writer; a statement waits for another writer for 5 seconds.
    ///
    /// # Errors
    /// [`Error::UnknownScheme`], [`Error::FeatureDisabled`]; [`Error::Database`] if the URL makes no sense or the
    /// database refuses; [`Error::Timeout`] after 10 seconds. None of them holds the URL.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::open(url, Missing::Create).await
    }

    /// As [`connect`](Self::connect), and by itself changes nothing: a SQLite file that is not there is an error, and the
    /// journal of one that is there stays as it is.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn connect_existing(url: &str) -> Result<Self, Error> {
        Self::open(url, Missing::Refuse).await
    }

    async fn open(url: &str, missing: Missing) -> Result<Self, Error> {
        #[cfg(not(feature = "sqlite"))]
        let _ = missing;
        let (database, url) = split(url)?;
        match database {
            #[cfg(feature = "sqlite")]
            Database::Sqlite => {
                let options = sqlite_options(&url, missing)?;
                pool::<sqlx::Sqlite>(options).await.map(Self::Sqlite)
            }
            #[cfg(feature = "postgres")]
            Database::Postgres => pool::<sqlx::Postgres>(parse(&url)?).await.map(Self::Postgres),
            #[cfg(feature = "mysql")]
            Database::MySql => pool::<sqlx::MySql>(parse(&url)?).await.map(Self::MySql),
        }
    }

    /// Which database it is.
    pub fn database(&self) -> Database {
        match *self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => Database::Sqlite,
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => Database::Postgres,
            #[cfg(feature = "mysql")]
            Self::MySql(_) => Database::MySql,
        }
    }

    /// The tables of an outbox, on connections of their own. Does not look whether they are there.
    pub fn store(&self, table: &TableName) -> Arc<dyn Store> {
        with_pool!(self, pool => store(pool, table))
    }

    /// The version of the tables; zero if there are none.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn schema_version(&self, table: &TableName) -> Result<i64, Error> {
        with_pool!(self, pool => migrate::version(pool, table).await)
    }

    /// [`migrate::up`] for this database.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn migrate_up(&self, table: &TableName) -> Result<Vec<i64>, Error> {
        with_pool!(self, pool => migrate::up(pool, table).await)
    }

    /// [`migrate::down`] for this database.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn migrate_down(&self, table: &TableName, to: i64) -> Result<Vec<i64>, Error> {
        with_pool!(self, pool => migrate::down(pool, table, to).await)
    }

    /// [`migrate::status`] for this database.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn migrate_status(&self, table: &TableName) -> Result<Vec<Step>, Error> {
        with_pool!(self, pool => migrate::status(pool, table).await)
    }

    /// Closes every connection, after the statements that run on them.
    pub async fn close(&self) {
        with_pool!(self, pool => pool.close().await)
    }
}

impl fmt::Debug for AnyPool {
    /// Without the pool, whose options hold the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnyPool({})", self.database())
    }
}

/// What to do about a SQLite file that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Create,
    Refuse,
}

fn store<D: Driver>(pool: &sqlx::Pool<D>, table: &TableName) -> Arc<dyn Store> {
    <D as Backend>::store(pool, table)
}

fn failed(source: sqlx::Error) -> Error {
    Error::Database {
        operation: "connecting to the database",
        source,
    }
}

fn parse<O: std::str::FromStr<Err = sqlx::Error>>(url: &str) -> Result<O, Error> {
    url.parse().map_err(failed)
}

#[cfg(feature = "sqlite")]
fn sqlite_options(url: &str, missing: Missing) -> Result<sqlx::sqlite::SqliteConnectOptions, Error> {
    let options: sqlx::sqlite::SqliteConnectOptions = parse(url)?;
    let options = options.busy_timeout(BUSY_TIMEOUT);
    let parameters = url.split_once('?').map_or("", |(_, parameters)| parameters);
    let mode = parameters.split('&').find_map(|pair| pair.strip_prefix("mode="));
    Ok(match (missing, mode) {
        (Missing::Refuse, _) => options.create_if_missing(false),
        // A file that may not be written cannot change its journal.
        (Missing::Create, Some("ro")) => options,
        (Missing::Create, mode) => {
            let options = options.journal_mode(sqlx::sqlite::SqliteJournalMode::Wal);
            if mode.is_none() {
                options.create_if_missing(true)
            } else {
                options
            }
        }
    })
}

/// A pool with one connection tried out. A pool itself keeps trying for half a minute to reach a server that is not there,
/// and then says only that it took too long.
async fn pool<D: sqlx::Database>(
    options: <D::Connection as sqlx::Connection>::Options,
) -> Result<sqlx::Pool<D>, Error> {
    use sqlx::Connection;

    let first = async {
        let mut tried = 1;
        loop {
            match D::Connection::connect_with(&options).await {
                // Several processes that put a new SQLite file into WAL mode at once: that lock is not waited for.
                Err(error) if is_conflict(&error) && tried < CONNECT_TRIES => {
                    tokio::time::sleep(Duration::from_millis(rand::random_range(1..=2 << tried))).await;
                    tried += 1;
                }
                result => break result,
            }
        }?
        .close()
        .await
    };
    match tokio::time::timeout(CONNECT_TIMEOUT, first).await {
        Ok(result) => result.map_err(failed)?,
        Err(_) => {
            return Err(Error::Timeout {
                operation: "connecting to the database",
                limit: CONNECT_TIMEOUT,
            });
        }
    }
    Ok(sqlx::pool::PoolOptions::new().connect_lazy_with(options))
}

#[cfg(test)]
mod tests;
