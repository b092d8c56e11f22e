//! The `outbox` command. Its manual is `outbox --help`.

mod any_pool;
mod bench;
mod dead;
mod demo;
mod events;
mod failure;
mod keys;
mod migrate;
mod moment;
mod output;
mod progress;
mod purge;
mod selection;
mod status;
mod target;
mod view;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::failure::Failure;

/// The transactional outbox, from the command line.
///
/// An application writes events into a table of its own database, in the same transaction as its data; they are
/// delivered after the commit. This command looks after those tables.
#[derive(Debug, Parser)]
#[command(name = "outbox", version, after_help = EXAMPLES, after_long_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  outbox demo                                          see it work, on a temporary SQLite file
  export OUTBOX_DATABASE_URL=postgres://app@localhost/shop
  outbox migrate up                                    create the tables
  outbox status                                        how much there is to do
  outbox events list --status new,retry --since 15m    what is waiting
  outbox dead list --type OrderPlaced                  what was given up
  outbox dead replay --type OrderPlaced --yes          deliver it again
  outbox keys list                                     which aggregates wait, in ordered delivery
  outbox purge --older-than 7d --yes                   delete what is long finished
  outbox bench drain                                   how fast it is, beside bare SQL

Exit codes: 0 done; 1 failed, the reason is on standard error; 2 wrong arguments.
Every command that connects takes --database URL, or the environment variable OUTBOX_DATABASE_URL; demo and bench take the
argument only, so that no load is put on a database by accident.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Create, upgrade, drop or print the tables.
    #[command(subcommand)]
    Migrate(migrate::Command),
    Status(status::Show),
    /// List, show and discard events, whatever their status.
    #[command(subcommand)]
    Events(events::Command),
    /// List, show, replay and discard dead events: those that were given up.
    #[command(subcommand)]
    Dead(dead::Command),
    /// See and unblock keys: aggregates whose events wait, because one of them failed or is dead.
    #[command(subcommand)]
    Keys(keys::Command),
    Purge(purge::Purge),
    Demo(demo::Demo),
    #[command(hide = true)]
    DemoNode(demo::node::Node),
    Bench(bench::Bench),
    #[command(hide = true)]
    BenchNode(bench::node::Node),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return failure::usage(&error),
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match cli.command {
            Command::Migrate(command) => command.run().await,
            Command::Status(show) => show.run().await,
            Command::Events(command) => command.run().await,
            Command::Dead(command) => command.run().await,
            Command::Keys(command) => command.run().await,
            Command::Purge(purge) => purge.run().await,
            Command::Demo(demo) => demo.run().await,
            Command::DemoNode(node) => node.run().await,
            Command::Bench(bench) => bench.run().await,
            Command::BenchNode(node) => node.run().await,
        }
    })
}
