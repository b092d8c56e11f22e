//! Sharing lanes: who is a member, who owns what. Each statement stands for itself; what it relies on is checked in it
//! again. None is on the hot path.

use std::time::Duration;

use sqlx::Connection;

use super::driver::{Driver, quote};
use super::lane::fair_share;
use super::row::{from_micros, micros, required};
use super::sql::SqlStore;
use super::statement::{Statement, filled_up};
use super::{LaneSet, LaneShare};

struct Member {
    name: String,
    /// Microseconds until its lease ends; it has ended if that is not positive.
    left: i64,
}

struct Lane {
    lane: u8,
    owner: Option<String>,
    epoch: i64,
}

/// Joins, or renews; takes free lanes up to the fair share, if it may. `None`: it was struck off.
pub(super) async fn share<D: Driver>(
    store: &SqlStore<D>,
    member: &str,
    joining: bool,
    lease: Duration,
    take: bool,
) -> Result<Option<LaneShare>, sqlx::Error> {
    let mut connection = store.pool.acquire().await?;
    let connection = &mut *connection;
    let nodes = quote::<D>(&store.table.node());
    let mut renew = Statement::<D>::new(format!("update {nodes} set lease_until = "));
    let length = renew.placeholder(micros(lease));
    renew
        .push(&D::shift(D::NOW, &length))
        .push(" where name = ")
        .bind(member);
    if D::execute(connection, renew).await? == 0 {
        if !joining {
            return Ok(None);
        }
        // Not there yet, as it would be if this were tried again because something further down was refused.
        let mut join = Statement::<D>::new(format!("insert into {nodes} (name, lease_until) values ("));
        join.bind(member).push(", ");
        let length = join.placeholder(micros(lease));
        join.push(&D::shift(D::NOW, &length)).push(")");
        D::execute(connection, join).await?;
    }

    let mut members = members::<D>(connection, &nodes).await?;
    for dead in members.iter().filter(|other| other.left <= 0 && other.name != member) {
        if strike::<D>(connection, &nodes, &dead.name).await? {
            tracing::warn!(
                node = dead.name,
                "a node has not renewed its lease; its lanes are taken over"
            );
        }
    }
    // Lanes first: an owner that is in them, and later not on the list, is gone; the other way round it may be new.
    let mut all = lanes::<D>(store, connection).await?;
    members = self::members::<D>(connection, &nodes).await?;
    let Some(place) = members.iter().position(|one| one.name == member) else {
        return Ok(None);
    };
    let fair = fair_share(place, members.len(), D::LANE_HOLDERS);
    let lives = |owner: &str| members.iter().any(|one| one.name == owner);

    let held = |lanes: &[Lane]| -> LaneSet {
        let mine = lanes.iter().filter(|lane| lane.owner.as_deref() == Some(member));
        mine.map(|lane| lane.lane).collect()
    };
    let missing = fair.saturating_sub(held(&all).len());
    let free: Vec<&Lane> = all
        .iter()
        .filter(|lane| !lane.owner.as_deref().is_some_and(lives))
        .take(missing)
        .collect();
    if take && !free.is_empty() {
        let mut grab = Statement::<D>::new(format!("update {} set owner = ", quote::<D>(&store.table.lane())));
        grab.bind(member).push(", epoch = epoch + 1 where ");
        for (place, lane) in filled_up(&free).enumerate() {
            grab.push(if place == 0 { "" } else { " or " });
            // The epoch tells whether somebody was faster.
            grab.push("(lane = ")
                .bind(i64::from(lane.lane))
                .push(" and epoch = ")
                .bind(lane.epoch)
                .push(")");
        }
        D::execute(connection, grab).await?;
        all = lanes::<D>(store, connection).await?;
    }
    let next_end = members
        .iter()
        .filter(|other| other.name != member)
        .map(|other| other.left)
        .min();
    Ok(Some(LaneShare {
        held: held(&all),
        fair,
        members: members.len(),
        next_end: next_end.map(from_micros),
    }))
}

/// Takes a member off the list, unless it has renewed meanwhile, or is just writing: waiting for that, the others would not
/// renew themselves in time. The next look comes soon.
async fn strike<D: Driver>(connection: &mut D::Connection, nodes: &str, name: &str) -> Result<bool, sqlx::Error> {
    let condition = format!(" and lease_until <= {}", D::NOW);
    let mut tx = connection.begin().await?;
    let mut lock = Statement::<D>::new(format!("select name from {nodes} where name = "));
    lock.bind(name).push(&condition).push(D::LOCK_IF_FREE);
    let mut struck = false;
    if !D::fetch(&mut tx, lock).await?.is_empty() {
        let mut delete = Statement::<D>::new(format!("delete from {nodes} where name = "));
        delete.bind(name).push(&condition);
        struck = D::execute(&mut tx, delete).await? > 0;
    }
    tx.commit().await?;
    Ok(struck)
}

async fn members<D: Driver>(connection: &mut D::Connection, nodes: &str) -> Result<Vec<Member>, sqlx::Error> {
    let statement = Statement::<D>::new(format!(
        "select name, {}, {} from {nodes} order by joined_at, name",
        D::micros("lease_until"),
        D::micros(D::NOW)
    ));
    let rows = D::fetch(connection, statement).await?;
    let member = |row| {
        Ok(Member {
            name: required(D::text(row, 0)?)?,
            left: required(D::int(row, 1)?)?.saturating_sub(required(D::int(row, 2)?)?),
        })
    };
    rows.iter().map(member).collect()
}

async fn lanes<D: Driver>(store: &SqlStore<D>, connection: &mut D::Connection) -> Result<Vec<Lane>, sqlx::Error> {
    let statement = Statement::<D>::new(format!(
        "select {}, owner, epoch from {} order by lane",
        D::integer("lane"),
        quote::<D>(&store.table.lane())
    ));
    let rows = D::fetch(connection, statement).await?;
    let lane = |row| {
        Ok(Lane {
            lane: u8::try_from(required(D::int(row, 0)?)?).unwrap_or(u8::MAX),
            owner: D::text(row, 1)?,
            epoch: required(D::int(row, 2)?)?,
        })
    };
    rows.iter().map(lane).collect()
}

/// Gives lanes up, to be taken by others.
pub(super) async fn give_up<D: Driver>(store: &SqlStore<D>, member: &str, lanes: LaneSet) -> Result<(), sqlx::Error> {
    if lanes.is_empty() {
        return Ok(());
    }
    let mut statement = Statement::<D>::new(format!(
        "update {} set owner = null where lane in (",
        quote::<D>(&store.table.lane())
    ));
    let lanes: Vec<u8> = lanes.iter().collect();
    for (place, lane) in filled_up(&lanes).enumerate() {
        statement
            .push(if place == 0 { "" } else { ", " })
            .bind(i64::from(*lane));
    }
    statement.push(") and owner = ").bind(member);
    let mut connection = store.pool.acquire().await?;
    D::execute(&mut connection, statement).await?;
    Ok(())
}

/// Leaves: its lanes are free at once.
pub(super) async fn leave<D: Driver>(store: &SqlStore<D>, member: &str) -> Result<(), sqlx::Error> {
    give_up(store, member, LaneSet::ALL).await?;
    let mut statement = Statement::<D>::new(format!("delete from {} where name = ", quote::<D>(&store.table.node())));
    statement.bind(member);
    let mut connection = store.pool.acquire().await?;
    D::execute(&mut connection, statement).await?;
    Ok(())
}

/// Strikes everybody off: for a node that is the only one.
pub(super) async fn strike_all<D: Driver>(store: &SqlStore<D>) -> Result<(), sqlx::Error> {
    let statement = Statement::<D>::new(format!("delete from {}", quote::<D>(&store.table.node())));
    let mut connection = store.pool.acquire().await?;
    D::execute(&mut connection, statement).await?;
    Ok(())
}

/// Holds on to a member's entry until the transaction ends. False: it was struck off.
pub(super) async fn hold<D: Driver>(
    store: &SqlStore<D>,
    connection: &mut D::Connection,
    member: &str,
) -> Result<bool, sqlx::Error> {
    let mut statement = Statement::<D>::new(format!(
        "select name from {} where name = ",
        quote::<D>(&store.table.node())
    ));
    statement.bind(member).push(D::HOLD).prepared();
    Ok(!D::fetch(connection, statement).await?.is_empty())
}
