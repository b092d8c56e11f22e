//! `outbox purge`: old finished events go.

use std::time::Duration;

use chrono::Utc;
use outbox::store::{Filter, Status};
use outbox::{Admin, PurgePolicy};
use serde_json::json;

use crate::failure::Failure;
use crate::moment::{parse_age, span};
use crate::output;
use crate::progress::Progress;
use crate::selection::{AT_MOST, Consent};
use crate::target::Target;

/// Delete delivered and dead events that were finished long enough ago.
///
/// What an outbox does by itself, once and now. Pending events are never purged. It first says how many events it may
/// delete, and asks, or needs --yes where there is no terminal.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Purge {
    #[command(flatten)]
    target: Target,
    /// Finished longer ago than this: 90s, 15m, 2h, 7d, 4w.
    #[arg(long, value_name = "AGE", value_parser = parse_age)]
    older_than: Duration,
    /// Of these statuses: done, dead.
    #[arg(long, value_name = "STATUS", value_delimiter = ',', value_parser = parse_finished, default_value = "done,dead")]
    status: Vec<Status>,
    /// Only of these types; may be repeated.
    #[arg(long = "type", value_name = "TYPE")]
    event_types: Vec<String>,
    #[command(flatten)]
    consent: Consent,
    /// Print JSON: {database, table, at_most, purged, dry_run}; at_most is how many were old enough when it began.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  outbox purge --older-than 7d --dry-run
  outbox purge --older-than 7d --yes
  outbox purge --older-than 12h --status done --type OrderPlaced --type OrderPaid --yes";

fn parse_finished(name: &str) -> Result<Status, String> {
    let found = [Status::Done, Status::Dead]
        .into_iter()
        .find(|status| status.as_str() == name);
    found.ok_or_else(|| format!("{name:?} cannot be purged: use done or dead"))
}

impl Purge {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let opened = self.target.open().await?;
        let at_most = self.count(&opened.admin).await?;
        let action = format!("purge up to {}", self.describe(at_most));
        let purged = if at_most == 0 || self.consent.dry_run {
            0
        } else {
            self.consent.ask(&action)?;
            let policy = PurgePolicy::keep(self.older_than)
                .statuses(self.status.iter().copied())
                .event_types(self.event_types.iter().cloned());
            let mut progress = Progress::new();
            let show = |so_far| progress.show(format_args!("purged {}", output::digits(so_far)));
            opened.admin.purge(&policy, show).await?
        };
        if self.json {
            output::json(&json!({
                "database": opened.database, "table": self.target.table.as_str(),
                "at_most": at_most, "purged": purged, "dry_run": self.consent.dry_run,
            }))?;
        } else if self.consent.dry_run {
            output::line(format_args!("would {action}"))?;
        } else {
            output::line(format_args!("purged {}", output::count(purged, u64::MAX, "event")))?;
        }
        Ok(())
    }

    /// Events of that kind which were written that long ago. Those that were finished later are among them, and stay.
    async fn count(&self, admin: &Admin) -> Result<u64, outbox::Error> {
        let types: Vec<Option<&String>> = match &*self.event_types {
            [] => vec![None],
            types => types.iter().map(Some).collect(),
        };
        let mut filter = Filter::all();
        filter.statuses.clone_from(&self.status);
        filter.created_until = Some(Utc::now() - self.older_than);
        let mut total = 0;
        for event_type in types {
            filter.event_type = event_type.cloned();
            total += admin.count(&filter, AT_MOST).await?;
        }
        Ok(total)
    }

    /// `12 done or dead events (type OrderPlaced) written longer than 7 d ago`.
    fn describe(&self, at_most: u64) -> String {
        let statuses: Vec<&str> = self.status.iter().map(|status| status.as_str()).collect();
        let mut text = output::count(at_most, AT_MOST, &format!("{} event", statuses.join(" or ")));
        if !self.event_types.is_empty() {
            text.push_str(&format!(
                " (type {})",
                output::printable(&self.event_types.join(" or "))
            ));
        }
        format!("{text} written more than {} ago", span(self.older_than))
    }
}
