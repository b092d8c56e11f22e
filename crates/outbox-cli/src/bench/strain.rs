//! `grown`, `held` and `nodes`: the same drain under strain, beside one without.

use super::bare::BareDatabase;
use super::drain::Backlog;
use super::report::Rates;
use super::stand::{Load, Stand};
use super::variant::{Ownership, Variant};
use crate::failure::Failure;

/// With many delivered events in the table; beside an empty one.
pub(crate) async fn grown<D: BareDatabase>(stand: &mut Stand<'_, D>) -> Result<(), Failure> {
    let load = Load::pending(stand.settings.events.unwrap_or(100_000));
    let tables = &stand.place.others;
    let mut done = stand.settings.done_rows;
    stand.empty(tables).await?;
    let delivered = Load {
        done: true,
        ..Load::pending(done)
    };
    stand.fill(tables, delivered).await?;
    for variant in Variant::STRAINED {
        let mut rates = Rates::default();
        for _ in 0..stand.settings.rounds() {
            let backlog = Backlog::on_empty(stand, "grown", load).await?;
            rates.limit.push(backlog.drain(stand, *variant).await?.rate);
            let backlog = Backlog::on_top(stand, "grown", tables, load, done).await?;
            rates.framework.push(backlog.drain(stand, *variant).await?.rate);
            done += if variant.delete { 0 } else { load.events };
        }
        let finding = stand.finding("grown", variant.name(), load.events).rates(&rates);
        stand.report(finding)?;
    }
    Ok(())
}

/// While a transaction elsewhere keeps the database from cleaning up; beside none.
pub(crate) async fn held<D: BareDatabase>(stand: &mut Stand<'_, D>) -> Result<(), Failure> {
    let Some(hold) = <D as BareDatabase>::HOLD else {
        return Ok(());
    };
    let load = Load::pending(stand.settings.events.unwrap_or(300_000));
    for variant in Variant::STRAINED {
        let mut rates = Rates::default();
        for _ in 0..stand.settings.rounds() {
            let backlog = Backlog::on_empty(stand, "held", load).await?;
            rates.limit.push(backlog.drain(stand, *variant).await?.rate);
            let backlog = Backlog::on_empty(stand, "held", load).await?;
            let mut holding = stand.pool.acquire().await?;
            D::script(&mut holding, hold.to_owned()).await?;
            rates.framework.push(backlog.drain(stand, *variant).await?.rate);
            D::script(&mut holding, "rollback".to_owned()).await?;
        }
        let finding = stand.finding("held", variant.name(), load.events).rates(&rates);
        stand.report(finding)?;
    }
    Ok(())
}

/// By several processes; beside one.
pub(crate) async fn nodes<D: BareDatabase>(stand: &mut Stand<'_, D>) -> Result<(), Failure> {
    const NODES: [usize; 3] = [1, 2, 4];
    for variant in Variant::STRAINED {
        // A node takes some hundredths of a second to start, and to get its lanes: little of seconds.
        let by_default = match variant.ownership {
            Ownership::RowClaims => 300_000,
            Ownership::Lanes | Ownership::Ordered => 1_000_000,
        };
        let load = Load::pending(stand.settings.events.unwrap_or(by_default));
        let mut rates = [const { Vec::new() }; NODES.len()];
        for round in 0..stand.settings.rounds() {
            let mut turns: Vec<_> = NODES.iter().zip(&mut rates).collect();
            // What one leaves behind, the next one meets.
            if round % 2 == 1 {
                turns.reverse();
            }
            for (nodes, rates) in turns {
                let backlog = Backlog::on_empty(stand, "nodes", load).await?;
                // One node is of the same kind as two: it may not take over at once what an earlier run has left, for which the
                // whole backlog is read before anything is measured.
                rates.push(backlog.drain_among(stand, *variant, *nodes).await?.rate);
            }
        }
        for (nodes, framework) in NODES.iter().zip(&rates).skip(1) {
            let rates = Rates {
                limit: rates[0].clone(),
                framework: framework.clone(),
            };
            let name = format!("{nodes} nodes, {}", variant.name());
            let finding = stand.finding("nodes", name, load.events).rates(&rates);
            stand.report(finding)?;
        }
    }
    Ok(())
}
