//! `outbox keys`: aggregates whose events wait for one of them.

use outbox::store::{BlockedKey, Page};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::moment::{plain, rfc3339};
use crate::output::{self, printable};
use crate::target::Target;

/// How much of an error stands in a list.
const ERROR_CHARS: usize = 60;

/// See and unblock keys: aggregates whose events wait, because one of them failed or is dead.
///
/// Only where events are delivered in order (Outbox::ordered). A key that is retrying goes on by itself; one that is parked
/// waits for you: replay or discard its dead event (outbox dead), or unblock it.
#[derive(Debug, clap::Subcommand)]
#[command(after_long_help = EXAMPLES)]
pub(crate) enum Command {
    /// List blocked keys, in the order of the events that hold them back.
    List(List),
    /// Let a key go on: its node takes it up with the first poll after two seconds.
    ///
    /// One that is retrying goes on with the event that failed. One that is parked goes on with the event after the
    /// dead one, which stays dead; to deliver that first, replay it instead.
    Unblock(Unblock),
}

const EXAMPLES: &str = "\
Examples:
  export OUTBOX_DATABASE_URL=postgres://app@localhost/shop
  outbox keys list
  outbox keys list --parked --json
  outbox dead replay 01JX3Q5M8Z6V0E9R7T2W4Y1ABC       go on, with the dead event first
  outbox keys unblock Order 4711                       go on without it";

#[derive(Debug, clap::Args)]
pub(crate) struct List {
    #[command(flatten)]
    target: Target,
    /// Only those that wait for somebody.
    #[arg(long)]
    parked: bool,
    /// How many at most.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Only those after this one: the SEQ of the last key of the page before.
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    after: i64,
    /// Print a JSON array: [{aggregate_type, aggregate_id, state, event_id, seq, since, until, last_error}].
    #[arg(long)]
    json: bool,
}

impl List {
    async fn run(&self) -> Result<(), Failure> {
        let opened = self.target.open().await?;
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let page = Page {
            after: self.after,
            limit,
        };
        let mut keys = opened.admin.blocked_keys(page).await?;
        let last = keys.last().filter(|_| keys.len() == limit).map(|key| key.seq);
        keys.retain(|key| !self.parked || key.until.is_none());
        if self.json {
            return Ok(output::json(&Value::Array(keys.iter().map(to_json).collect()))?);
        }
        if keys.is_empty() {
            output::line("no key is blocked")?;
        } else {
            let headings = [
                "SEQ",
                "AGGREGATE",
                "STATE",
                "EVENT",
                "SINCE (UTC)",
                "UNTIL (UTC)",
                "LAST ERROR",
            ];
            output::table(headings, &keys.iter().map(row).collect::<Vec<_>>())?;
        }
        if let Some(last) = last {
            output::line(format_args!("\nthere may be more: --after {last}"))?;
        }
        Ok(())
    }
}

fn state(key: &BlockedKey) -> &'static str {
    match key.until {
        Some(_) => "retrying",
        None => "parked",
    }
}

fn to_json(key: &BlockedKey) -> Value {
    json!({
        "aggregate_type": key.aggregate_type, "aggregate_id": key.aggregate_id, "state": state(key),
        "event_id": key.event_id, "seq": key.seq, "since": rfc3339(key.since), "until": key.until.map(rfc3339),
        "last_error": key.last_error,
    })
}

fn row(key: &BlockedKey) -> [String; 7] {
    let error: String = printable(key.last_error.as_deref().unwrap_or_default());
    [
        key.seq.to_string(),
        printable(&format!("{} {}", key.aggregate_type, key.aggregate_id)),
        state(key).to_owned(),
        printable(key.event_id.as_deref().unwrap_or("(gone)")),
        plain(key.since),
        key.until.map_or("you unblock it".to_owned(), plain),
        error.chars().take(ERROR_CHARS).collect(),
    ]
}

#[derive(Debug, clap::Args)]
pub(crate) struct Unblock {
    #[command(flatten)]
    target: Target,
    /// The aggregate's type.
    aggregate_type: String,
    /// The aggregate's id.
    aggregate_id: String,
    /// Print JSON: {database, table, aggregate_type, aggregate_id, unblocked}.
    #[arg(long)]
    json: bool,
}

impl Unblock {
    async fn run(&self) -> Result<(), Failure> {
        let opened = self.target.open().await?;
        let (aggregate_type, aggregate_id) = (&self.aggregate_type, &self.aggregate_id);
        if !opened.admin.unblock_key(aggregate_type, aggregate_id).await? {
            return Err(Failure::NotBlocked {
                key: format!("{aggregate_type} {aggregate_id}"),
            });
        }
        if self.json {
            output::json(&json!({
                "database": opened.database, "table": self.target.table.as_str(),
                "aggregate_type": aggregate_type, "aggregate_id": aggregate_id, "unblocked": true,
            }))?;
        } else {
            let key = printable(&format!("{aggregate_type} {aggregate_id}"));
            output::line(format_args!("{key} goes on"))?;
        }
        Ok(())
    }
}

impl Command {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        match self {
            Self::List(list) => list.run().await,
            Self::Unblock(unblock) => unblock.run().await,
        }
    }
}
