//! The nodes of a measurement, seen from the parent.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;

use super::node::Message;
use super::place::{Place, Tables};
use super::variant::{Ownership, Variant};
use crate::failure::Failure;

/// How long nodes may take to get ready, and to stop.
const PATIENCE: Duration = Duration::from_secs(30);

/// What all nodes are told.
#[derive(Clone, Debug)]
pub(crate) struct Task<'a> {
    pub(crate) place: &'a Place,
    pub(crate) tables: &'a Tables,
    pub(crate) variant: Variant,
    pub(crate) workers: usize,
    pub(crate) batch: usize,
    /// Whether a node is told that there are no others.
    pub(crate) alone: bool,
    /// Whether each delivery is told of.
    pub(crate) hear: bool,
}

/// The nodes. Dropped, they are killed.
#[derive(Debug)]
pub(crate) struct Crew {
    nodes: Vec<Child>,
    /// A line to it starts a node, its end stops it.
    orders: Vec<ChildStdin>,
    messages: mpsc::UnboundedReceiver<(usize, Option<Message>)>,
    /// By node.
    delivered: Vec<u64>,
}

impl Crew {
    /// Starts nodes, which connect and then wait.
    pub(crate) async fn start(task: &Task<'_>, nodes: usize) -> Result<Self, Failure> {
        let (sender, messages) = mpsc::unbounded_channel();
        let mut crew = Self {
            nodes: Vec::new(),
            orders: Vec::new(),
            messages,
            delivered: vec![0; nodes],
        };
        for number in 0..nodes {
            let mut node = task.command()?.spawn()?;
            crew.orders.extend(node.stdin.take());
            if let Some(output) = node.stdout.take() {
                let sender = sender.clone();
                tokio::spawn(async move {
                    let mut lines = BufReader::new(output).lines();
                    while let Ok(Some(line)) = lines.next_line().await {
                        if let Ok(message) = serde_json::from_str(&line) {
                            let _ = sender.send((number, Some(message)));
                        }
                    }
                    let _ = sender.send((number, None));
                });
            }
            crew.nodes.push(node);
        }
        for _ in 0..nodes {
            crew.wait_for(|message| matches!(message, Message::Ready).then_some(()))
                .await?;
        }
        Ok(crew)
    }

    /// Lets them deliver. Returns when the first one does.
    pub(crate) async fn go(&mut self) -> Result<(), Failure> {
        for orders in &mut self.orders {
            orders.write_all(b"go\n").await?;
        }
        self.wait_for(|message| matches!(message, Message::Started).then_some(()))
            .await
    }

    /// The next message; `None` after a while without one.
    pub(crate) async fn next(&mut self, patience: Duration) -> Result<Option<Message>, Failure> {
        loop {
            let Ok(next) = tokio::time::timeout(patience, self.messages.recv()).await else {
                return Ok(None);
            };
            match next {
                Some((node, Some(message))) => {
                    if let Message::Delivered(so_far) = message {
                        self.delivered[node] = so_far;
                    }
                    return Ok(Some(message));
                }
                Some((node, None)) => {
                    let status = self.nodes[node].wait().await?;
                    let was_told_to = self.orders.is_empty();
                    if !was_told_to || !status.success() {
                        return Err(Failure::NodeFailed { status });
                    }
                }
                None => return Ok(None),
            }
        }
    }

    /// How many were delivered, by all nodes together.
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered.iter().sum()
    }

    async fn wait_for<T>(&mut self, wanted: impl Fn(Message) -> Option<T>) -> Result<T, Failure> {
        loop {
            match self.next(PATIENCE).await? {
                Some(message) => {
                    if let Some(found) = wanted(message) {
                        return Ok(found);
                    }
                }
                None => return Err(Failure::NodesNotReady),
            }
        }
    }

    /// Stops all nodes, and says what the hungriest of them took at most, in kilobytes.
    pub(crate) async fn stop(mut self) -> Result<Option<u64>, Failure> {
        self.orders.clear();
        let mut peak = None;
        for _ in 0..self.nodes.len() {
            let of_one = self
                .wait_for(|message| match message {
                    Message::Peak(kilobytes) => Some(kilobytes),
                    _ => None,
                })
                .await?;
            peak = peak.max(of_one);
        }
        for node in &mut self.nodes {
            let Ok(status) = tokio::time::timeout(PATIENCE, node.wait()).await else {
                return Err(Failure::NodeDoesNotStop);
            };
            let status = status?;
            if !status.success() {
                return Err(Failure::NodeFailed { status });
            }
        }
        Ok(peak)
    }
}

impl Task<'_> {
    fn command(&self) -> Result<Command, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("bench-node")
            .args(["--table", self.tables.events.as_str()])
            .args([
                "--ownership",
                match self.variant.ownership {
                    Ownership::RowClaims => "row-claims",
                    Ownership::Lanes => "lanes",
                    Ownership::Ordered => "ordered",
                },
            ])
            .arg(format!("--workers={}", self.workers))
            .arg(format!("--batch={}", self.batch))
            // Arguments can be read by every user of the machine, and the URL may hold a password.
            .env("OUTBOX_DATABASE_URL", self.place.url.expose())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let flags = [
            ("--delete", self.variant.delete),
            ("--alone", self.alone),
            ("--hear", self.hear),
        ];
        command.args(flags.iter().filter(|(_, set)| *set).map(|(flag, _)| flag));
        Ok(command)
    }
}
