//! `outbox status`: how much there is to do.

use outbox::store::Status;
use serde_json::json;

use crate::failure::Failure;
use crate::moment::span;
use crate::output::{self, count, digits, printable};
use crate::target::Target;

/// Counting ends here, per status: so asking is cheap, however long the backlog is.
const AT_MOST: u64 = 100_000;

/// Show how much there is to do: pending and dead events by type, and how long the oldest has been waiting.
///
/// Cheap on a table of any size: counts end at 100,000. Delivered events are not counted.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Show {
    #[command(flatten)]
    target: Target,
    /// Print JSON: {database, table, version, new, retry, dead, pending, at_least, oldest_lag_s, counts: [{status, event_type, count}]}.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  outbox status --database postgres://app@localhost/shop
  outbox status --json | jq '.pending, .oldest_lag_s'";

impl Show {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let opened = self.target.open().await?;
        let stats = opened.admin.stats(AT_MOST).await?;
        let [new, retry, dead] = [Status::New, Status::Retry, Status::Dead].map(|status| stats.total(status));
        let (table, database, version) = (&self.target.table, opened.database, opened.version);
        if self.json {
            output::json(&json!({
                "database": database, "table": table.as_str(), "version": version,
                "new": new, "retry": retry, "dead": dead, "pending": new + retry,
                "at_least": stats.at_least,
                "oldest_lag_s": stats.oldest_lag.map(|lag| lag.as_secs_f64()),
                "counts": stats.counts,
            }))?;
            return Ok(());
        }
        output::line(format_args!("{table} on {database}, version {version}\n"))?;
        if !stats.counts.is_empty() {
            let rows: Vec<_> = stats
                .counts
                .iter()
                .map(|count| {
                    let event_type = printable(&count.event_type);
                    [count.status.to_string(), event_type, digits(count.count)]
                })
                .collect();
            output::table(["STATUS", "TYPE", "EVENTS"], &rows)?;
            output::line("")?;
        }
        // The bound holds for pending and for dead events, each.
        let bound = if stats.at_least { AT_MOST } else { u64::MAX };
        output::line(format_args!(
            "{} pending, {} dead",
            count(new + retry, bound, "event"),
            count(dead, bound, "event")
        ))?;
        match stats.oldest_lag {
            Some(lag) => output::line(format_args!("the oldest has been due for {}", span(lag)))?,
            None if new + retry > 0 => output::line("none of them is due yet")?,
            None => {}
        }
        Ok(())
    }
}
