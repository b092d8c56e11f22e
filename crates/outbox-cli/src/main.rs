//! The `outbox` command. Its manual is `outbox --help`.

mod demo;
mod failure;
mod migrate;
mod output;
mod target;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::failure::Failure;

/// The transactional outbox, from the command line.
///
/// An application writes events into a table of its own database, in the same transaction as its data; they are
/// delivered after the commit. This command looks after those tables.
#[derive(Debug, Parser)]
#[command(name = "outbox", version, after_help = EXIT_CODES, after_long_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 done; 1 failed, the reason is on standard error; 2 wrong arguments.
Every command that connects takes --database URL, or the environment variable OUTBOX_DATABASE_URL.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Create, upgrade, drop or print the tables.
    #[command(subcommand)]
    Migrate(migrate::Command),
    /// Run a small shop which publishes, delivers, and checks its own result.
    Demo(demo::Demo),
    #[command(hide = true)]
    DemoNode(demo::node::Node),
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
            Command::Demo(demo) => demo.run().await,
            Command::DemoNode(node) => node.run().await,
        }
    })
}
