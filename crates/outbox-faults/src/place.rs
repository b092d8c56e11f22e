//! Where runs take place: a server, or a directory for SQLite, that gives each run a database of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::failure::{Failure, within};
use crate::fault::{Fault, Kind};
use crate::run::has_namespace;
use crate::server::{self, Server};

/// A database to run on, as it was asked for.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    /// A file, or a private server of ours.
    Own(Kind),
    /// Somebody's server: it is used, and never hurt.
    Url { kind: Kind, url: String },
}

impl Wanted {
    pub(crate) fn parse(given: &str) -> Result<Self, Failure> {
        let unknown = || Failure::UnknownDatabase {
            given: given.split("://").next().unwrap_or_default().to_owned(),
        };
        let url = |kind| Self::Url {
            kind,
            url: given.replacen("mariadb:", "mysql:", 1),
        };
        match given {
            "sqlite" => Ok(Self::Own(Kind::Sqlite)),
            "postgres" => Ok(Self::Own(Kind::Postgres)),
            "mariadb" => Ok(Self::Own(Kind::MariaDb)),
            _ => match outbox::Database::from_url(given).map_err(|_| unknown())? {
                outbox::Database::Postgres => Ok(url(Kind::Postgres)),
                outbox::Database::MySql => Ok(url(Kind::MariaDb)),
                _ => Err(unknown()),
            },
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Own(kind) | Self::Url { kind, .. } => *kind,
        }
    }

    /// Why a fault cannot be had here; `None` if it can.
    pub(crate) fn obstacle(&self, fault: Fault) -> Option<&'static str> {
        if fault.needs_own_server() && matches!(self, Self::Url { .. }) {
            return Some("is done to a server of our own only");
        }
        (fault == Fault::DiskFull && !has_namespace()).then_some("needs root, for a disk that is small")
    }
}

#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) kind: Kind,
    pub(crate) directory: PathBuf,
    pub(crate) server: Option<Server>,
    /// The URL of somebody's server.
    url: Option<String>,
    databases: u32,
}

impl Place {
    pub(crate) async fn open(wanted: &Wanted, directory: &Path) -> Result<Self, Failure> {
        let (kind, url) = match wanted {
            Wanted::Own(kind) => (*kind, None),
            Wanted::Url { kind, url } => (*kind, Some(url.clone())),
        };
        let directory = directory.join(kind.as_str());
        std::fs::create_dir(&directory)?;
        let server = match (kind, &url) {
            (Kind::Sqlite, _) | (_, Some(_)) => None,
            (kind, None) => Some(Server::create(kind, &directory.join("server")).await?),
        };
        Ok(Self {
            kind,
            directory,
            server,
            url,
            databases: 0,
        })
    }

    /// A new database: its name and its URL.
    pub(crate) async fn database(&mut self, small_disk: Option<&SmallDisk>) -> Result<(String, String), Failure> {
        self.databases += 1;
        let name = format!("faults_{}_{}", std::process::id(), self.databases);
        let sql = match (self.kind, small_disk) {
            (Kind::Sqlite, disk) => {
                let directory = disk.map_or(&self.directory, |disk| &disk.path);
                let file = directory.join(format!("{name}.db"));
                return Ok((name, format!("sqlite://{}", file.display())));
            }
            (Kind::Postgres, None) => format!("create database {name} template template0"),
            (Kind::Postgres, Some(disk)) => {
                let tablespace = format!("create tablespace {name} location '{}'", disk.path.display());
                self.execute(tablespace).await?;
                format!("create database {name} template template0 tablespace {name}")
            }
            (Kind::MariaDb, _) => format!("create database {name} character set utf8mb4"),
        };
        self.execute(sql).await?;
        if let (Kind::MariaDb, Some(server), Some(disk)) = (self.kind, &self.server, small_disk) {
            // The tables of a database are the files of its directory.
            disk.mount_at(&server.data().join(&name), self.kind).await?;
        }
        let url = self.database_url(&name);
        Ok((name, url))
    }

    fn database_url(&self, name: &str) -> String {
        match (&self.server, &self.url) {
            (Some(server), _) => server.url(name),
            (None, Some(url)) => with_database(url, name),
            (None, None) => unreachable!("a database without a server is a file"),
        }
    }

    /// Removes a database of ours.
    pub(crate) async fn remove(&self, name: &str, disk: Option<&SmallDisk>) -> Result<(), Failure> {
        match self.kind {
            Kind::Sqlite => {
                for suffix in ["", "-wal", "-shm"] {
                    let _ = std::fs::remove_file(self.directory.join(format!("{name}.db{suffix}")));
                }
            }
            Kind::Postgres => {
                self.execute(format!("drop database if exists {name} with (force)"))
                    .await?;
                if disk.is_some() {
                    self.execute(format!("drop tablespace {name}")).await?;
                }
            }
            Kind::MariaDb => {
                let dropped = self.execute(format!("drop database if exists {name}")).await;
                // The directory of one that is a disk cannot be removed; the tables are gone.
                if disk.is_none() {
                    dropped?;
                }
            }
        }
        match disk {
            Some(disk) => run("umount", &["-l"], &disk.mounted(self, name)).await,
            None => Ok(()),
        }
    }

    /// Sees to it that a server of ours runs, as whoever looks after one would. True if it did not.
    pub(crate) async fn heal(&mut self) -> Result<bool, Failure> {
        let Some(server) = &mut self.server else {
            return Ok(false);
        };
        let died = server.execute("select 1").await.is_err();
        if died {
            server.kill().await?;
            server.start().await?;
        }
        Ok(died)
    }

    /// Runs a statement on the server, on no particular database.
    pub(crate) async fn execute(&self, sql: String) -> Result<(), Failure> {
        let url = match (&self.server, &self.url) {
            (Some(server), _) => server.url(""),
            (None, Some(url)) => url.clone(),
            (None, None) => return Ok(()),
        };
        Ok(server::execute(self.kind, &url, sql).await?)
    }

    /// Where the server listens.
    pub(crate) fn port(&self) -> Option<u16> {
        match (&self.server, &self.url) {
            (Some(server), _) => Some(server.port()),
            (None, Some(url)) => port_of(url),
            (None, None) => None,
        }
    }
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

/// The port of a server on this machine.
fn port_of(url: &str) -> Option<u16> {
    let authority = url.split("://").nth(1)?.split(['/', '?']).next()?;
    let (host, port) = authority.rsplit('@').next()?.rsplit_once(':')?;
    matches!(host, "127.0.0.1" | "localhost").then(|| port.parse().ok())?
}

/// The same URL, through another port.
pub(crate) fn through(url: &str, from: u16, to: u16) -> String {
    url.replacen(&format!(":{from}/"), &format!(":{to}/"), 1)
}

async fn run(command: &str, arguments: &[&str], path: &Path) -> Result<(), Failure> {
    let output = tokio::process::Command::new(command).args(arguments).arg(path).output();
    let output = within(command, Duration::from_secs(10), output).await?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure::Command {
        command: command.to_owned(),
        output: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// A disk of a few megabytes, in memory. It is in the harness's own mount namespace, and is gone with it.
#[derive(Debug)]
pub(crate) struct SmallDisk {
    pub(crate) path: PathBuf,
    megabytes: u32,
}

impl SmallDisk {
    pub(crate) async fn create(kind: Kind, path: PathBuf) -> Result<Self, Failure> {
        std::fs::create_dir(&path)?;
        let disk = Self {
            // A new database has eight of PostgreSQL's, and next to nothing elsewhere.
            megabytes: match kind {
                Kind::Postgres => 32,
                Kind::Sqlite | Kind::MariaDb => 12,
            },
            path,
        };
        if kind != Kind::MariaDb {
            disk.mount_at(&disk.path, kind).await?;
        }
        Ok(disk)
    }

    async fn mount_at(&self, path: &Path, kind: Kind) -> Result<(), Failure> {
        let size = format!("size={}m", self.megabytes);
        run("mount", &["-t", "tmpfs", "-o", &size, "tmpfs"], path).await?;
        server::give_to_user(kind, path)
    }

    /// Where it is, for a database of this name.
    pub(crate) fn mounted(&self, place: &Place, database: &str) -> PathBuf {
        match (place.kind, &place.server) {
            (Kind::MariaDb, Some(server)) => server.data().join(database),
            _ => self.path.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_gets_another_database_and_another_port() {
        let url = "postgres://u:p@127.0.0.1:5432/postgres?sslmode=disable";
        assert_eq!(port_of(url), Some(5432));
        assert_eq!(port_of("postgres://db.example/x"), None);
        let named = with_database(url, "x");
        assert_eq!(named, "postgres://u:p@127.0.0.1:5432/x?sslmode=disable");
        assert_eq!(through(&named, 5432, 7), "postgres://u:p@127.0.0.1:7/x?sslmode=disable");
    }
}
