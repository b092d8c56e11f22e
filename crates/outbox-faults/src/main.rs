//! The fault harness: runs the real engine in processes of its own, on real databases, makes things go wrong, and checks
//! what was delivered against what was committed. Its manual is `outbox-faults --help`.

mod clock;
mod crew;
mod failure;
mod fault;
mod inject;
mod ledger;
mod mode;
mod node;
mod output;
mod place;
mod proxy;
mod rng;
mod run;
mod scene;
mod server;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

use crate::failure::Failure;
use crate::fault::{Fault, Kind};

/// Kills, cuts and stalls an outbox, and checks that nothing is lost.
///
/// Real processes publish and deliver on real databases while something goes wrong. What they mean to do and what they do
/// is written to logs; in the end the logs and the tables must agree: nothing lost, nothing delivered that was rolled back,
/// no write of a stale owner accepted, no more duplicates than there were faults to excuse them, everything drained in time.
#[derive(Debug, Parser)]
#[command(name = "outbox-faults", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
    /// Say which faults there are, and what they do.
    List,
    #[command(hide = true)]
    Node,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match start(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn start(cli: Cli) -> Result<(), Failure> {
    let level = match cli.command {
        Command::Node => "warn",
        _ => "error",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| level.into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    if let Command::Run(run) = &cli.command {
        run.enter_namespace()?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match cli.command {
            Command::Run(run) => run.run().await,
            Command::Node => node::run().await,
            Command::List => {
                list();
                Ok(())
            }
        }
    })
}

fn list() {
    for fault in Fault::value_variants() {
        let databases: Vec<_> = Kind::ALL
            .iter()
            .filter(|kind| fault.applies_to(**kind))
            .map(|kind| kind.as_str())
            .collect();
        println!("{fault:<20} {}  ({})", fault.what_happens(), databases.join(", "));
    }
}
