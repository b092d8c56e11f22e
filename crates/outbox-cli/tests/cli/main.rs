//! The real executable, against real servers.
#![allow(
    clippy::unwrap_used,
    reason = "what tests share is part of them, though clippy does not see it"
)]

mod bench;
mod demo;
mod inspect;
mod keys;
mod migrate;
mod repair;
mod scene;
mod usage;

use std::process::{Command, Output, Stdio};

use outbox::AnyPool;
use sqlx::AssertSqlSafe;

/// How a run of the command ended.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).expect("the command prints UTF-8"),
            err: String::from_utf8(output.stderr).expect("the command prints UTF-8"),
        }
    }
}

impl Ended {
    /// What it printed, if it succeeded and had nothing to complain about.
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (Some(0), ""), "{self:?}");
        self.out
    }

    #[track_caller]
    fn json(self) -> serde_json::Value {
        let out = self.ok();
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
    }

    /// The one line it complained with, if it failed with this code and printed nothing else.
    #[track_caller]
    fn failed(self, code: i32) -> String {
        assert_eq!((self.code, self.out.as_str()), (Some(code), ""), "{self:?}");
        if code == 1 {
            assert_eq!(self.err.lines().count(), 1, "{self:?}");
        }
        self.err
    }
}

/// The command, with nothing of ours in its environment.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
    command
        .args(arguments)
        .env_remove("OUTBOX_DATABASE_URL")
        .stdin(Stdio::null());
    command
}

fn outbox(arguments: &[&str]) -> Ended {
    command(arguments).output().expect("the command can be run").into()
}

/// Runs statements that have no parameters.
async fn execute(url: &str, sql: &str) {
    let sql = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
    let pool = AnyPool::connect(url).await.expect("the database is there");
    match &pool {
        AnyPool::Sqlite(pool) => sql.execute(pool).await.map(drop),
        AnyPool::Postgres(pool) => sql.execute(pool).await.map(drop),
        AnyPool::MySql(pool) => sql.execute(pool).await.map(drop),
        other => panic!("{other:?}"),
    }
    .expect("the SQL is valid");
    pool.close().await;
}
