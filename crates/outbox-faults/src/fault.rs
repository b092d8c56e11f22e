//! The faults: their names, what they do, and where they apply.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Fault {
    KillBeforeInsert,
    KillAfterInsert,
    KillAfterCommit,
    KillInListener,
    KillAfterListener,
    KillInSettle,
    KillInPurge,
    DatabaseRestart,
    DatabaseKill,
    ConnectionsKilled,
    CommitAnswerLost,
    WorkerStalled,
    Partition,
    ClockSkew,
    DiskFull,
    Poison,
    Backlog,
    HeldTransaction,
    PoolExhausted,
    SqliteBusy,
}

/// A kind of database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
    MariaDb,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Sqlite, Self::Postgres, Self::MariaDb];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::MariaDb => "mariadb",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Fault {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::KillBeforeInsert => "kill-before-insert",
            Self::KillAfterInsert => "kill-after-insert",
            Self::KillAfterCommit => "kill-after-commit",
            Self::KillInListener => "kill-in-listener",
            Self::KillAfterListener => "kill-after-listener",
            Self::KillInSettle => "kill-in-settle",
            Self::KillInPurge => "kill-in-purge",
            Self::DatabaseRestart => "database-restart",
            Self::DatabaseKill => "database-kill",
            Self::ConnectionsKilled => "connections-killed",
            Self::CommitAnswerLost => "commit-answer-lost",
            Self::WorkerStalled => "worker-stalled",
            Self::Partition => "partition",
            Self::ClockSkew => "clock-skew",
            Self::DiskFull => "disk-full",
            Self::Poison => "poison",
            Self::Backlog => "backlog",
            Self::HeldTransaction => "held-transaction",
            Self::PoolExhausted => "pool-exhausted",
            Self::SqliteBusy => "sqlite-busy",
        }
    }

    pub(crate) fn what_happens(self) -> &'static str {
        match self {
            Self::KillBeforeInsert => "SIGKILL when an event is about to be written",
            Self::KillAfterInsert => "SIGKILL when an event is written and its transaction open",
            Self::KillAfterCommit => "SIGKILL after the commit, before anything is handed over",
            Self::KillInListener => "SIGKILL while a listener is at work",
            Self::KillAfterListener => "SIGKILL when a listener has answered and nothing is written",
            Self::KillInSettle => "SIGKILL while outcomes are being written",
            Self::KillInPurge => "SIGKILL while finished events are being deleted",
            Self::DatabaseRestart => "the server is shut down and started again, under load",
            Self::DatabaseKill => "the server is killed with SIGKILL and recovers, under load",
            Self::ConnectionsKilled => "all connections are terminated, twice a second",
            Self::CommitAnswerLost => {
                "a proxy cuts the connection at a COMMIT: before it arrives, or before its answer does"
            }
            Self::WorkerStalled => "SIGSTOP for longer than the lease, then SIGCONT",
            Self::Partition => {
                "one of two nodes is cut off from the database for longer than its lease, and comes back"
            }
            Self::ClockSkew => "the clocks of two applications are twenty minutes apart",
            Self::DiskFull => "the database's disk is full for a while",
            Self::Poison => "events nobody can handle, listeners that panic, payloads at the limit, rows that are none",
            Self::Backlog => "a backlog is drained; memory stays bounded",
            Self::HeldTransaction => "a REPEATABLE READ transaction is held open during a drain; the rate stays",
            Self::PoolExhausted => "the application holds all of its connections",
            Self::SqliteBusy => "processes fight over one file, and somebody holds its lock again and again",
        }
    }

    /// The fail point of a kill.
    pub(crate) fn point(self) -> Option<&'static str> {
        match self {
            Self::KillBeforeInsert => Some("before-insert"),
            Self::KillAfterInsert => Some("after-insert"),
            Self::KillAfterCommit => Some("after-commit"),
            Self::KillInListener => Some("in-listener"),
            Self::KillAfterListener => Some("after-listener"),
            Self::KillInSettle => Some("in-settle"),
            Self::KillInPurge => Some("in-purge"),
            _ => None,
        }
    }

    /// Whether it can happen to a database of this kind.
    pub(crate) fn applies_to(self, kind: Kind) -> bool {
        match self {
            Self::DatabaseRestart
            | Self::DatabaseKill
            | Self::ConnectionsKilled
            | Self::CommitAnswerLost
            | Self::Partition => kind != Kind::Sqlite,
            Self::HeldTransaction => kind == Kind::Postgres,
            Self::SqliteBusy => kind == Kind::Sqlite,
            _ => true,
        }
    }

    /// Whether it is done to the server itself, which must then be one of our own.
    pub(crate) fn needs_own_server(self) -> bool {
        matches!(self, Self::DatabaseRestart | Self::DatabaseKill | Self::DiskFull)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_has_one_name_everywhere() {
        for fault in Fault::value_variants() {
            let argument = fault.to_possible_value().expect("no fault is hidden");
            assert_eq!(argument.get_name(), fault.as_str());
            assert_eq!(serde_json::to_value(fault).unwrap(), fault.as_str());
        }
    }
}
