//! `purge`: finished events go.

use std::time::{Duration, Instant};

use outbox::{Admin, PurgePolicy};

use super::bare;
use super::bare::BareDatabase;
use super::report::Rates;
use super::stand::{Load, Stand, how_far, rate};
use crate::failure::Failure;

/// Purging, beside a batched delete by hand.
pub(crate) async fn purge<D: BareDatabase>(stand: &mut Stand<'_, D>) -> Result<(), Failure> {
    let load = Load {
        done: true,
        ..Load::pending(stand.settings.events.unwrap_or(100_000))
    };
    let mut rates = Rates::default();
    for _ in 0..stand.settings.rounds() {
        rates.limit.push(by_hand(stand, load).await?);
        rates.framework.push(with_the_framework(stand, load).await?);
    }
    let finding = stand.finding("purge", "done events", load.events).rates(&rates);
    stand.report(finding)
}

async fn by_hand<D: BareDatabase>(stand: &mut Stand<'_, D>, load: Load) -> Result<f64, Failure> {
    let tables = &stand.place.tables;
    stand.empty(tables).await?;
    let last = stand.fill(tables, load).await?;
    let sql = stand.statements(tables);
    let pool = bare::pool(&stand.pool, 1);
    drop(pool.acquire().await?);
    let batch = stand.settings.batch as i64;
    let progress = &mut stand.progress;
    let started = Instant::now();
    let show = |so_far| progress.show(how_far("purge, by hand", so_far, load.events));
    let purged = bare::purge::purge(&pool, &sql, last, batch, show).await?;
    all_gone(load, purged)?;
    Ok(rate(purged, started.elapsed()))
}

async fn with_the_framework<D: BareDatabase>(stand: &mut Stand<'_, D>, load: Load) -> Result<f64, Failure> {
    let tables = &stand.place.tables;
    stand.empty(tables).await?;
    stand.fill(tables, load).await?;
    let admin = Admin::new(stand.place.pool.store(&tables.events));
    // Connected: whatever it is asked for.
    admin.stats(1).await?;
    let policy = PurgePolicy::keep(Duration::from_secs(3600)).batch(stand.settings.batch);
    let progress = &mut stand.progress;
    let started = Instant::now();
    let show = |so_far| progress.show(how_far("purge", so_far, load.events));
    let purged = admin.purge(&policy, show).await?;
    let took = started.elapsed();
    all_gone(load, purged)?;
    Ok(rate(purged, took))
}

fn all_gone(load: Load, purged: u64) -> Result<(), Failure> {
    if purged == load.events {
        return Ok(());
    }
    Err(Failure::BenchFailed {
        scenario: "purge",
        complaint: format!("of {} events {purged} were purged", load.events),
    })
}
