//! `drain` and `ordered`: a backlog, until all of it is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::bare::drain::BareDrain;
use super::bare::{self, BareDatabase};
use super::crew::{Crew, Task};
use super::place::Tables;
use super::report::Rates;
use super::stand::{Load, PATIENCE, Stand, how_far, rate};
use super::variant::Variant;
use crate::failure::Failure;

/// How many aggregates ordered events are about.
const KEYS: i64 = 1_000;

/// One node, beside a loop by hand; and each way of owning what is read beside the one before it.
pub(crate) async fn drain<D: BareDatabase>(stand: &mut Stand<'_, D>) -> Result<(), Failure> {
    let load = Load::pending(stand.settings.events.unwrap_or(100_000));
    let measured = beside_loops_by_hand(stand, "drain", Variant::DRAINED, load).await?;
    for (variants, measured) in Variant::DRAINED.windows(2).zip(measured.windows(2)) {
        let rates = Rates {
            limit: measured[0].framework.clone(),
            framework: measured[1].framework.clone(),
        };
        let name = format!("{}; beside {}", variants[1].name(), variants[0].name());
        let finding = stand.finding("drain", name, load.events).rates(&rates);
        stand.report(finding)?;
    }
    Ok(())
}

/// The same in order.
pub(crate) async fn ordered<D: BareDatabase>(stand: &mut Stand<'_, D>) -> Result<(), Failure> {
    let load = Load {
        keys: KEYS,
        ..Load::pending(stand.settings.events.unwrap_or(100_000))
    };
    beside_loops_by_hand(stand, "ordered", Variant::IN_ORDER, load).await?;
    Ok(())
}

async fn beside_loops_by_hand<D: BareDatabase>(
    stand: &mut Stand<'_, D>,
    scenario: &'static str,
    variants: &[Variant],
    load: Load,
) -> Result<Vec<Rates>, Failure> {
    let mut measured = vec![Rates::default(); variants.len()];
    let mut peaks = vec![None; variants.len()];
    for round in 0..stand.settings.rounds() {
        let mut turns: Vec<_> = variants.iter().zip(&mut measured).zip(&mut peaks).collect();
        // What one leaves behind, the next one meets.
        if round % 2 == 1 {
            turns.reverse();
        }
        for ((variant, rates), peak) in turns {
            rates.limit.push(by_hand(stand, scenario, *variant, load).await?);
            let backlog = Backlog::on_empty(stand, scenario, load).await?;
            let drained = backlog.drain(stand, *variant).await?;
            rates.framework.push(drained.rate);
            *peak = drained.peak_kilobytes.max(*peak);
        }
    }
    for ((variant, rates), peak) in variants.iter().zip(&measured).zip(peaks) {
        let finding = stand
            .finding(scenario, variant.name(), load.events)
            .rates(rates)
            .rss(peak);
        stand.report(finding)?;
    }
    Ok(measured)
}

async fn by_hand<D: BareDatabase>(
    stand: &mut Stand<'_, D>,
    scenario: &'static str,
    variant: Variant,
    load: Load,
) -> Result<f64, Failure> {
    let tables = &stand.place.tables;
    let backlog = Backlog::on_empty(stand, scenario, load).await?;
    let done = Arc::new(AtomicU64::new(0));
    let by_hand = Arc::new(BareDrain {
        pool: bare::pool(&stand.pool, 2),
        sql: stand.statements(tables),
        kind: variant.by_hand(),
        batch: stand.settings.batch as i64,
        done: Arc::clone(&done),
    });
    let connections = by_hand.connect().await?;
    let label = format!("{scenario}, {}, by hand", variant.name());
    let started = Instant::now();
    stand
        .watch(
            &label,
            load.events,
            || done.load(Ordering::Relaxed),
            by_hand.run(connections),
        )
        .await?;
    let took = started.elapsed();
    backlog.check(stand, variant).await?;
    Ok(rate(done.load(Ordering::Relaxed), took))
}

/// Events that wait in a table.
#[derive(Debug)]
pub(crate) struct Backlog<'a> {
    scenario: &'static str,
    tables: &'a Tables,
    events: u64,
    /// How many were done before.
    done_before: u64,
    /// The last one's seq.
    last: i64,
}

/// How a backlog was drained.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drained {
    pub(crate) rate: f64,
    /// Of the hungriest process.
    pub(crate) peak_kilobytes: Option<u64>,
}

impl<'a> Backlog<'a> {
    /// With nothing else in the table.
    pub(crate) async fn on_empty<D: BareDatabase>(
        stand: &mut Stand<'a, D>,
        scenario: &'static str,
        load: Load,
    ) -> Result<Self, Failure> {
        let tables = &stand.place.tables;
        stand.empty(tables).await?;
        Self::on_top(stand, scenario, tables, load, 0).await
    }

    /// After so many events that are done.
    pub(crate) async fn on_top<D: BareDatabase>(
        stand: &mut Stand<'a, D>,
        scenario: &'static str,
        tables: &'a Tables,
        load: Load,
        done_before: u64,
    ) -> Result<Self, Failure> {
        let last = stand.fill(tables, load).await?;
        Ok(Self {
            scenario,
            tables,
            events: load.events,
            done_before,
            last,
        })
    }

    /// Drains it with the framework, on one node that is told that there is no other: a process of its own.
    pub(crate) async fn drain<D: BareDatabase>(
        &self,
        stand: &mut Stand<'a, D>,
        variant: Variant,
    ) -> Result<Drained, Failure> {
        self.drain_by(stand, variant, 1, true).await
    }

    /// The same on so many nodes, each of which must expect others.
    pub(crate) async fn drain_among<D: BareDatabase>(
        &self,
        stand: &mut Stand<'a, D>,
        variant: Variant,
        nodes: usize,
    ) -> Result<Drained, Failure> {
        self.drain_by(stand, variant, nodes, false).await
    }

    async fn drain_by<D: BareDatabase>(
        &self,
        stand: &mut Stand<'a, D>,
        variant: Variant,
        nodes: usize,
        alone: bool,
    ) -> Result<Drained, Failure> {
        let task = Task {
            place: stand.place,
            tables: self.tables,
            variant,
            workers: stand.settings.workers,
            batch: stand.settings.batch,
            alone,
            hear: false,
        };
        let mut crew = Crew::start(&task, nodes).await?;
        let label = format!("{}, {}", self.scenario, variant.name());
        crew.go().await?;
        let started = Instant::now();
        let mut last = (started, 0);
        while last.1 < self.events {
            crew.next(Duration::from_secs(1)).await?;
            let delivered = crew.delivered();
            if delivered > last.1 {
                last = (Instant::now(), delivered);
            } else if last.0.elapsed() > PATIENCE {
                return Err(Failure::BenchStuck {
                    scenario: self.scenario,
                    done: delivered,
                    events: self.events,
                });
            }
            stand.progress.show(how_far(&label, delivered, self.events));
        }
        let sql = stand.statements(self.tables);
        let settled = stand.settled(self.scenario, self.tables, &sql, self.last).await?;
        let peak_kilobytes = crew.stop().await?;
        self.check(stand, variant).await?;
        Ok(Drained {
            rate: rate(self.events, settled - started),
            peak_kilobytes,
        })
    }

    async fn check<D: BareDatabase>(&self, stand: &Stand<'_, D>, variant: Variant) -> Result<(), Failure> {
        let now_done = if variant.delete { 0 } else { self.events };
        stand
            .check(self.scenario, self.tables, self.done_before + now_done)
            .await
    }
}
