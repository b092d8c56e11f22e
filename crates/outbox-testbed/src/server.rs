use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::TestDatabase;

/// A kind of database that Outbox supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Server {
    /// PostgreSQL, 15 or later.
    Postgres,
    /// MariaDB, through the MySQL protocol.
    MariaDb,
    /// SQLite: no server, a file under `target/test-databases`.
    Sqlite,
}

impl Server {
    /// Every kind, for tests that run on all of them.
    pub const ALL: [Server; 3] = [Server::Postgres, Server::MariaDb, Server::Sqlite];

    /// Creates an empty database for one test, whose name becomes part of the database's name.
    ///
    /// # Panics
    ///
    /// When the server cannot be had or refuses: a test never passes because its database is missing.
    pub async fn database(self, test: &str) -> TestDatabase {
        TestDatabase::create(self, test).await
    }

    /// The URL with which databases are created; `None` for SQLite, which needs none.
    ///
    /// Finds out once per process. `scripts/services` may install packages, so this blocks for minutes at worst and
    /// happens off the runtime.
    pub(crate) async fn admin_url(self) -> Option<&'static str> {
        static POSTGRES: OnceLock<Result<String, String>> = OnceLock::new();
        static MARIADB: OnceLock<Result<String, String>> = OnceLock::new();

        let (once, variable, service) = match self {
            Server::Postgres => (&POSTGRES, "OUTBOX_TEST_POSTGRES_URL", "postgres"),
            Server::MariaDb => (&MARIADB, "OUTBOX_TEST_MARIADB_URL", "mariadb"),
            Server::Sqlite => return None,
        };
        let found = match once.get() {
            Some(found) => found,
            None => tokio::task::spawn_blocking(move || once.get_or_init(|| find(variable, service)))
                .await
                .expect("finding a server returns its errors and does not panic"),
        };
        match found {
            Ok(url) => Some(url),
            Err(reason) => panic!("no {self} to test with: {reason}"),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Server::Postgres => "PostgreSQL",
            Server::MariaDb => "MariaDB",
            Server::Sqlite => "SQLite",
        })
    }
}

/// The root of the checkout that is being tested.
///
/// Cargo's word at run time goes first: checkouts that share a target directory also share the compiled tests, and
/// the path in those may be another checkout's. A test started without Cargo has only that one.
pub(crate) fn workspace() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let compiled_in = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let root = package
        .iter()
        .chain([&compiled_in])
        .flat_map(|directory| directory.ancestors())
        .find(|directory| directory.join("scripts/services").is_file());
    root.map_or_else(|| compiled_in.join("../.."), Path::to_path_buf)
}

fn find(variable: &str, service: &str) -> Result<String, String> {
    if let Some(url) = std::env::var(variable).ok().filter(|url| !url.is_empty()) {
        return Ok(url);
    }
    let script = workspace().join("scripts/services");
    let hint = format!("Set {variable} to use a server of your own.");
    let output = Command::new(&script)
        .args(["start", service])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run {}: {error}. {hint}", script.display()))?;
    let progress = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!(
            "{} start {service}: {}. {hint}\n{progress}",
            script.display(),
            output.status
        ));
    }
    url_in(&String::from_utf8_lossy(&output.stdout), variable).ok_or_else(|| {
        format!(
            "{} start {service} printed no {variable}. {hint}\n{progress}",
            script.display()
        )
    })
}

fn url_in(output: &str, variable: &str) -> Option<String> {
    let url = output
        .lines()
        .find_map(|line| line.strip_prefix(variable)?.strip_prefix('='))?;
    Some(url.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_found_among_the_lines() {
        let output = "OUTBOX_TEST_POSTGRES_URL=postgres://postgres@127.0.0.1:1/postgres\n\
                      OUTBOX_TEST_MARIADB_URL=mysql://root@127.0.0.1:2/\n";
        assert_eq!(
            url_in(output, "OUTBOX_TEST_MARIADB_URL").as_deref(),
            Some("mysql://root@127.0.0.1:2/")
        );
        assert_eq!(url_in(output, "OUTBOX_TEST"), None);
    }

    #[test]
    fn failing_script_is_reported_with_its_message() {
        let reason = find("OUTBOX_TEST_NO_SUCH_URL", "no-such-server").unwrap_err();
        assert!(reason.contains("unknown server 'no-such-server'"), "{reason}");
        assert!(reason.contains("Set OUTBOX_TEST_NO_SUCH_URL"), "{reason}");
    }
}
