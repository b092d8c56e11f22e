use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection};

use crate::Server;
use crate::server::workspace;

/// How long to put up with a server that is busy: out of connections, or recovering from a crash.
const PATIENCE: Duration = Duration::from_secs(30);

/// A database that belongs to one test.
///
/// Dropping it drops the database, with what is still connected to it. When the thread panics, that is when the test
/// fails, the database is kept and its URL printed on standard error. A test which fails by returning an `Err` does
/// not panic: its database is dropped.
#[derive(Debug)]
#[must_use = "the database is dropped with this value"]
pub struct TestDatabase {
    server: Server,
    url: String,
    place: Place,
}

/// What dropping needs to know.
#[derive(Clone, Debug)]
enum Place {
    Postgres { admin_url: &'static str, name: String },
    MariaDb { admin_url: &'static str, name: String },
    Sqlite { file: PathBuf },
}

impl TestDatabase {
    /// Where to connect. For SQLite the first connection creates the file.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The kind of database this is.
    pub fn server(&self) -> Server {
        self.server
    }

    pub(crate) async fn create(server: Server, test: &str) -> TestDatabase {
        let name = database_name(test);
        let (url, place) = match (server, server.admin_url().await) {
            (Server::Postgres, Some(admin_url)) => {
                (with_database(admin_url, &name), Place::Postgres { admin_url, name })
            }
            (Server::MariaDb, Some(admin_url)) => (with_database(admin_url, &name), Place::MariaDb { admin_url, name }),
            (_, _) => {
                let file = workspace().join("target/test-databases").join(format!("{name}.db"));
                (sqlite_url(&file), Place::Sqlite { file })
            }
        };
        if let Err(error) = place.create().await {
            panic!("cannot create the {server} database of {test}: {error}");
        }
        TestDatabase { server, url, place }
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the test failed, its {} database is kept: {}", self.server, self.url);
        } else if let Err(error) = self.place.remove_blocking() {
            eprintln!("the {} database {} is left behind: {error}", self.server, self.url);
        }
    }
}

impl Place {
    async fn create(&self) -> sqlx::Result<()> {
        let started = Instant::now();
        loop {
            match self.try_create().await {
                Err(error) if is_transient(&error) && started.elapsed() < PATIENCE => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                result => return result,
            }
        }
    }

    async fn try_create(&self) -> sqlx::Result<()> {
        match self {
            Place::Postgres { admin_url, name } => {
                // template1 may be open in somebody's client, which forbids copying it; template0 cannot be.
                postgres(admin_url, format!("create database {name} template template0")).await
            }
            Place::MariaDb { admin_url, name } => {
                mariadb(admin_url, format!("create database {name} character set utf8mb4")).await
            }
            Place::Sqlite { file } => Ok(file.parent().map_or(Ok(()), std::fs::create_dir_all)?),
        }
    }

    async fn remove(&self) -> sqlx::Result<()> {
        match self {
            Place::Postgres { admin_url, name } => {
                postgres(admin_url, format!("drop database if exists {name} with (force)")).await
            }
            Place::MariaDb { admin_url, name } => mariadb(admin_url, format!("drop database if exists {name}")).await,
            Place::Sqlite { file } => remove_sqlite(file),
        }
    }

    /// Works wherever a value can be dropped: outside of a runtime, and inside of one, where blocking on a future
    /// is forbidden. Hence the thread.
    fn remove_blocking(&self) -> sqlx::Result<()> {
        if let Place::Sqlite { file } = self {
            return remove_sqlite(file);
        }
        let place = self.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(place.remove())
        });
        thread.join().unwrap_or(Err(sqlx::Error::WorkerCrashed))
    }
}

async fn postgres(admin_url: &str, statement: String) -> sqlx::Result<()> {
    let mut connection = PgConnection::connect(admin_url).await?;
    connection.execute(AssertSqlSafe(statement)).await?;
    connection.close().await
}

async fn mariadb(admin_url: &str, statement: String) -> sqlx::Result<()> {
    let mut connection = MySqlConnection::connect(admin_url).await?;
    // Dropping waits for open transactions which have touched a table, a day by default. The test that is being
    // dropped may hold one itself and would never end.
    connection.execute("set session lock_wait_timeout = 10").await?;
    connection.execute(AssertSqlSafe(statement)).await?;
    connection.close().await
}

fn remove_sqlite(file: &Path) -> sqlx::Result<()> {
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let mut path = file.as_os_str().to_owned();
        path.push(suffix);
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

fn is_transient(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => matches!(
            error.code().as_deref(),
            Some(
                "55006" // object_in_use: somebody else copies the template
                    | "53300" // too_many_connections
                    | "57P03" // cannot_connect_now: the server is starting
                    | "40P01" // deadlock_detected
                    | "08004" // MariaDB: too many connections
            )
        ),
        _ => false,
    }
}

/// Needs no quotes on any server and has at most 63 characters, PostgreSQL's limit; MariaDB's is 64.
fn database_name(test: &str) -> String {
    let test: String = test
        .chars()
        .map(|character| {
            if character.is_ascii_alphanumeric() {
                character.to_ascii_lowercase()
            } else {
                '_'
            }
        })
        .take(34)
        .collect();
    format!("outbox_test_{test}_{:016x}", rand::random::<u64>())
}

/// Replaces the path of a URL and keeps its parameters.
fn with_database(url: &str, name: &str) -> String {
    let (address, parameters) = url.find('?').map_or((url, ""), |at| url.split_at(at));
    let authority = address.find("://").map_or(0, |at| at + 3);
    let path = address[authority..]
        .find('/')
        .map_or(address.len(), |at| authority + at);
    format!("{}/{name}{parameters}", &address[..path])
}

fn sqlite_url(file: &Path) -> String {
    let mut path = String::new();
    for character in file.to_string_lossy().chars() {
        match character {
            '%' => path.push_str("%25"),
            '?' => path.push_str("%3F"),
            '#' => path.push_str("%23"),
            ' ' => path.push_str("%20"),
            other => path.push(other),
        }
    }
    format!("sqlite://{path}?mode=rwc")
}

#[cfg(test)]
mod tests;
