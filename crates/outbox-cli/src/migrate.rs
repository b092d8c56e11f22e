//! `outbox migrate`: the tables of an outbox and their versions.

use outbox::migrate::{LATEST, Step};
use outbox::store::{Filter, Status, Store};
use serde_json::json;

use crate::failure::Failure;
use crate::output;
use crate::target::Target;

/// Create, upgrade, drop or print the tables.
///
/// The migrations are remembered in a table of their own, next to the event table, and never touch those of the
/// application. They may be run by many processes at once: one does the work, the others find it done.
#[derive(Debug, clap::Subcommand)]
#[command(after_long_help = EXAMPLES)]
pub(crate) enum Command {
    /// Create the tables, or bring them up to date.
    ///
    /// A SQLite file that is not there is created.
    Up(Up),
    /// Go back to an older version of the tables, or drop them.
    ///
    /// Going back to version 0 drops the tables with every event in them: it needs --yes, and says how many events
    /// that would be without it.
    Down(Down),
    /// Show which migrations have run.
    ///
    /// Exits with 0 whether or not something is missing; ask --json for up_to_date.
    Status(Show),
    /// Print the SQL which creates the tables, for a migration tool of your own.
    ///
    /// Does not connect: only the scheme of the URL matters. The SQL also notes its version, so that the library and
    /// `outbox migrate status` find the tables up to date.
    Print(Print),
}

const EXAMPLES: &str = "\
Examples:
  export OUTBOX_DATABASE_URL=postgres://app@localhost/shop
  outbox migrate up
  outbox migrate status --json
  outbox migrate down --to 0 --yes

  outbox migrate up --database sqlite://shop.db --table my_events
  outbox migrate print --database postgres: --table my_events | psql -v ON_ERROR_STOP=1 shop
  outbox migrate print --database mariadb: | mariadb shop";

#[derive(Debug, clap::Args)]
pub(crate) struct Up {
    #[command(flatten)]
    target: Target,
    /// Print JSON: {database, table, version, applied}.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Down {
    #[command(flatten)]
    target: Target,
    /// The version to go back to; 0 drops the tables. Default: one step back.
    #[arg(long, value_name = "VERSION", value_parser = clap::value_parser!(i64).range(0..))]
    to: Option<i64>,
    /// Do it although events are lost.
    #[arg(long)]
    yes: bool,
    /// Print JSON: {database, table, version, undone}.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    #[command(flatten)]
    target: Target,
    /// Print JSON: {database, table, version, latest, up_to_date, migrations: [{version, name, applied_at}]}.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Print {
    #[command(flatten)]
    target: Target,
}

impl Command {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Up(up) => up.run().await,
            Self::Down(down) => down.run().await,
            Self::Status(show) => show.run().await,
            Self::Print(print) => print.run(),
        }
    }
}

impl Up {
    async fn run(self) -> Result<(), Failure> {
        let table = &self.target.table;
        let pool = self.target.connect_or_create().await?;
        let applied = pool.migrate_up(table).await?;
        let version = pool.schema_version(table).await?;
        let database = pool.database().as_str();
        if self.json {
            output::json(&json!({
                "database": database, "table": table.as_str(), "version": version, "applied": applied,
            }))?;
        } else if applied.is_empty() {
            output::line(format_args!("{table} on {database} was up to date (version {version})"))?;
        } else {
            output::line(format_args!(
                "{table} on {database} is now at version {version} (applied {})",
                list(&applied)
            ))?;
        }
        Ok(())
    }
}

impl Down {
    async fn run(self) -> Result<(), Failure> {
        let table = &self.target.table;
        let pool = self.target.connect().await?;
        let database = pool.database().as_str();
        let found = pool.schema_version(table).await?;
        if found > LATEST {
            return Err(Failure::TablesTooNew {
                table: table.to_string(),
                found,
                known: LATEST,
            });
        }
        let to = self.to.unwrap_or(found - 1).max(0);
        let undone = if to < found {
            if to == 0 && !self.yes {
                return Err(would_lose_events(&*pool.store(table), table.as_str()).await?);
            }
            pool.migrate_down(table, to).await?
        } else {
            Vec::new()
        };
        let version = found.min(to);
        if self.json {
            output::json(&json!({
                "database": database, "table": table.as_str(), "version": version, "undone": undone,
            }))?;
        } else if undone.is_empty() {
            output::line(format_args!(
                "{table} on {database} is at version {version}: nothing to undo"
            ))?;
        } else if version == 0 {
            output::line(format_args!(
                "{table} on {database} is gone, with its companions (undone {})",
                list(&undone)
            ))?;
        } else {
            output::line(format_args!(
                "{table} on {database} is now at version {version} (undone {})",
                list(&undone)
            ))?;
        }
        Ok(())
    }
}

/// What dropping the tables would cost.
async fn would_lose_events(store: &dyn Store, table: &str) -> Result<Failure, outbox::Error> {
    // Far enough to be a warning, and near enough to be counted in a moment.
    const AT_MOST: u64 = 1_000_000;
    let mut pending = Filter::all();
    pending.statuses = vec![Status::New, Status::Retry];
    let events = store.count(&Filter::all(), AT_MOST).await?;
    let pending = store.count(&pending, AT_MOST).await?;
    Ok(Failure::WouldLoseEvents {
        table: table.to_owned(),
        events: output::count(events, AT_MOST, "event"),
        pending: output::digits(pending),
    })
}

impl Show {
    async fn run(self) -> Result<(), Failure> {
        let table = &self.target.table;
        let pool = self.target.connect().await?;
        let steps = pool.migrate_status(table).await?;
        let version = pool.schema_version(table).await?;
        let database = pool.database().as_str();
        let up_to_date = version >= LATEST && steps.iter().all(|step| step.applied_at.is_some());
        if self.json {
            output::json(&json!({
                "database": database, "table": table.as_str(), "version": version, "latest": LATEST,
                "up_to_date": up_to_date, "migrations": steps,
            }))?;
            return Ok(());
        }
        output::table(
            ["VERSION", "NAME", "APPLIED"],
            &steps.iter().map(cells).collect::<Vec<_>>(),
        )?;
        output::line("")?;
        if version > LATEST {
            output::line(format_args!(
                "{table} on {database} is at version {version}, newer than this command knows ({LATEST})"
            ))?;
        } else if up_to_date {
            output::line(format_args!("{table} on {database} is up to date (version {version})"))?;
        } else if version == 0 {
            output::line(format_args!(
                "{table} on {database} does not exist: run `outbox migrate up`"
            ))?;
        } else {
            output::line(format_args!(
                "{table} on {database} is at version {version} of {LATEST}: run `outbox migrate up`"
            ))?;
        }
        Ok(())
    }
}

fn cells(step: &Step) -> [String; 3] {
    let applied = match step.applied_at {
        Some(at) => at.format("%Y-%m-%d %H:%M:%S UTC").to_string(),
        None => "no".to_owned(),
    };
    [step.version.to_string(), step.name.to_owned(), applied]
}

impl Print {
    fn run(self) -> Result<(), Failure> {
        output::text(&self.target.kind()?.print_migrations(&self.target.table))?;
        Ok(())
    }
}

/// `1, 2`.
fn list(versions: &[i64]) -> String {
    let versions: Vec<String> = versions.iter().map(i64::to_string).collect();
    versions.join(", ")
}
