//! A transaction is held open: the rate stays what it is.
//!
//! No machine is the same for a minute. So a second node drains a second database of the same server, which that transaction
//! does not concern; the two take turns, and what counts is the rate of one beside that of the other.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use outbox::TableName;
use sqlx::Pool;

use super::volume::{Bulk, DRAIN_LIMIT, Deliveries, load};
use crate::crew::Crew;
use crate::failure::Failure;
use crate::ledger::{self, Ledger, connect};
use crate::scene::{Injected, Scene};

/// Events that are loaded and drained at once.
const CHUNK: u64 = 10_000;
/// Of so many chunks, the last is the other database's.
const TURNS: usize = 4;
/// From here on a transaction is held for long enough to judge the rate; before it, only a collapse is noticed.
const LONG: Duration = Duration::from_secs(30);

impl<D: Ledger> Scene<'_, D> {
    pub(crate) async fn transaction_is_held(&mut self) -> Result<Injected, Failure> {
        let config = self.node(0, &self.url);
        self.crew.start(config, None)?;
        self.crew.all_ready().await?;
        let mut here = Side {
            pool: self.pool.clone(),
            log: self.own_log(),
            loaded: 0,
            deliveries: Deliveries::of(&self.crew.logs[0])?,
        };
        let (database, url) = self.place.database(None).await?;
        let directory = self.directory.join("beside");
        std::fs::create_dir_all(&directory)?;
        let mut crew = Crew::new(&directory, None);
        let pool = connect::<D>(&url, 2).await?;
        outbox::migrate::up(&pool, &TableName::default()).await?;
        ledger::create(&pool, self.workload.keys).await?;
        crew.start(self.node(0, &url), None)?;
        crew.all_ready().await?;
        let mut beside = Side {
            pool,
            log: directory.join("harness.log"),
            loaded: 0,
            deliveries: Deliveries::of(&crew.logs[0])?,
        };

        // What is compiled, cached and planned is so from here on.
        self.rates(Duration::ZERO, &mut here, &mut beside).await?;
        let before = self.rates(self.plan.time / 4, &mut here, &mut beside).await?;
        let mut connection = self.pool.acquire().await?.detach();
        let hold = "begin isolation level repeatable read; select count(*) from faults_key";
        // A transaction that has read nothing holds nothing back.
        let begin = if self.plan.placebo { "begin" } else { hold };
        D::script(&mut connection, begin.to_owned()).await?;
        let held = self.rates(self.plan.time, &mut here, &mut beside).await?;
        D::script(&mut connection, "commit".to_owned()).await?;

        crew.end().await?;
        beside.pool.close().await;
        self.place.remove(&database, None).await?;
        std::fs::remove_dir_all(&directory)?;
        let least = if self.plan.time >= LONG { 0.9 } else { 0.5 };
        let mut broken = Vec::new();
        if held.ratio < least {
            broken.push(format!(
                "the rate falls to {:.2} of what it is, less than {least}",
                held.ratio
            ));
        }
        Ok(Injected {
            faults: 1,
            nodes_hit: 0,
            broken,
            note: Some(format!(
                "{:.0}/s with a transaction held for {:?}, {:.0}/s beside it without: {:.2} (before: {:.2})",
                held.here, self.plan.time, held.beside, held.ratio, before.ratio
            )),
        })
    }

    /// Loads and drains for so long, at least once each, in turns.
    async fn rates(&self, time: Duration, here: &mut Side<D>, beside: &mut Side<D>) -> Result<Rates, Failure> {
        let started = Instant::now();
        let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        while ratios.is_empty() || started.elapsed() < time {
            let mut rates = Vec::new();
            for _ in 1..TURNS {
                rates.push(self.drain(here).await?);
            }
            let (one, other) = (median(rates), self.drain(beside).await?);
            ratios.push(one / other);
            ours.push(one);
            theirs.push(other);
        }
        Ok(Rates {
            here: median(ours),
            beside: median(theirs),
            ratio: median(ratios),
        })
    }

    /// Events per second, without the loading.
    async fn drain(&self, side: &mut Side<D>) -> Result<f64, Failure> {
        let bulk = Bulk {
            pool: &side.pool,
            kind: self.place.kind,
            keys: self.workload.keys,
            log: &side.log,
        };
        load(&bulk, side.loaded, CHUNK).await?;
        side.loaded += CHUNK;
        let committed = Instant::now();
        while side.deliveries.look()? < side.loaded {
            if committed.elapsed() > DRAIN_LIMIT {
                return Err(Failure::too_slow("draining", DRAIN_LIMIT));
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(CHUNK as f64 / committed.elapsed().as_secs_f64())
    }
}

/// A database, and the node that drains it.
#[derive(Debug)]
struct Side<D: Ledger> {
    pool: Pool<D>,
    log: PathBuf,
    loaded: u64,
    deliveries: Deliveries,
}

/// Events per second, and what one was of the other, turn by turn: the medians.
#[derive(Clone, Copy, Debug)]
struct Rates {
    here: f64,
    beside: f64,
    ratio: f64,
}

/// The one in the middle of at least one.
fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_unstable_by(f64::total_cmp);
    rates[rates.len() / 2]
}
