//! `outbox-faults run`.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::failure::Failure;
use crate::fault::Fault;
use crate::ledger::with_kind;
use crate::mode::Mode;
use crate::output::{self, Line, progress};
use crate::place::{Place, Wanted};
use crate::scene::{Plan, Scene, Verdict};

/// Set once the harness has mounts of its own.
const NAMESPACE: &str = "OUTBOX_FAULTS_NAMESPACE";

/// Whether disks can be mounted that only the harness sees.
pub(crate) fn has_namespace() -> bool {
    std::env::var_os(NAMESPACE).is_some()
}

/// Make things go wrong, and check what was delivered against what was committed.
///
/// Without arguments: every fault, on SQLite, PostgreSQL and MariaDB, in every mode, one seed each. The databases are started
/// for this alone, on ports and in temporary directories of their own, and run side by side; the seeds of a database run one
/// after the other. Exit code 1 if an invariant broke; the logs of that run are kept.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Run {
    /// sqlite, postgres, mariadb: each started for this; or the URL of a PostgreSQL or MariaDB server, on which databases
    /// are created and dropped. Can be repeated. Default: the first three.
    #[arg(long, value_name = "NAME|URL")]
    database: Vec<String>,
    /// Only this fault; see `outbox-faults list`. Can be repeated. Default: all.
    #[arg(long, value_name = "NAME")]
    fault: Vec<Fault>,
    /// Only this mode. Can be repeated. Default: all.
    #[arg(long, value_name = "MODE")]
    mode: Vec<Mode>,
    /// How many seeds, from 1 or from --seed on.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed: the run of a seed is always the same plan.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// How long things go wrong, in each run.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Print an object per line: {fault, database, mode, runs, faults, committed, delivered, duplicates, lost, phantom, out_of_order, stale_writes, stale_refused, unknown, dead, stalls, recovery_ms, note, failed}.
    #[arg(long)]
    json: bool,
    /// Make the engine wrong in this way, to see whether the harness notices.
    #[arg(long, value_name = "WAY", hide = true)]
    broken: Option<String>,
    /// With held-transaction: hold none. What is left is the error of the measurement.
    #[arg(long, hide = true)]
    placebo: bool,
}

const EXAMPLES: &str = "\
Examples:
  outbox-faults run
  outbox-faults run --fault kill-in-settle --database postgres --seeds 100
  outbox-faults run --fault worker-stalled --seed 17                     the run that failed, again
  outbox-faults run --fault held-transaction --seconds 60
  outbox-faults run --seeds 20 --json > faults.json";

impl Run {
    /// Small disks are mounted in a namespace of our own, where nobody else sees them and nothing is left of them, however
    /// we end. Must be called before there are threads; does not return if it has to start this program again.
    pub(crate) fn enter_namespace(&self) -> Result<(), Failure> {
        let wants_disks = self.fault.is_empty() || self.fault.contains(&Fault::DiskFull);
        if !wants_disks || has_namespace() {
            return Ok(());
        }
        let unshare = || {
            let mut command = std::process::Command::new("unshare");
            command.args(["--mount", "--propagation=private", "--"]);
            command
        };
        // Only root may, and not every root.
        let may = unshare().arg("true").stderr(std::process::Stdio::null()).status();
        if !may.is_ok_and(|status| status.success()) {
            return Ok(());
        }
        let error = unshare()
            .arg(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .env(NAMESPACE, "1")
            .exec();
        Err(error.into())
    }

    pub(crate) async fn run(self) -> Result<(), Failure> {
        let wanted = self.wanted()?;
        let directory = tempfile::Builder::new().prefix("outbox-faults-").tempdir()?;
        // The servers' users come by.
        std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let started = Instant::now();
        let lines = self.everywhere(wanted, directory.path()).await?;
        let (runs, faults): (u64, u64) = lines
            .iter()
            .fold((0, 0), |(runs, faults), line| (runs + line.runs, faults + line.faults));
        progress(format_args!(
            "{runs} runs, {faults} faults in {} s",
            started.elapsed().as_secs()
        ));
        if !self.json {
            println!("{}", output::table(&lines));
        }
        if lines.iter().any(|line| !line.failed.is_empty()) {
            // What is left in it tells why.
            let _ = directory.keep();
            return Err(Failure::Broken);
        }
        Ok(())
    }

    fn wanted(&self) -> Result<Vec<Wanted>, Failure> {
        let usual = ["sqlite", "postgres", "mariadb"].map(str::to_owned);
        let given = if self.database.is_empty() {
            &usual[..]
        } else {
            &self.database
        };
        let wanted = given.iter().map(|given| Wanted::parse(given));
        let wanted: Vec<Wanted> = wanted.collect::<Result<_, _>>()?;
        for fault in &self.fault {
            if !wanted.iter().any(|wanted| fault.applies_to(wanted.kind())) {
                return Err(Failure::NothingToDo { fault: *fault });
            }
        }
        Ok(wanted)
    }

    /// All databases, side by side: most of the time is spent waiting.
    async fn everywhere(&self, wanted: Vec<Wanted>, directory: &Path) -> Result<Vec<Line>, Failure> {
        let mut databases = JoinSet::new();
        for (number, wanted) in wanted.into_iter().enumerate() {
            let run = self.clone();
            let directory = directory.join(number.to_string());
            databases.spawn(async move { run.on(&wanted, directory).await });
        }
        let mut lines = Vec::new();
        let mut terminate = signal(SignalKind::terminate())?;
        loop {
            let done = tokio::select! {
                done = databases.join_next() => done.map(|done| done.map_err(|error| std::io::Error::other(error).into())),
                _ = tokio::signal::ctrl_c() => Some(Ok(Err(Failure::Interrupted))),
                _ = terminate.recv() => Some(Ok(Err(Failure::Interrupted))),
            };
            match done {
                None => break,
                Some(Ok(Ok(done))) => lines.extend(done),
                Some(Ok(Err(failure)) | Err(failure)) => {
                    // Nodes and servers end before the directory goes that they work in.
                    databases.shutdown().await;
                    return Err(failure);
                }
            }
        }
        let faults = Fault::value_variants();
        lines.sort_by_key(|line| {
            let fault = faults.iter().position(|fault| *fault == line.fault);
            (fault, line.database.as_str(), line.mode.as_str())
        });
        Ok(lines)
    }

    async fn on(&self, wanted: &Wanted, directory: PathBuf) -> Result<Vec<Line>, Failure> {
        std::fs::create_dir(&directory)?;
        let mut place = Place::open(wanted, &directory).await?;
        let faults = if self.fault.is_empty() {
            Fault::value_variants()
        } else {
            &self.fault
        };
        let modes = if self.mode.is_empty() { Mode::ALL } else { &self.mode };
        let mut lines = Vec::new();
        for fault in faults.iter().filter(|fault| fault.applies_to(wanted.kind())) {
            if let Some(obstacle) = wanted.obstacle(*fault) {
                progress(format_args!("{fault} on {}: left out, it {obstacle}", wanted.kind()));
                continue;
            }
            for mode in modes {
                let mut line = Line::new(*fault, wanted.kind(), *mode);
                for seed in self.seed..self.seed + self.seeds {
                    let plan = Plan {
                        fault: *fault,
                        mode: *mode,
                        seed,
                        time: Duration::from_secs(self.seconds),
                        broken: self.broken.clone(),
                        placebo: self.placebo,
                    };
                    self.one(plan, &mut place, &directory, &mut line).await?;
                }
                if self.json {
                    output::json(&line)?;
                }
                lines.push(line);
            }
        }
        Ok(lines)
    }

    async fn one(&self, plan: Plan, place: &mut Place, directory: &Path, line: &mut Line) -> Result<(), Failure> {
        let (fault, mode, seed, kind) = (plan.fault, plan.mode, plan.seed, place.kind);
        let directory = directory.join(format!("{fault}-{mode}-{seed}"));
        let kept = directory.display().to_string();
        let started = Instant::now();
        let verdict = match play(plan, place, directory).await {
            Ok(verdict) => verdict,
            // A node that dies by itself, or hangs, breaks more than an invariant; and one run must not end all others.
            Err(failure) => {
                place.heal().await?;
                Verdict {
                    broken: vec![failure.to_string()],
                    ..Verdict::default()
                }
            }
        };
        let how = if verdict.broken.is_empty() { "ok" } else { "FAILED" };
        progress(format_args!(
            "{how:<6} {fault} {kind} {mode} seed {seed}: {} committed, {} faults, {} duplicates, recovered in {} ms, {:.1} s",
            verdict.report.committed,
            verdict.faults,
            verdict.report.duplicates,
            verdict.recovery.as_millis(),
            started.elapsed().as_secs_f64(),
        ));
        for broken in &verdict.broken {
            progress(format_args!("       {broken}"));
        }
        line.add(seed, verdict, kept);
        Ok(())
    }
}

async fn play(plan: Plan, place: &mut Place, directory: PathBuf) -> Result<Verdict, Failure> {
    with_kind!(place.kind, D => Scene::<D>::set(plan, place, directory).await?.play().await)
}
