//! Reading lanes in the order of writing, and what holds a key back.

use super::driver::{Driver, quote};
use super::row::{Numbers, claimed_of, column_count, columns, from_micros, instant, micros, required};
use super::sql::SqlStore;
use super::statement::{Statement, filled_up};
use super::{BlockedKey, LaneRead, LaneRow, LaneRows, LaneSet, Page, Unsettled, Wanted};

/// The named lease whose epoch counts replays. Nobody ever holds it.
pub(super) const REPLAYS: &str = "replays";

/// Served by the index of pending rows in the order of writing.
pub(super) async fn read<D: Driver>(
    store: &SqlStore<D>,
    statement: Statement<D>,
    begins: bool,
) -> Result<LaneRows, sqlx::Error> {
    // What is read besides `columns`: its lane, where several nodes share them; and how far a pass may go, where one begins.
    let (lane, last) = (column_count::<D>(), column_count::<D>() + 1);
    let (mut now, mut last_seq) = (0, 0);
    let mut connection = store.reading.acquire().await?;
    let rows = D::read(&mut connection, statement, |row| {
        let numbers = Numbers::read::<D>(row)?;
        let mut claimed = claimed_of::<D>(row, &numbers)?;
        now = numbers.now;
        if begins {
            last_seq = D::int(row, last)?.unwrap_or(0);
        }
        let leased_until = numbers.leased_until;
        claimed.recovered = leased_until.is_some_and(|until| until <= now);
        Ok(LaneRow {
            rests: from_micros(claimed.due_at.max(leased_until.unwrap_or(0)).saturating_sub(now)),
            // One node has all lanes, or none: then it does not matter which.
            lane: match D::LANE_HOLDERS {
                1 => 0,
                _ => u8::try_from(D::int(row, lane)?.unwrap_or(0)).unwrap_or(u8::MAX),
            },
            row: claimed,
        })
    })
    .await?;
    Ok(LaneRows { rows, last_seq, now })
}

/// Only the first read of a pass asks how far it may go.
pub(super) fn begins(read: &LaneRead<'_>) -> bool {
    matches!(read.wanted, Wanted::InOrder { up_to: None, .. })
}

pub(super) fn statement<D: Driver>(store: &SqlStore<D>, read: &LaneRead<'_>) -> Statement<D> {
    let table = quote::<D>(store.table.as_str());
    let more = match (begins(read), D::LANE_HOLDERS) {
        (true, _) => format!(", {}, {}", D::integer("t.lane"), D::last_seq(&table)),
        // SQLite would work it out for every row.
        (false, 1) => String::new(),
        (false, _) => format!(", {}", D::integer("t.lane")),
    };
    let mut statement = Statement::<D>::new(format!(
        "select {}{more} from {} where {} and t.seq > ",
        columns::<D>("t."),
        D::in_order_of_writing(&store.table),
        D::PENDING_IN_ORDER,
    ));
    statement.bind(read.after);
    // With keys in it, it has many texts.
    if !matches!(read.wanted, Wanted::InOrder { keys, without, .. } if keys.is_some() || !without.is_empty()) {
        statement.prepared();
    }
    push_range(&mut statement, read.lanes);
    if read.lanes != LaneSet::ALL {
        let lanes = statement.placeholder(read.lanes.bits());
        statement.push(&format!(" and ({} & 1) = 1", D::shift_right(&lanes, "t.lane")));
    }
    match read.wanted {
        Wanted::Deliverable { skip_recent } => {
            statement.push(&format!(
                " and t.available_at <= {now} and (t.lease_until is null or t.lease_until <= {now})",
                now = D::NOW
            ));
            // The database would work it out for every row.
            if !skip_recent.is_zero() {
                let age = statement.placeholder(-micros(skip_recent));
                statement.push(&format!(" and t.created_at <= {}", D::shift(D::NOW, &age)));
            }
        }
        Wanted::InOrder {
            since,
            up_to,
            keys,
            without,
        } => {
            statement.push(&format!(" and (t.status = 2 or t.available_at <= {})", D::NOW));
            let key = quote::<D>(&store.table.key());
            // Mostly no key is held back.
            let unless = match D::EMPTY_IS_QUICKLY_SEEN {
                true => format!("not exists (select 1 from {key}) or "),
                false => String::new(),
            };
            statement.push(&format!(
                " and ({unless}not exists (select 1 from {key} k where k.aggregate_type = t.aggregate_type \
                 and k.aggregate_id = t.aggregate_id and (k.blocked_until is null or k.blocked_until > "
            ));
            match since {
                Some(since) => {
                    let since = statement.placeholder(since);
                    statement.push(&D::at(&since));
                }
                None => {
                    statement.push(D::NOW);
                }
            }
            statement.push(")").push(D::FOR_EACH_ROW).push("))");
            if let Some(up_to) = up_to {
                statement.push(" and t.seq <= ").bind(up_to);
            }
            push_keys(&mut statement, " and ", keys.unwrap_or_default());
            if !without.is_empty() {
                // An event without an aggregate id is of no key.
                statement.push(" and (t.aggregate_id is null");
                push_keys(&mut statement, " or not ", without);
                statement.push(")");
            }
        }
    }
    let limit = D::limit(statement.placeholder(read.limit as i64));
    statement.push(" order by t.seq limit ").push(&limit);
    statement
}

/// All of it is of one state of the database: an event that is replayed is seen as parking its key, or as pending.
pub(super) async fn unsettled<D: Driver>(store: &SqlStore<D>, after: i64) -> Result<Unsettled, sqlx::Error> {
    let mut statement = Statement::<D>::new(format!(
        "select (select t.seq from {} where {} and t.seq > ",
        D::in_order_of_writing(&store.table),
        D::PENDING_IN_ORDER,
    ));
    statement.bind(after);
    push_range(&mut statement, LaneSet::ALL);
    statement.push(&format!(
        " order by t.seq limit 1), (select min(k.seq) from {} k where k.blocked_until is null and k.seq > ",
        quote::<D>(&store.table.key())
    ));
    statement.bind(after).push(&format!(
        "), (select l.epoch from {} l where l.name = ",
        quote::<D>(&store.table.lease())
    ));
    statement.bind(REPLAYS).push(")").prepared();
    let mut connection = store.reading.acquire().await?;
    let rows = D::fetch(&mut connection, statement).await?;
    let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    Ok(Unsettled {
        first: [D::int(row, 0)?, D::int(row, 1)?].into_iter().flatten().min(),
        replays: D::int(row, 2)?.unwrap_or(0),
    })
}

/// Lanes lie side by side, mostly. Where they are in the index, it leaves the rows of others out by this, and need not look at
/// them; and PostgreSQL believes so much of a range that no statistics make another index seem better.
fn push_range<D: Driver>(statement: &mut Statement<D>, lanes: LaneSet) {
    if D::LANE_HOLDERS > 1 {
        let (first, last) = lanes.range();
        statement.push(" and t.lane between ").bind(first);
        statement.push(" and ").bind(last);
    }
}

/// `and (.. or ..)`: rows of these keys, if there are any.
fn push_keys<D: Driver>(statement: &mut Statement<D>, and: &str, keys: &[(String, String)]) {
    for (place, (aggregate_type, aggregate_id)) in filled_up(keys).enumerate() {
        statement
            .push(if place == 0 { and } else { " or " })
            .push(if place == 0 { "(" } else { "" })
            .push("t.aggregate_type = ")
            .bind(aggregate_type.as_str())
            .push(" and t.aggregate_id = ")
            .bind(aggregate_id.as_str());
    }
    if !keys.is_empty() {
        statement.push(")");
    }
}

/// Databases take only so many values.
const BLOCKED_AT_ONCE: usize = 512;

/// Holds the keys of these rows back: until the rows are due, or, if they are dead, until somebody unblocks them.
pub(super) async fn block<D: Driver>(
    store: &SqlStore<D>,
    connection: &mut D::Connection,
    seqs: &[i64],
    parked: bool,
) -> Result<(), sqlx::Error> {
    let (until, status) = if parked {
        ("null", "status = 3")
    } else {
        ("available_at", "status in (0, 2)")
    };
    for seqs in seqs.chunks(BLOCKED_AT_ONCE) {
        let mut statement = Statement::<D>::new(format!(
            "insert into {} (aggregate_type, aggregate_id, seq, blocked_until) \
             select aggregate_type, aggregate_id, seq, {until} from {} where seq in (",
            quote::<D>(&store.table.key()),
            quote::<D>(store.table.as_str()),
        ));
        for (place, seq) in filled_up(seqs).enumerate() {
            statement.push(if place == 0 { "" } else { ", " }).bind(*seq);
        }
        statement.push(&format!(
            ") and {status} and aggregate_id is not null {}",
            D::REPLACE_BLOCK
        ));
        D::execute(connection, statement).await?;
    }
    Ok(())
}

/// Keys that are blocked, the longest blocked first.
pub(super) async fn blocked<D: Driver>(store: &SqlStore<D>, page: Page) -> Result<Vec<BlockedKey>, sqlx::Error> {
    let mut statement = Statement::<D>::new(format!(
        "select k.aggregate_type, k.aggregate_id, t.event_id, k.seq, {}, {}, t.last_error \
         from {} k left join {} t on t.seq = k.seq \
         where (k.blocked_until is null or k.blocked_until > {}) and k.seq > ",
        D::micros("k.blocked_at"),
        D::micros("k.blocked_until"),
        quote::<D>(&store.table.key()),
        quote::<D>(store.table.as_str()),
        D::NOW
    ));
    statement
        .bind(page.after)
        .push(" order by k.seq limit ")
        .bind(page.limit as i64);
    let mut connection = store.pool.acquire().await?;
    let rows = D::fetch(&mut connection, statement).await?;
    rows.iter()
        .map(|row| {
            Ok(BlockedKey {
                aggregate_type: required(D::text(row, 0)?)?,
                aggregate_id: required(D::text(row, 1)?)?,
                event_id: D::text(row, 2)?,
                seq: required(D::int(row, 3)?)?,
                since: instant(required(D::int(row, 4)?)?),
                until: D::int(row, 5)?.map(instant),
                last_error: D::text(row, 6)?,
            })
        })
        .collect()
}

/// Lets a key go on, with the event that holds it back if that can still be delivered: it is due now. The key stays in the
/// table, held back by no event and blocked for [a moment](super::UNBLOCKED_AFTER).
pub(super) async fn unblock<D: Driver>(
    store: &SqlStore<D>,
    aggregate_type: &str,
    aggregate_id: &str,
) -> Result<bool, sqlx::Error> {
    let key = quote::<D>(&store.table.key());
    let of_key = |statement: &mut Statement<D>| {
        let blocked = format!("(blocked_until is null or blocked_until > {})", D::NOW);
        statement
            .push(&format!(" where {blocked} and seq > 0 and aggregate_type = "))
            .bind(aggregate_type);
        statement.push(" and aggregate_id = ").bind(aggregate_id);
    };
    let mut due = Statement::<D>::new(format!(
        "update {} set available_at = {now} where available_at > {now} and {} and seq in (select seq from {key}",
        quote::<D>(store.table.as_str()),
        D::PENDING,
        now = D::NOW,
    ));
    of_key(&mut due);
    due.push(")");
    let mut free = Statement::<D>::new(format!("update {key} set {}", free_soon::<D>()));
    of_key(&mut free);
    let mut connection = store.pool.acquire().await?;
    D::execute(&mut connection, due).await?;
    Ok(D::execute(&mut connection, free).await? > 0)
}

fn free_soon<D: Driver>() -> String {
    let after = micros(super::UNBLOCKED_AFTER).to_string();
    format!("seq = 0, blocked_until = {}", D::shift(D::NOW, &after))
}

/// Lets the keys go on whose dead event is no longer dead, or gone: it has been resolved.
pub(super) async fn unblock_resolved<D: Driver>(
    store: &SqlStore<D>,
    connection: &mut D::Connection,
) -> Result<(), sqlx::Error> {
    let statement = Statement::<D>::new(format!(
        "update {key} set {} where blocked_until is null and not exists \
         (select 1 from {} t where t.seq = {key}.seq and t.status = 3)",
        free_soon::<D>(),
        quote::<D>(store.table.as_str()),
        key = quote::<D>(&store.table.key()),
    ));
    D::execute(connection, statement).await?;
    Ok(())
}

/// Forgets keys that have long been free. No pass takes an hour.
pub(super) async fn forget_free_keys<D: Driver>(
    store: &SqlStore<D>,
    connection: &mut D::Connection,
) -> Result<(), sqlx::Error> {
    let statement = Statement::<D>::new(format!(
        "delete from {} where blocked_until <= {}",
        quote::<D>(&store.table.key()),
        D::shift(D::NOW, &format!("{}", -micros(std::time::Duration::from_secs(3600))))
    ));
    D::execute(connection, statement).await?;
    Ok(())
}
