//! A proxy of our own between a node and its database, that can be cut: for a while, or at a COMMIT.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::failure::Failure;

/// How long the server may take to answer a COMMIT whose answer is thrown away.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// When a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The COMMIT does not arrive: it is not applied.
    BeforeCommit,
    /// The COMMIT arrives and its answer does not: it is applied.
    AfterCommit,
}

/// Ends with all of its connections when it is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    server: u16,
    /// Nothing passes, in either direction, while it is false; nothing is lost either, as in a network that comes back.
    up: watch::Sender<bool>,
    /// What is to happen to the next COMMIT.
    cut: Mutex<Option<Cut>>,
    cuts: AtomicU64,
}

impl Proxy {
    pub(crate) async fn start(server: u16) -> Result<Self, Failure> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            server,
            up: watch::Sender::new(true),
            cut: Mutex::default(),
            cuts: AtomicU64::new(0),
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { port, shared, task })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Cuts everybody off, or lets them on.
    pub(crate) fn set_up(&self, up: bool) {
        self.shared.up.send_replace(up);
    }

    /// Cuts the connection on which the next COMMIT is sent, or none.
    pub(crate) fn cut_next_commit(&self, cut: Option<Cut>) {
        *self.shared.cut.lock().unwrap_or_else(PoisonError::into_inner) = cut;
    }

    /// How many connections have been cut at a COMMIT.
    pub(crate) fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    let shared = Arc::clone(&shared);
                    connections.spawn(async move {
                        // A broken connection is what a proxy is there for.
                        let _ = relay(client, &shared).await;
                    });
                }
                Err(error) => tracing::error!(%error, "the proxy cannot accept"),
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn relay(mut client: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut up = shared.up.subscribe();
    // The sender is in `shared`, which outlives this.
    let _ = up.wait_for(|up| *up).await;
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, shared.server)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut asked, mut answered) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    loop {
        let _ = up.wait_for(|up| *up).await;
        tokio::select! {
            _ = up.changed() => {}
            read = client.read(&mut asked) => match read? {
                0 => return Ok(()),
                read => {
                    let asked = &asked[..read];
                    let cut = if is_commit(asked) { shared.take_cut() } else { None };
                    match cut {
                        None => server.write_all(asked).await?,
                        Some(Cut::BeforeCommit) => return Ok(()),
                        Some(Cut::AfterCommit) => {
                            server.write_all(asked).await?;
                            let answer = tokio::time::timeout(ANSWER_LIMIT, server.read(&mut answered)).await;
                            return answer.unwrap_or(Ok(0)).map(drop);
                        }
                    }
                }
            },
            read = server.read(&mut answered) => match read? {
                0 => return Ok(()),
                read => client.write_all(&answered[..read]).await?,
            },
        }
    }
}

impl Shared {
    fn take_cut(&self) -> Option<Cut> {
        let cut = self.cut.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.cuts.fetch_add(u64::from(cut.is_some()), Ordering::SeqCst);
        cut
    }
}

/// Whether a message says COMMIT. Both protocols send a statement without values as plain text, in one piece.
fn is_commit(message: &[u8]) -> bool {
    const COMMIT: &[u8] = b"commit";
    message.windows(COMMIT.len()).enumerate().any(|(at, window)| {
        // READ COMMITTED is something else.
        window.eq_ignore_ascii_case(COMMIT) && !message.get(at + COMMIT.len()).is_some_and(u8::is_ascii_alphabetic)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_told_from_an_isolation_level() {
        assert!(is_commit(b"Q\0\0\0\x20select 1; commit and chain\0"));
        assert!(is_commit(b"\x07\0\0\0\x03COMMIT"));
        assert!(!is_commit(b"set transaction isolation level read committed"));
    }

    #[tokio::test]
    async fn what_was_sent_while_it_was_down_arrives_when_it_is_up() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let proxy = Proxy::start(server.local_addr().unwrap().port()).await.unwrap();
        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).await.unwrap();
        let (mut accepted, _) = server.accept().await.unwrap();
        proxy.set_up(false);
        client.write_all(b"late").await.unwrap();
        let mut heard = [0; 4];
        let early = tokio::time::timeout(Duration::from_millis(50), accepted.read_exact(&mut heard)).await;
        assert!(early.is_err());
        proxy.set_up(true);
        let in_time = tokio::time::timeout(Duration::from_secs(10), accepted.read_exact(&mut heard)).await;
        in_time.unwrap().unwrap();
        assert_eq!(&heard, b"late");
    }

    #[tokio::test]
    async fn a_commit_is_applied_without_an_answer_or_not_applied() {
        for (cut, applied) in [(Cut::AfterCommit, true), (Cut::BeforeCommit, false)] {
            let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let proxy = Proxy::start(server.local_addr().unwrap().port()).await.unwrap();
            let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).await.unwrap();
            let (mut accepted, _) = server.accept().await.unwrap();
            proxy.cut_next_commit(Some(cut));
            client.write_all(b"commit").await.unwrap();
            let mut heard = Vec::new();
            if applied {
                let mut commit = [0; 6];
                accepted.read_exact(&mut commit).await.unwrap();
                accepted.write_all(b"done").await.unwrap();
            } else {
                accepted.read_to_end(&mut heard).await.unwrap();
                assert_eq!(heard, b"");
            }
            let mut answer = Vec::new();
            // Reset or ended, in any case without an answer.
            let _ = client.read_to_end(&mut answer).await;
            assert_eq!((answer.as_slice(), proxy.cuts()), (&b""[..], 1));
        }
    }
}
