//! `outbox dead`: what was given up.

use outbox::store::{Filter, Status};
use outbox::{Admin, EventId};
use serde_json::json;

use crate::events::{Discarding, Listing, Show, no_such_event};
use crate::failure::Failure;
use crate::output;
use crate::progress::Progress;
use crate::selection::{self, Selection};
use crate::target::{Opened, Target};

/// List, show, replay and discard dead events: those that were given up.
#[derive(Debug, clap::Subcommand)]
#[command(after_long_help = EXAMPLES)]
pub(crate) enum Command {
    /// List dead events, in the order they were written.
    List(Listing),
    /// Show everything about one dead event: fields, headers, payload and failed attempts.
    Show(Show),
    /// Deliver dead events again: they become new, with no attempts and no error.
    ///
    /// Named listeners that have succeeded are not run again. Of many events it first says how many they are, and asks, or
    /// needs --yes where there is no terminal.
    Replay(Replay),
    /// Delete dead events.
    ///
    /// Of many events it first says how many they are, and asks, or needs --yes where there is no terminal.
    Discard(Discarding),
}

const EXAMPLES: &str = "\
Examples:
  export OUTBOX_DATABASE_URL=postgres://app@localhost/shop
  outbox dead list --type OrderPlaced --error timeout
  outbox dead show 01JX3Q5M8Z6V0E9R7T2W4Y1ABC
  outbox dead replay 01JX3Q5M8Z6V0E9R7T2W4Y1ABC
  outbox dead replay --type OrderPlaced --since 2h --dry-run
  outbox dead replay --all --yes
  outbox dead discard --tenant acme --until 30d --yes";

#[derive(Debug, clap::Args)]
pub(crate) struct Replay {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    selection: Selection,
    /// Print JSON: {database, table, matched, replayed, dry_run}.
    #[arg(long)]
    json: bool,
}

impl Replay {
    async fn run(&self) -> Result<(), Failure> {
        self.selection.check(false)?;
        let opened = self.target.open().await?;
        match &self.selection.id {
            Some(id) => self.one(&opened, id).await,
            None => self.many(&opened).await,
        }
    }

    async fn one(&self, opened: &Opened, id: &EventId) -> Result<(), Failure> {
        self.check_dead(&opened.admin, id).await?;
        let dry_run = self.selection.consent.dry_run;
        let replayed = if dry_run {
            0
        } else {
            opened.admin.replay(&Filter::id(id), |_| {}).await?
        };
        if !dry_run && replayed == 0 {
            self.check_dead(&opened.admin, id).await?;
            return Err(Failure::Changed { id: id.to_string() });
        }
        self.report(opened, 1, replayed, &format!("the event {id}"))
    }

    async fn check_dead(&self, admin: &Admin, id: &EventId) -> Result<(), Failure> {
        match admin.show(id).await? {
            None => Err(no_such_event(id, &self.target)),
            Some(event) if event.status != Status::Dead => Err(Failure::NotDead {
                id: id.to_string(),
                status: event.status.as_str(),
            }),
            Some(_) => Ok(()),
        }
    }

    async fn many(&self, opened: &Opened) -> Result<(), Failure> {
        let filters = &self.selection.filters;
        let filter = filters.of(&[Status::Dead]);
        let (matched, text) = selection::count(&opened.admin, &filter, "dead event", &filters.describe()).await?;
        if matched == 0 || self.selection.consent.dry_run {
            return self.report(opened, matched, 0, &text);
        }
        self.selection.consent.ask(&format!("replay {text}"))?;
        let mut progress = Progress::new();
        let replayed = opened
            .admin
            .replay(&filter, |so_far| {
                progress.show(format_args!("replayed {}", output::digits(so_far)))
            })
            .await?;
        drop(progress);
        self.report(opened, matched, replayed, &text)
    }

    fn report(&self, opened: &Opened, matched: u64, replayed: u64, text: &str) -> Result<(), Failure> {
        let dry_run = self.selection.consent.dry_run;
        if self.json {
            output::json(&json!({
                "database": opened.database, "table": self.target.table.as_str(),
                "matched": matched, "replayed": replayed, "dry_run": dry_run,
            }))?;
        } else if matched == 0 {
            output::line(format_args!("{text}: nothing to replay"))?;
        } else if dry_run {
            output::line(format_args!("would replay {text}"))?;
        } else if self.selection.id.is_some() {
            output::line(format_args!("{text} will be delivered again"))?;
        } else {
            let replayed = output::count(replayed, u64::MAX, "event");
            output::line(format_args!("{replayed} will be delivered again"))?;
        }
        Ok(())
    }
}

impl Command {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        match self {
            Self::List(list) => list.run(&[Status::Dead]).await,
            Self::Show(show) => show.run(true).await,
            Self::Replay(replay) => replay.run().await,
            Self::Discard(discard) => discard.run(&[Status::Dead], "dead event", false).await,
        }
    }
}
