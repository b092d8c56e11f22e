use std::fmt;

use outbox::{AnyPool, Database, Error, TableName};

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
    /// Its companions are named after it: NAME_attempt, NAME_lease, NAME_migration.
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
