//! Private servers: started for the harness alone, on ports and in directories of their own, so that they can be stopped,
//! killed and filled without anybody noticing. The servers of `scripts/services`, which tests share, are left alone; this
//! finds the same binaries, and copes with root in the same way.

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use sqlx::{Connection, Executor, MySqlConnection, PgConnection};

use crate::failure::{Failure, within};
use crate::fault::Kind;

/// How long a server may take to start or to stop, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const GLANCE: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Server {
    kind: Kind,
    directory: PathBuf,
    port: u16,
    process: Option<std::process::Child>,
}

impl Server {
    /// Creates a server in an empty directory, and starts it.
    pub(crate) async fn create(kind: Kind, directory: &Path) -> Result<Self, Failure> {
        std::fs::create_dir(directory)?;
        give_to_user(kind, directory)?;
        let mut server = Self {
            kind,
            directory: directory.to_owned(),
            port: free_port()?,
            process: None,
        };
        server.initialise().await?;
        server.start().await?;
        Ok(server)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    async fn initialise(&self) -> Result<(), Failure> {
        let data = self.data();
        let command = match self.kind {
            Kind::MariaDb => {
                let mut command = as_user(self.kind, Path::new("mariadb-install-db"));
                command
                    .arg("--no-defaults")
                    .arg(format!("--datadir={}", data.display()))
                    .args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
                command
            }
            _ => {
                let mut command = as_user(self.kind, &postgres_bin()?.join("initdb"));
                command
                    .arg("-D")
                    .arg(&data)
                    .args(["-U", "postgres", "--auth=trust", "--encoding=UTF8"])
                    .args(["--locale=C.UTF-8", "--no-sync"]);
                command
            }
        };
        let output = tokio::process::Command::from(command).stdin(Stdio::null()).output();
        let output = within("creating a data directory", PATIENCE, output)
            .await
            .map_err(|failure| match failure {
                Failure::Io(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    Failure::NotInstalled { server: self.kind }
                }
                other => other,
            })?;
        if output.status.success() {
            return Ok(());
        }
        Err(Failure::Command {
            command: format!("creating the data directory of {}", self.kind),
            output: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Starts it, and waits until it answers.
    pub(crate) async fn start(&mut self) -> Result<(), Failure> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.directory.join("log"))?;
        let data = self.data();
        let mut command = match self.kind {
            Kind::MariaDb => {
                let mut command = as_user(self.kind, Path::new("mariadbd"));
                command
                    .arg("--no-defaults")
                    .arg(format!("--datadir={}", data.display()))
                    .arg(format!("--tmpdir={}", self.directory.display()))
                    .arg(format!("--port={}", self.port))
                    .args([
                        "--bind-address=127.0.0.1",
                        "--socket=mariadb.sock",
                        "--pid-file=mariadb.pid",
                    ])
                    .args([
                        "--skip-name-resolve",
                        "--max-connections=300",
                        "--innodb-buffer-pool-size=64M",
                    ]);
                command
            }
            _ => {
                // Every process of the server has ended, or we would not be here: the file can only mislead.
                let _ = std::fs::remove_file(data.join("postmaster.pid"));
                let mut command = as_user(self.kind, &postgres_bin()?.join("postgres"));
                command
                    .arg("-D")
                    .arg(&data)
                    .args(["-c", &format!("port={}", self.port)]);
                for setting in [
                    "listen_addresses=127.0.0.1",
                    "unix_socket_directories=",
                    "max_connections=300",
                ] {
                    command.args(["-c", setting]);
                }
                command
            }
        };
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .current_dir("/");
        self.process = Some(command.spawn()?);
        let started = Instant::now();
        while self.execute("select 1").await.is_err() {
            let ended = match &mut self.process {
                Some(process) => process.try_wait()?,
                None => None,
            };
            if ended.is_some() || started.elapsed() > PATIENCE {
                return Err(Failure::Command {
                    command: format!("starting {}", self.kind),
                    output: tail(&self.directory.join("log")),
                });
            }
            tokio::time::sleep(GLANCE).await;
        }
        Ok(())
    }

    /// Shuts it down as an operator would, without waiting for clients.
    pub(crate) async fn stop(&mut self) -> Result<(), Failure> {
        self.end(match self.kind {
            Kind::MariaDb => Signal::TERM,
            _ => Signal::INT,
        })
        .await
    }

    /// Kills it where it stands.
    pub(crate) async fn kill(&mut self) -> Result<(), Failure> {
        self.end(Signal::KILL).await
    }

    async fn end(&mut self, signal: Signal) -> Result<(), Failure> {
        let Some(mut process) = self.process.take() else {
            return Ok(());
        };
        let pid = Pid::from_child(&process);
        kill_process(pid, signal).map_err(std::io::Error::from)?;
        let started = Instant::now();
        // PostgreSQL's children outlive their parent for a moment, and must not meet the next one's.
        while process.try_wait()?.is_none() || works_in(&self.data()) {
            if started.elapsed() > PATIENCE {
                return Err(Failure::too_slow(format!("stopping {}", self.kind), PATIENCE));
            }
            tokio::time::sleep(GLANCE).await;
        }
        Ok(())
    }

    /// The URL of a database on it; none is named by an empty string.
    pub(crate) fn url(&self, database: &str) -> String {
        url(self.kind, self.port, database)
    }

    pub(crate) async fn execute(&self, sql: &'static str) -> Result<(), sqlx::Error> {
        execute(self.kind, &self.url(""), sql.to_owned()).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // Its data is going to be removed.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// The URL of a database on a port of this machine.
pub(crate) fn url(kind: Kind, port: u16, database: &str) -> String {
    match kind {
        Kind::MariaDb => format!("mysql://root@127.0.0.1:{port}/{database}"),
        _ if database.is_empty() => format!("postgres://postgres@127.0.0.1:{port}/postgres"),
        _ => format!("postgres://postgres@127.0.0.1:{port}/{database}"),
    }
}

/// Runs a statement outside of any transaction, on a connection of its own.
pub(crate) async fn execute(kind: Kind, url: &str, sql: String) -> Result<(), sqlx::Error> {
    let sql = sqlx::AssertSqlSafe(sql);
    let work = async {
        if kind == Kind::MariaDb {
            let mut connection = MySqlConnection::connect(url).await?;
            connection.execute("set session lock_wait_timeout = 10").await?;
            connection.execute(sqlx::raw_sql(sql)).await?;
            connection.close().await
        } else {
            let mut connection = PgConnection::connect(url).await?;
            connection.execute(sqlx::raw_sql(sql)).await?;
            connection.close().await
        }
    };
    match tokio::time::timeout(Duration::from_secs(20), work).await {
        Ok(result) => result,
        Err(_) => Err(sqlx::Error::PoolTimedOut),
    }
}

/// A command that runs as the server's user if we are root, which servers refuse to be; and that dies with us.
fn as_user(kind: Kind, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if geteuid().is_root() {
        let user = user(kind);
        command.args(["--reuid", user, "--regid", user, "--init-groups"]);
    }
    command.arg("--").arg(program);
    command.env(
        "PATH",
        format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()),
    );
    command
}

fn user(kind: Kind) -> &'static str {
    match kind {
        Kind::MariaDb => "mysql",
        _ => "postgres",
    }
}

/// Makes a directory the server's.
pub(crate) fn give_to_user(kind: Kind, directory: &Path) -> Result<(), Failure> {
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700))?;
    if !geteuid().is_root() || kind == Kind::Sqlite {
        return Ok(());
    }
    let users = std::fs::read_to_string("/etc/passwd")?;
    let entry = users
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|entry| entry.first() == Some(&user(kind)))
        .ok_or(Failure::NotInstalled { server: kind })?;
    let number = |at: usize| entry.get(at).and_then(|text| text.parse().ok());
    Ok(chown(directory, number(2), number(3))?)
}

/// The newest installed PostgreSQL. The packages keep its binaries out of PATH.
fn postgres_bin() -> Result<PathBuf, Failure> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions
        .filter_map(|version| {
            Some((
                version.file_name().to_str()?.parse::<u32>().ok()?,
                version.path().join("bin"),
            ))
        })
        .filter(|(_, bin)| bin.join("initdb").exists())
        .max();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = || std::env::split_paths(&path).find(|bin| bin.join("initdb").exists());
    newest
        .map(|(_, bin)| bin)
        .or_else(in_path)
        .ok_or(Failure::NotInstalled { server: Kind::Postgres })
}

/// Below the range from which the kernel takes the ports of outgoing connections.
fn free_port() -> Result<u16, Failure> {
    for _ in 0..200 {
        let port = rand::random_range(20_000..32_000);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(std::io::Error::from(std::io::ErrorKind::AddrInUse).into())
}

/// Whether a process works in a directory, as all processes of a server do in their data's.
fn works_in(directory: &Path) -> bool {
    let Ok(directory) = directory.canonicalize() else {
        return false;
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|process| std::fs::read_link(process.path().join("cwd")).ok())
        .any(|cwd| cwd == directory)
}

fn tail(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}
