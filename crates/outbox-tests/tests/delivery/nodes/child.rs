//! A node in a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::way::Way;

/// How long a child may take for anything, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(180);

pub(crate) struct Child {
    process: std::process::Child,
    stdin: Option<ChildStdin>,
    lines: mpsc::UnboundedReceiver<(String, String)>,
    said: Vec<(String, String)>,
}

impl Child {
    pub(crate) fn start<W: Way>(mode: &str, url: &str, args: &[&str]) -> Self {
        Self::start_as(mode, W::NAME, url, args)
    }

    pub(crate) fn start_as(mode: &str, way: &str, url: &str, args: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_delivery-node"))
            .arg(mode)
            .arg(way)
            .arg(url)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the node starts");
        let stdout = process.stdout.take().expect("its output is ours");
        let (sender, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let (fact, what) = line.split_once(' ').unwrap_or((&line, ""));
                if sender.send((fact.to_owned(), what.to_owned())).is_err() {
                    return;
                }
            }
        });
        Self {
            stdin: process.stdin.take(),
            process,
            lines,
            said: Vec::new(),
        }
    }

    /// Waits until the child has said this, and returns what it said about it.
    pub(crate) async fn wait_for(&mut self, fact: &str) -> String {
        let wait = async {
            loop {
                let said = self
                    .lines
                    .recv()
                    .await
                    .unwrap_or_else(|| panic!("the node ended without saying {fact}"));
                self.said.push(said.clone());
                if said.0 == fact {
                    return said.1;
                }
            }
        };
        tokio::time::timeout(DEADLINE, wait)
            .await
            .unwrap_or_else(|_| panic!("the node never said {fact}"))
    }

    pub(crate) fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("the child has not been ended");
        writeln!(stdin, "{line}")
            .and_then(|()| stdin.flush())
            .expect("the child listens");
    }

    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .arg(format!("-{signal}"))
            .arg(self.process.id().to_string())
            .status();
        assert!(status.expect("kill runs").success());
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("the child can be killed");
        self.process.wait().expect("the child can be waited for");
    }

    pub(crate) fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse().ok())
            .unwrap_or(0)
    }

    /// Closes its input, waits for its end, which must be a good one, and returns all it has said.
    pub(crate) async fn end(mut self) -> Vec<(String, String)> {
        drop(self.stdin.take());
        let rest = async {
            while let Some(said) = self.lines.recv().await {
                self.said.push(said);
            }
        };
        tokio::time::timeout(DEADLINE, rest).await.expect("the node ends");
        let status = self.process.wait().expect("the child can be waited for");
        assert!(status.success(), "{status}");
        std::mem::take(&mut self.said)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Already ended is fine.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
