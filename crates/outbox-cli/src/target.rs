use std::fmt;

use outbox::migrate::LATEST;
use outbox::{Admin, AnyPool, Database, Error, TableName};

use crate::failure::Failure;

/// Which outbox a command is about.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Target {
    /// The database: sqlite://FILE, postgres://.., mysql://.. or mariadb://..
    ///
    /// Better given by the environment than as an argument, which every user of the machine can read.
    #[arg(long, value_name = "URL", env = "OUTBOX_DATABASE_URL", hide_env_values = true)]
    database: Url,

    /// The event table.
    ///
    /// Its companions are named after it: NAME_attempt, NAME_lease, NAME_node, NAME_lane, NAME_key,
    /// NAME_migration.
    #[arg(long, value_name = "NAME", default_value_t)]
    pub(crate) table: TableName,
}

impl Target {
    /// Which database it is; does not connect.
    pub(crate) fn kind(&self) -> Result<Database, Error> {
        Database::from_url(&self.database.0)
    }

    /// Connects, and creates a SQLite file that is not there.
    pub(crate) async fn connect_or_create(&self) -> Result<AnyPool, Error> {
        AnyPool::connect(&self.database.0).await
    }

    /// Connects to what is there.
    pub(crate) async fn connect(&self) -> Result<AnyPool, Error> {
        AnyPool::connect_existing(&self.database.0).await
    }

    /// Connects to tables that are there, and of a version that this command knows.
    pub(crate) async fn open(&self) -> Result<Opened, Failure> {
        let pool = self.connect().await?;
        let version = pool.schema_version(&self.table).await?;
        let table = self.table.to_string();
        match version {
            LATEST => Ok(Opened {
                admin: Admin::new(pool.store(&self.table)),
                database: pool.database().as_str(),
                version,
            }),
            0 => Err(Error::SchemaMissing { table }.into()),
            found if found < LATEST => Err(Error::SchemaOutdated {
                table,
                found,
                needed: LATEST,
            }
            .into()),
            found => Err(Failure::TablesTooNew {
                table,
                found,
                known: LATEST,
            }),
        }
    }
}

/// The tables of an outbox that are there.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) admin: Admin,
    /// The database's name.
    pub(crate) database: &'static str,
    /// The version of the tables.
    pub(crate) version: i64,
}

/// A database URL, which may hold a password: never shown.
#[derive(Clone)]
pub(crate) struct Url(String);

impl Url {
    /// With the password: for connecting, and nothing else.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Url {
    fn from(url: String) -> Self {
        Self(url)
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
