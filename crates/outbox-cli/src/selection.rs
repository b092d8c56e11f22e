//! Which events a command is about: filters, and the consent that an action on many needs.

use std::io::{self, BufRead, IsTerminal, Write};

use chrono::{DateTime, Utc};
use outbox::store::{Filter, Status};
use outbox::{Admin, EventId};

use crate::failure::Failure;
use crate::moment::{parse_instant, plain};
use crate::output;

/// Counting ends here: far enough to be a warning, and near enough to be done in a moment.
pub(crate) const AT_MOST: u64 = 1_000_000;

const HEADING: &str = "Filters (all that are given must hold)";

/// Filters. Everything that is given must hold.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Filters {
    /// Of this type.
    #[arg(help_heading = HEADING, long = "type", value_name = "TYPE")]
    event_type: Option<String>,
    /// About this kind of thing.
    #[arg(help_heading = HEADING, long, value_name = "TYPE")]
    aggregate_type: Option<String>,
    /// About this one.
    #[arg(help_heading = HEADING, long, value_name = "ID")]
    aggregate_id: Option<String>,
    /// Of this tenant.
    #[arg(help_heading = HEADING, long, value_name = "ID")]
    tenant: Option<String>,
    /// Written at or after this time: RFC 3339, or an age such as 15m, 2h, 7d.
    #[arg(help_heading = HEADING, long, value_name = "TIME", value_parser = parse_instant)]
    since: Option<DateTime<Utc>>,
    /// Written before this time: RFC 3339, or an age such as 15m, 2h, 7d.
    #[arg(help_heading = HEADING, long, value_name = "TIME", value_parser = parse_instant)]
    until: Option<DateTime<Utc>>,
    /// Whose last error contains this text.
    #[arg(help_heading = HEADING, long, value_name = "TEXT")]
    error: Option<String>,
}

impl Filters {
    /// Events of these statuses that match; of any if there are none.
    pub(crate) fn of(&self, statuses: &[Status]) -> Filter {
        let mut filter = Filter::all();
        filter.statuses = statuses.to_vec();
        filter.event_type.clone_from(&self.event_type);
        filter.aggregate_type.clone_from(&self.aggregate_type);
        filter.aggregate_id.clone_from(&self.aggregate_id);
        filter.tenant_id.clone_from(&self.tenant);
        filter.created_from = self.since;
        filter.created_until = self.until;
        filter.error_contains.clone_from(&self.error);
        filter
    }

    fn is_empty(&self) -> bool {
        self.of(&[]) == Filter::all()
    }

    /// For people: `type OrderPlaced, tenant acme`.
    pub(crate) fn describe(&self) -> String {
        let text = |name: &str, value: &Option<String>| {
            value
                .as_ref()
                .map(|value| format!("{name} {}", output::printable(value)))
        };
        let time =
            |name: &str, value: Option<DateTime<Utc>>| value.map(|at| format!("written {name} {} UTC", plain(at)));
        let parts: Vec<String> = [
            text("type", &self.event_type),
            text("aggregate type", &self.aggregate_type),
            text("aggregate id", &self.aggregate_id),
            text("tenant", &self.tenant),
            time("since", self.since),
            time("before", self.until),
            text("error containing", &self.error),
        ]
        .into_iter()
        .flatten()
        .collect();
        parts.join(", ")
    }
}

/// The status of a name.
pub(crate) fn parse_status(name: &str) -> Result<Status, String> {
    let found = Status::ALL.into_iter().find(|status| status.as_str() == name);
    found.ok_or_else(|| format!("{name:?} is no status: use new, retry, done or dead"))
}

/// An id as the table holds it.
pub(crate) fn parse_id(id: &str) -> Result<EventId, outbox::EventError> {
    EventId::new(id)
}

/// Which events an action is about: one by its id, or all that match.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Selection {
    /// One event. Needs no --yes.
    #[arg(value_name = "ID", value_parser = parse_id,
          conflicts_with_all = ["all", "event_type", "aggregate_type", "aggregate_id", "tenant", "since", "until", "error"])]
    pub(crate) id: Option<EventId>,
    #[command(flatten)]
    pub(crate) filters: Filters,
    /// All of them, without a filter.
    #[arg(long, conflicts_with_all = ["event_type", "aggregate_type", "aggregate_id", "tenant", "since", "until", "error"])]
    all: bool,
    #[command(flatten)]
    pub(crate) consent: Consent,
}

impl Selection {
    /// Refuses to take silence for all. `narrowed`: something else narrows it down.
    pub(crate) fn check(&self, narrowed: bool) -> Result<(), Failure> {
        if self.id.is_none() && !self.all && !narrowed && self.filters.is_empty() {
            return Err(Failure::NothingSelected);
        }
        Ok(())
    }
}

/// Whether many events may be changed.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Consent {
    /// Do not ask. Without a terminal to ask on, many events are changed only with this.
    #[arg(long)]
    yes: bool,
    /// Only count, and change nothing.
    #[arg(long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,
}

impl Consent {
    /// Asks for an action, said as in `replay 12 dead events (type OrderPlaced)`.
    pub(crate) fn ask(self, action: &str) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return Err(Failure::NeedsYes {
                action: action.to_owned(),
            });
        }
        let mut err = io::stderr().lock();
        write!(err, "This will {action}. Go on? [y/N] ")?;
        err.flush()?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        match answer.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => Ok(()),
            _ => Err(Failure::Declined),
        }
    }
}

/// How many events an action is about, and for people: `12 dead events (type OrderPlaced)`.
pub(crate) async fn count(
    admin: &Admin,
    filter: &Filter,
    what: &str,
    described: &str,
) -> Result<(u64, String), outbox::Error> {
    let matched = admin.count(filter, AT_MOST).await?;
    let mut text = output::count(matched, AT_MOST, what);
    if !described.is_empty() {
        text.push_str(&format!(" ({described})"));
    }
    Ok((matched, text))
}
