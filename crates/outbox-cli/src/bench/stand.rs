//! What every scenario needs: the tables, a way to fill and empty them, to wait for the end, and to report.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox::Outbox;
use sqlx::Pool;

use super::Settings;
use super::bare::{self, BareDatabase, Fill, Statements};
use super::place::{Place, Tables, script};
use super::produce::FrameworkWrite;
use super::report::Finding;
use crate::failure::Failure;
use crate::output::{self, digits};
use crate::progress::Progress;

/// Rows per statement of a load.
const FILL_STEP: u64 = 10_000;
/// How often it is asked whether the last events are settled.
const GLANCE: Duration = Duration::from_millis(2);
/// What may be left to clean up: some of it is of others.
const LITTLE: i64 = 20;
/// How long nothing may happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Nodes do not hold more than this: what lies before is settled when what lies after it is.
const AT_THE_END: i64 = 10_000;

/// A database that is being measured.
#[derive(Debug)]
pub(crate) struct Stand<'a, D: BareDatabase> {
    pub(crate) settings: &'a Settings,
    pub(crate) place: &'a Place,
    /// For whatever is not measured.
    pub(crate) pool: Pool<D>,
    pub(crate) progress: Progress,
    pub(crate) findings: &'a mut Vec<Finding>,
}

/// A load to be delivered, or to be purged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) events: u64,
    pub(crate) keys: i64,
    /// Delivered long ago.
    pub(crate) done: bool,
}

impl Load {
    /// Every event is about something else.
    pub(crate) fn pending(events: u64) -> Self {
        Self {
            events,
            keys: i64::MAX,
            done: false,
        }
    }
}

impl<'a, D: BareDatabase> Stand<'a, D> {
    pub(crate) fn new(
        settings: &'a Settings,
        place: &'a Place,
        pool: &Pool<D>,
        findings: &'a mut Vec<Finding>,
    ) -> Self {
        Self {
            settings,
            place,
            pool: bare::pool(pool, 4),
            progress: Progress::new(),
            findings,
        }
    }

    pub(crate) fn finding(&self, scenario: &'static str, variant: impl Into<String>, events: u64) -> Finding {
        Finding::new(scenario, variant, self.place.pool.database().as_str(), events)
    }

    pub(crate) fn report(&mut self, finding: Finding) -> Result<(), Failure> {
        if self.settings.json {
            let line = serde_json::to_string(&finding).map_err(std::io::Error::other)?;
            output::line(line)?;
        } else {
            self.progress.say(finding.summary());
        }
        self.findings.push(finding);
        Ok(())
    }

    pub(crate) fn statements(&self, tables: &Tables) -> Arc<Statements> {
        Arc::new(D::bare_statements(tables, self.settings.batch))
    }

    /// A producer's transaction with the framework.
    pub(crate) fn writer(&self, outbox: &Outbox<D>, pool: Pool<D>, tables: &Tables) -> Arc<FrameworkWrite<D>> {
        Arc::new(FrameworkWrite {
            outbox: outbox.clone(),
            pool,
            sql: self.statements(tables),
            payload: Arc::clone(&self.settings.payload),
        })
    }

    /// Empties the tables, and lets the database come to rest.
    pub(crate) async fn empty(&self, tables: &Tables) -> Result<(), Failure> {
        script(&self.pool, D::empty(tables)).await?;
        self.tidy(tables).await
    }

    pub(crate) async fn tidy(&self, tables: &Tables) -> Result<(), Failure> {
        // First: it writes to pages itself.
        if let Some(left) = D::LEFT_TO_TIDY {
            let patience = Instant::now() + PATIENCE;
            while Instant::now() < patience
                && D::number(&self.pool, left.to_owned())
                    .await
                    .is_ok_and(|left| left > LITTLE)
            {
                tokio::time::sleep(GLANCE).await;
            }
        }
        for sql in D::tidy(tables) {
            match script(&self.pool, sql).await {
                Err(error) if error.as_database_error().is_none() => return Err(error.into()),
                // Refused, or done.
                _ => {}
            }
        }
        Ok(())
    }

    /// Adds events, made in the database itself. Returns the last seq.
    pub(crate) async fn fill(&mut self, tables: &Tables, load: Load) -> Result<i64, Failure> {
        let sql = self.statements(tables);
        let mut connection = self.pool.acquire().await?;
        let before = self.last_seq(tables).await?;
        for start in (0..load.events).step_by(FILL_STEP as usize) {
            let count = FILL_STEP.min(load.events - start);
            self.progress.show(format_args!(
                "writing {} of {} events",
                digits(start),
                digits(load.events)
            ));
            let fill = Fill {
                first: before + 1 + start.cast_signed(),
                last: before + (start + count).cast_signed(),
                keys: load.keys,
                payload: &self.settings.payload,
                done: load.done,
            };
            D::fill(&mut connection, &sql, fill).await?;
        }
        drop(connection);
        self.tidy(tables).await?;
        self.last_seq(tables).await
    }

    pub(crate) async fn last_seq(&self, tables: &Tables) -> Result<i64, Failure> {
        Ok(D::number(
            &self.pool,
            format!("select coalesce(max(seq), 0) from {}", tables.events),
        )
        .await?)
    }

    pub(crate) async fn count(&self, tables: &Tables, condition: &str) -> Result<u64, Failure> {
        let sql = format!("select count(*) from {} where {condition}", tables.events);
        Ok(D::number(&self.pool, sql).await?.cast_unsigned())
    }

    /// Returns when no event up to this seq is pending; the instant is from before it was made sure of.
    pub(crate) async fn settled(
        &self,
        scenario: &'static str,
        tables: &Tables,
        sql: &Statements,
        last: i64,
    ) -> Result<Instant, Failure> {
        let patience = Instant::now() + PATIENCE;
        loop {
            if D::pending_beyond(&self.pool, sql, last - AT_THE_END).await? == 0 {
                let settled = Instant::now();
                if D::pending_beyond(&self.pool, sql, 0).await? == 0 {
                    return Ok(settled);
                }
            }
            if Instant::now() > patience {
                return Err(Failure::BenchFailed {
                    scenario,
                    complaint: format!("{} events stay pending", self.count(tables, "status in (0, 2)").await?),
                });
            }
            tokio::time::sleep(GLANCE).await;
        }
    }

    /// So many events must be done, and none anything else.
    pub(crate) async fn check(&self, scenario: &'static str, tables: &Tables, done: u64) -> Result<(), Failure> {
        let found = self.count(tables, "status = 1").await?;
        let others = self.count(tables, "status <> 1").await?;
        if found == done && others == 0 {
            return Ok(());
        }
        let complaint = format!("of {done} events {found} are done, and {others} are something else");
        Err(Failure::BenchFailed { scenario, complaint })
    }

    /// Runs `work`, and shows meanwhile how far it is.
    pub(crate) async fn watch<T>(
        &mut self,
        label: &str,
        events: u64,
        done: impl Fn() -> u64,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = std::pin::pin!(work);
        let mut ticks = tokio::time::interval(Duration::from_millis(200));
        loop {
            tokio::select! {
                result = &mut work => return result,
                _ = ticks.tick() => self.progress.show(how_far(label, done(), events)),
            }
        }
    }
}

pub(crate) fn how_far(label: &str, done: u64, events: u64) -> String {
    format!("{label}: {} of {} events", digits(done), digits(events))
}

/// Per second.
pub(crate) fn rate(events: u64, took: Duration) -> f64 {
    events as f64 / took.as_secs_f64()
}
