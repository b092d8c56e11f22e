//! `outbox events`: what is in the table.

use outbox::store::{Filter, Page, Status};
use outbox::{Admin, EventId};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::moment::rfc3339;
use crate::output;
use crate::progress::Progress;
use crate::selection::{self, Filters, Selection, parse_id, parse_status};
use crate::target::{Opened, Target};
use crate::view;

/// List, show and discard events, whatever their status.
#[derive(Debug, clap::Subcommand)]
#[command(after_long_help = EXAMPLES)]
pub(crate) enum Command {
    /// List events, in the order they were written.
    List(List),
    /// Show everything about one event: fields, headers, payload and failed attempts.
    Show(Show),
    /// Delete events that nobody is delivering, delivered or not.
    ///
    /// Of many events it first says how many they are, and asks, or needs --yes where there is no terminal. An event that
    /// is being delivered is left alone.
    Discard(Discard),
}

const EXAMPLES: &str = "\
Examples:
  export OUTBOX_DATABASE_URL=postgres://app@localhost/shop
  outbox events list --status new,retry --type OrderPlaced --since 15m
  outbox events list --aggregate-type Order --aggregate-id 4711 --json
  outbox events list --limit 100 --after 5000
  outbox events show 01JX3Q5M8Z6V0E9R7T2W4Y1ABC
  outbox events discard 01JX3Q5M8Z6V0E9R7T2W4Y1ABC
  outbox events discard --status retry --error 'no such customer' --dry-run";

/// What `events list` and `dead list` have in common.
#[derive(Debug, clap::Args)]
pub(crate) struct Listing {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    filters: Filters,
    /// How many at most.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Only those after this one: the SEQ of the last event of the page before.
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    after: i64,
    /// Print a JSON array: [{seq, id, status, type, aggregate_type, aggregate_id, tenant_id, created_at, attempts, last_error, ..}].
    #[arg(long)]
    json: bool,
}

impl Listing {
    pub(crate) async fn run(&self, statuses: &[Status]) -> Result<(), Failure> {
        let opened = self.target.open().await?;
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let page = Page {
            after: self.after,
            limit,
        };
        let events = opened.admin.list(&self.filters.of(statuses), page).await?;
        if self.json {
            let events = events.iter().map(|event| Value::Object(view::json(event))).collect();
            output::json(&Value::Array(events))?;
            return Ok(());
        }
        if events.is_empty() {
            output::line("no events")?;
            return Ok(());
        }
        output::table(view::HEADINGS, &events.iter().map(view::row).collect::<Vec<_>>())?;
        if let Some(last) = events.last().filter(|_| events.len() == limit) {
            output::line(format_args!("\nthere may be more: --after {}", last.seq))?;
        }
        Ok(())
    }
}

/// What `events show` and `dead show` have in common.
#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    /// The event.
    #[arg(value_name = "ID", value_parser = parse_id)]
    id: EventId,
    #[command(flatten)]
    target: Target,
    /// Print JSON: what `list --json` has, and {payload, payload_base64, failed_attempts: [{attempt, node, error, failed_at}]}.
    #[arg(long)]
    json: bool,
}

impl Show {
    /// `only_dead`: an event of another status is an error.
    pub(crate) async fn run(&self, only_dead: bool) -> Result<(), Failure> {
        let opened = self.target.open().await?;
        let Some(event) = opened.admin.show(&self.id).await? else {
            return Err(no_such_event(&self.id, &self.target));
        };
        if only_dead && event.status != Status::Dead {
            return Err(Failure::NotDead {
                id: self.id.to_string(),
                status: event.status.as_str(),
            });
        }
        let attempts = opened.admin.attempts(&self.id).await?;
        if self.json {
            output::json(&view::json_in_full(&event, &attempts))?;
        } else {
            output::text(&view::in_full(&event, &attempts))?;
        }
        Ok(())
    }
}

pub(crate) fn no_such_event(id: &EventId, target: &Target) -> Failure {
    Failure::NoSuchEvent {
        id: id.to_string(),
        table: target.table.to_string(),
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct List {
    #[command(flatten)]
    listing: Listing,
    /// Of these statuses: new, retry, done, dead. Default: all.
    #[arg(long, value_name = "STATUS", value_delimiter = ',', value_parser = parse_status)]
    status: Vec<Status>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Discard {
    #[command(flatten)]
    discarding: Discarding,
    /// Of these statuses: new, retry, done, dead. Default: all.
    #[arg(long, value_name = "STATUS", value_delimiter = ',', value_parser = parse_status, conflicts_with = "id")]
    status: Vec<Status>,
}

/// What `events discard` and `dead discard` have in common.
#[derive(Debug, clap::Args)]
pub(crate) struct Discarding {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    selection: Selection,
    /// Print JSON: {database, table, matched, discarded, left, dry_run}.
    #[arg(long)]
    json: bool,
}

impl Discarding {
    pub(crate) async fn run(&self, statuses: &[Status], what: &str, narrowed: bool) -> Result<(), Failure> {
        self.selection.check(narrowed)?;
        let opened = self.target.open().await?;
        match &self.selection.id {
            Some(id) => self.one(&opened, id, statuses).await,
            None => self.many(&opened, statuses, what).await,
        }
    }

    async fn one(&self, opened: &Opened, id: &EventId, statuses: &[Status]) -> Result<(), Failure> {
        let admin = &opened.admin;
        let Some(event) = admin.show(id).await? else {
            return Err(no_such_event(id, &self.target));
        };
        if !statuses.is_empty() && !statuses.contains(&event.status) {
            return Err(Failure::NotDead {
                id: id.to_string(),
                status: event.status.as_str(),
            });
        }
        let mut filter = Filter::id(id);
        filter.statuses = statuses.to_vec();
        let dry_run = self.selection.consent.dry_run;
        let discarded = if dry_run {
            0
        } else {
            admin.discard(&filter, |_| {}).await?
        };
        if !dry_run && discarded == 0 {
            return Err(why_not(admin, id).await?);
        }
        self.report(opened, 1, discarded, 0, &format!("the event {id}"))
    }

    async fn many(&self, opened: &Opened, statuses: &[Status], what: &str) -> Result<(), Failure> {
        let filter = self.selection.filters.of(statuses);
        let described = self.selection.filters.describe();
        let (matched, text) = selection::count(&opened.admin, &filter, what, &described).await?;
        if matched == 0 || self.selection.consent.dry_run {
            return self.report(opened, matched, 0, matched, &text);
        }
        self.selection.consent.ask(&format!("discard {text}"))?;
        let mut progress = Progress::new();
        let discarded = opened
            .admin
            .discard(&filter, |so_far| {
                progress.show(format_args!("discarded {}", output::digits(so_far)))
            })
            .await?;
        drop(progress);
        let left = opened.admin.count(&filter, selection::AT_MOST).await?;
        self.report(opened, matched, discarded, left, &text)
    }

    fn report(&self, opened: &Opened, matched: u64, discarded: u64, left: u64, text: &str) -> Result<(), Failure> {
        let dry_run = self.selection.consent.dry_run;
        if self.json {
            output::json(&json!({
                "database": opened.database, "table": self.target.table.as_str(),
                "matched": matched, "discarded": discarded, "left": left, "dry_run": dry_run,
            }))?;
        } else if matched == 0 {
            output::line(format_args!("{text}: nothing to discard"))?;
        } else if dry_run {
            output::line(format_args!("would discard {text}"))?;
        } else if self.selection.id.is_some() {
            output::line(format_args!("discarded {text}"))?;
        } else {
            output::line(format_args!(
                "discarded {}",
                output::count(discarded, u64::MAX, "event")
            ))?;
            if left > 0 {
                output::line(format_args!(
                    "{} left alone: being delivered, or written since",
                    output::count(left, selection::AT_MOST, "event")
                ))?;
            }
        }
        Ok(())
    }
}

/// Why an event that was there has not been discarded.
async fn why_not(admin: &Admin, id: &EventId) -> Result<Failure, outbox::Error> {
    let id_text = id.to_string();
    Ok(match admin.show(id).await? {
        Some(event) => match (event.locked_by, event.lease_until) {
            (Some(node), Some(until)) => Failure::BeingDelivered {
                id: id_text,
                node,
                until: rfc3339(until),
            },
            _ => Failure::Changed { id: id_text },
        },
        None => Failure::Changed { id: id_text },
    })
}

impl Command {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        match self {
            Self::List(list) => list.listing.run(&list.status).await,
            Self::Show(show) => show.run(false).await,
            Self::Discard(discard) => {
                let statuses = &discard.status;
                let names: Vec<&str> = statuses.iter().map(|status| status.as_str()).collect();
                let what = match names.join(" or ") {
                    names if names.is_empty() => "event".to_owned(),
                    names => format!("{names} event"),
                };
                discard.discarding.run(statuses, &what, !statuses.is_empty()).await
            }
        }
    }
}
