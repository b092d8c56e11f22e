//! The nodes of a run, as the harness sees them. Dropped, they are killed.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;

use crate::failure::{Failure, within};
use crate::node::{CONFIG, Config, STALLED};

/// How long a node may take to get ready, to be quiet, or to end.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Crew {
    directory: PathBuf,
    broken: Option<String>,
    pub(crate) nodes: Vec<Node>,
    /// The logs of all nodes, in all their lives.
    pub(crate) logs: Vec<PathBuf>,
    /// How often one of them has stood still for a good part of its lease.
    stalls: Arc<AtomicU64>,
}

#[derive(Debug)]
pub(crate) struct Node {
    config: Config,
    child: Child,
    stdin: Option<ChildStdin>,
    said: mpsc::UnboundedReceiver<String>,
    stderr: PathBuf,
}

impl Crew {
    pub(crate) fn new(directory: &Path, broken: Option<String>) -> Self {
        Self {
            directory: directory.to_owned(),
            broken,
            nodes: Vec::new(),
            logs: Vec::new(),
            stalls: Arc::default(),
        }
    }

    pub(crate) fn stalls(&self) -> u64 {
        self.stalls.load(Ordering::SeqCst)
    }

    /// Adds a node. With a fail point it dies there.
    pub(crate) fn start(&mut self, config: Config, fail_point: Option<&str>) -> Result<(), Failure> {
        let node = self.spawn(config, fail_point)?;
        self.nodes.push(node);
        Ok(())
    }

    /// Gives a node that has died its next life.
    pub(crate) fn restart(&mut self, at: usize, fail_point: Option<&str>) -> Result<(), Failure> {
        let mut config = self.nodes[at].config.clone();
        config.life += 1;
        self.nodes[at] = self.spawn(config, fail_point)?;
        Ok(())
    }

    fn spawn(&mut self, mut config: Config, fail_point: Option<&str>) -> Result<Node, Failure> {
        let name = format!("node-{}-{}", config.number, config.life);
        config.log = self.directory.join(format!("{name}.log"));
        self.logs.push(config.log.clone());
        let stderr = self.directory.join(format!("{name}.err"));
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("node")
            .env(CONFIG, serde_json::to_string(&config).map_err(std::io::Error::from)?)
            .env_remove("OUTBOX_FAILPOINT")
            .env_remove("OUTBOX_BROKEN")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&stderr)?)
            .kill_on_drop(true);
        if let Some(fail_point) = fail_point {
            command.env("OUTBOX_FAILPOINT", fail_point);
        }
        if let Some(broken) = &self.broken {
            command.env("OUTBOX_BROKEN", broken);
        }
        let mut child = command.spawn()?;
        let (sender, said) = mpsc::unbounded_channel();
        if let Some(stdout) = child.stdout.take() {
            let stalls = Arc::clone(&self.stalls);
            let mut lines = BufReader::new(stdout).lines();
            tokio::spawn(async move {
                while let Ok(Some(line)) = lines.next_line().await {
                    if line == STALLED {
                        stalls.fetch_add(1, Ordering::SeqCst);
                    } else if sender.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Node {
            config,
            stdin: child.stdin.take(),
            child,
            said,
            stderr,
        })
    }

    pub(crate) async fn all_ready(&mut self) -> Result<(), Failure> {
        for node in &mut self.nodes {
            node.wait_for("ready").await?;
        }
        Ok(())
    }

    /// Tells all producers to stop, and waits until they have.
    pub(crate) async fn quiet(&mut self) -> Result<(), Failure> {
        for node in &mut self.nodes {
            node.say("quiet").await?;
        }
        for node in &mut self.nodes {
            node.wait_for("quiet").await?;
        }
        Ok(())
    }

    /// Ends all nodes, as they should end.
    pub(crate) async fn end(&mut self) -> Result<(), Failure> {
        for node in &mut self.nodes {
            drop(node.stdin.take());
        }
        for mut node in self.nodes.drain(..) {
            let status = within("ending a node", PATIENCE, node.child.wait()).await?;
            if !status.success() {
                return Err(node.ended(status));
            }
        }
        Ok(())
    }
}

impl Node {
    pub(crate) fn life(&self) -> u32 {
        self.config.life
    }

    /// Gives it an order. One that has just died cannot be told anything.
    pub(crate) async fn say(&mut self, line: &str) -> Result<(), Failure> {
        if let Some(stdin) = &mut self.stdin {
            let told = async {
                stdin.write_all(format!("{line}\n").as_bytes()).await?;
                stdin.flush().await
            };
            if let Err(error) = told.await {
                tracing::debug!(%error, "a node does not listen");
            }
        }
        Ok(())
    }

    /// Waits until it has said this.
    pub(crate) async fn wait_for(&mut self, line: &str) -> Result<(), Failure> {
        let heard = async {
            while let Some(said) = self.said.recv().await {
                if said == line {
                    return true;
                }
            }
            false
        };
        match tokio::time::timeout(PATIENCE, heard).await {
            Ok(true) => Ok(()),
            Ok(false) => {
                let status = within("ending a node", PATIENCE, self.child.wait()).await?;
                Err(self.ended(status))
            }
            Err(_) => Err(Failure::too_slow(format!("a node says {line}"), PATIENCE)),
        }
    }

    /// How it ended, if it has.
    pub(crate) fn status(&mut self) -> Result<Option<ExitStatus>, Failure> {
        Ok(self.child.try_wait()?)
    }

    pub(crate) fn ended(&self, status: ExitStatus) -> Failure {
        let said = std::fs::read_to_string(&self.stderr).unwrap_or_default();
        let last = said.lines().last().unwrap_or_default();
        Failure::NodeEnded {
            status: format!("{status}: {last}"),
            log: self.stderr.display().to_string(),
        }
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Failure> {
        let pid = self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        match pid {
            Some(pid) => Ok(kill_process(pid, signal).map_err(std::io::Error::from)?),
            None => Ok(()),
        }
    }

    /// Its resident memory, in KiB.
    pub(crate) fn resident(&self) -> u64 {
        let Some(id) = self.child.id() else {
            return 0;
        };
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok())
            .unwrap_or(0)
    }
}
