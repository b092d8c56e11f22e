//! What operators ask and do: find, count, replay, discard, purge, and the state of it all. Written once, in the
//! dialect of each database; none of it is on the hot path.

use std::time::Duration;

use super::driver::{Dialect, Driver, quote};
use super::row::{Numbers, column_count, columns, from_micros, instant, micros};
use super::row::{read_done_by, read_event, read_id, required};
use super::sql::SqlStore;
use super::statement::Statement;
use super::{Attempt, Filter, Page, Purge, Purged, Stats, Status, StatusCount, StoredEvent};
use super::{read, share};
use crate::event::EventId;

/// ` where ...`: the filter as a condition. A filter on DEAD alone is served by the index on `dead_at`.
fn push_where<D: Dialect>(statement: &mut Statement<D>, filter: &Filter) {
    statement.push(" where 1 = 1");
    if let Some(id) = &filter.id {
        statement.push(" and event_id = ").bind(id.as_str());
    }
    if !filter.statuses.is_empty() {
        let codes: Vec<String> = filter.statuses.iter().map(|status| status.code().to_string()).collect();
        statement.push(&format!(" and status in ({})", codes.join(", ")));
        // Said again as the indexes of pending and of dead rows have it, so that they are used.
        if filter.statuses == [Status::Dead] {
            statement.push(" and status = 3 and dead_at is not null");
        } else if filter.statuses.iter().all(|status| status.is_pending()) {
            statement.push(" and ").push(D::PENDING);
        }
    }
    let equal = [
        ("event_type", &filter.event_type),
        ("aggregate_type", &filter.aggregate_type),
        ("aggregate_id", &filter.aggregate_id),
        ("tenant_id", &filter.tenant_id),
    ];
    for (column, value) in equal {
        if let Some(value) = value {
            statement.push(" and ").push(column).push(" = ").bind(value.as_str());
        }
    }
    let bounds = [(">=", filter.created_from), ("<", filter.created_until)];
    for (operator, bound) in bounds {
        if let Some(bound) = bound {
            statement
                .push(" and ")
                .push(&D::micros("created_at"))
                .push(" ")
                .push(operator)
                .push(" ")
                .bind(bound.timestamp_micros());
        }
    }
    if let Some(part) = &filter.error_contains {
        let literal = part.replace('!', "!!").replace('%', "!%").replace('_', "!_");
        statement
            .push(" and last_error like ")
            .bind(format!("%{literal}%").as_str())
            .push(" escape '!'");
    }
}

pub(super) async fn find<D: Driver>(
    store: &SqlStore<D>,
    filter: &Filter,
    page: Page,
) -> Result<Vec<StoredEvent>, sqlx::Error> {
    let more = [
        D::integer("status"),
        D::micros("created_at"),
        D::micros("done_at"),
        D::micros("dead_at"),
        "last_error".to_owned(),
        "locked_by".to_owned(),
        D::integer("lane"),
    ]
    .join(", ");
    let mut statement = Statement::<D>::new(format!(
        "select {}, {more} from {}",
        columns::<D>(""),
        quote::<D>(store.table.as_str())
    ));
    push_where(&mut statement, filter);
    statement
        .push(" and seq > ")
        .bind(page.after)
        .push(" order by seq limit ")
        .bind(page.limit as i64);
    let mut connection = store.pool.acquire().await?;
    let rows = D::fetch(&mut connection, statement).await?;
    rows.iter().map(read_stored::<D>).collect()
}

fn read_stored<D: Driver>(row: &D::Row) -> Result<StoredEvent, sqlx::Error> {
    let more = column_count::<D>();
    let time = |column| Ok::<_, sqlx::Error>(D::int(row, column)?.map(instant));
    let numbers = Numbers::read::<D>(row)?;
    Ok(StoredEvent {
        seq: numbers.lease.seq,
        event_id: read_id::<D>(row),
        event: read_event::<D>(row, &numbers),
        status: required(D::int(row, more)?.and_then(Status::from_code))?,
        attempts: numbers.attempts,
        created_at: required(time(more + 1)?)?,
        available_at: instant(numbers.due_at),
        done_at: time(more + 2)?,
        dead_at: time(more + 3)?,
        last_error: D::text(row, more + 4)?,
        locked_by: D::text(row, more + 5)?,
        lease_until: numbers.leased_until.map(instant),
        token: numbers.lease.token,
        lane: D::int(row, more + 6)?.unwrap_or(0),
        done_by: read_done_by::<D>(row)?,
    })
}

pub(super) async fn attempts<D: Driver>(store: &SqlStore<D>, id: &EventId) -> Result<Vec<Attempt>, sqlx::Error> {
    let mut statement = Statement::<D>::new(format!(
        "select {}, a.node, a.error, {} from {} a join {} t on t.seq = a.seq where t.event_id = ",
        D::integer("a.attempt"),
        D::micros("a.failed_at"),
        quote::<D>(&store.table.attempt()),
        quote::<D>(store.table.as_str()),
    ));
    statement.bind(id.as_str()).push(" order by a.id");
    let mut connection = store.pool.acquire().await?;
    let rows = D::fetch(&mut connection, statement).await?;
    rows.iter()
        .map(|row| {
            Ok(Attempt {
                attempt: u32::try_from(required(D::int(row, 0)?)?).unwrap_or(0),
                node: required(D::text(row, 1)?)?,
                error: required(D::text(row, 2)?)?,
                failed_at: instant(required(D::int(row, 3)?)?),
            })
        })
        .collect()
}

pub(super) async fn count<D: Driver>(store: &SqlStore<D>, filter: &Filter, at_most: u64) -> Result<u64, sqlx::Error> {
    let mut statement = Statement::<D>::new(format!(
        "select count(*) from (select 1 from {}",
        quote::<D>(store.table.as_str())
    ));
    push_where(&mut statement, filter);
    statement
        .push(" limit ")
        .bind(i64::try_from(at_most).unwrap_or(i64::MAX))
        .push(") as found");
    let mut connection = store.pool.acquire().await?;
    let rows = D::fetch(&mut connection, statement).await?;
    let count = rows
        .first()
        .map(|row| D::int(row, 0))
        .transpose()?
        .flatten()
        .unwrap_or(0);
    Ok(u64::try_from(count).unwrap_or(0))
}

/// ` where seq in (...)`: at most `limit` rows that match, in the order of `seq`. The inner select has a name of its own
/// because MySQL lets no statement change what it reads from.
fn push_picked<D: Dialect>(statement: &mut Statement<D>, table: &str, filter: &Filter, and: &str, limit: usize) {
    statement
        .push(" where seq in (select seq from (select seq from ")
        .push(table);
    push_where(statement, filter);
    statement
        .push(and)
        .push(" order by seq limit ")
        .bind(limit as i64)
        .push(") as picked)");
}

pub(super) async fn replay<D: Driver>(store: &SqlStore<D>, filter: &Filter, limit: usize) -> Result<u64, sqlx::Error> {
    let table = quote::<D>(store.table.as_str());
    let mut statement = Statement::<D>::new(format!(
        "update {table} set status = 0, attempts = 0, last_error = null, dead_at = null, available_at = {}, \
         token = token + 1, locked_by = null, lease_until = null",
        D::NOW
    ));
    // The condition is repeated outside, where it is judged again if the row has changed meanwhile.
    push_picked(&mut statement, &table, filter, " and status = 3", limit);
    statement.push(" and status = 3");
    let replayed = D::execute(&mut *store.pool.acquire().await?, statement).await?;
    // Told before their keys go on, so that whoever reads in order starts anew; also where nothing was found: this may be a
    // second try, after the first one was interrupted here.
    let teller = format!("{:016x}", rand::random::<u64>());
    lead(store, read::REPLAYS, &teller, Duration::ZERO).await?;
    read::unblock_resolved(store, &mut *store.pool.acquire().await?).await?;
    Ok(replayed)
}

pub(super) async fn discard<D: Driver>(store: &SqlStore<D>, filter: &Filter, limit: usize) -> Result<u64, sqlx::Error> {
    let table = quote::<D>(store.table.as_str());
    let free = format!(" and (lease_until is null or lease_until <= {})", D::NOW);
    let mut statement = Statement::<D>::new(format!("delete from {table}"));
    push_picked(&mut statement, &table, filter, &free, limit);
    statement.push(&free);
    // A row that was delivered, replayed or claimed meanwhile is no longer what the operator saw.
    if !filter.statuses.is_empty() {
        let codes: Vec<String> = filter.statuses.iter().map(|status| status.code().to_string()).collect();
        statement.push(&format!(" and status in ({})", codes.join(", ")));
    }
    let mut connection = store.pool.acquire().await?;
    let discarded = D::execute(&mut connection, statement).await?;
    read::unblock_resolved(store, &mut connection).await?;
    Ok(discarded)
}

/// Walks the primary key from `after`. Rows are written in the order of `seq` and finished later, so the walk ends where
/// the writing is younger than the age asked for: no index on the finish is needed, which every delivery would pay for.
pub(super) async fn purge<D: Driver>(store: &SqlStore<D>, purge: &Purge, after: i64) -> Result<Purged, sqlx::Error> {
    let table = quote::<D>(store.table.as_str());
    let mut connection = store.pool.acquire().await?;

    let mut step = Statement::<D>::new(format!("select max(seq), count(*), min({}), ", D::micros("created_at")));
    let age = step.placeholder(-micros(purge.older_than));
    step.push(&D::micros(&D::shift(D::NOW, &age)));
    step.push(&format!(" from (select seq, created_at from {table} where seq > "))
        .bind(after)
        .push(" order by seq limit ")
        .bind(purge.limit as i64)
        .push(") as step")
        .prepared();
    let step = D::fetch(&mut connection, step).await?;
    let step = required(step.first())?;
    let (count, cutoff) = (required(D::int(step, 1)?)?, required(D::int(step, 3)?)?);
    let (Some(last), Some(oldest)) = (D::int(step, 0)?, D::int(step, 2)?) else {
        purge_attempts(store, &mut connection, purge, cutoff).await?;
        return Ok(Purged { deleted: 0, next: None });
    };

    let mut delete = Statement::<D>::new(format!("delete from {table} where seq > "));
    delete.bind(after).push(" and seq <= ").bind(last).prepared();
    if purge.by_age_alone {
        delete
            .push(" and ")
            .push(&D::micros("created_at"))
            .push(" < ")
            .bind(cutoff);
    } else {
        // Never a pending row, whatever was asked for.
        let mut kinds = vec!["1 = 0".to_owned()];
        for (status, finished) in [(Status::Done, "done_at"), (Status::Dead, "dead_at")] {
            if purge.statuses.contains(&status) {
                let bound = delete.placeholder(cutoff);
                kinds.push(format!(
                    "status = {} and {} < {bound}",
                    status.code(),
                    D::micros(finished)
                ));
            }
        }
        delete.push(&format!(" and ({})", kinds.join(" or ")));
        // A dead event that its key waits for is still to be resolved.
        delete.push(&format!(
            " and not exists (select 1 from {} k where k.seq = {table}.seq and k.blocked_until is null)",
            quote::<D>(&store.table.key())
        ));
    }
    if let Some(event_type) = &purge.event_type {
        delete.push(" and event_type = ").bind(event_type.as_str());
    }
    let deleted = D::execute(&mut connection, delete).await?;

    let more = oldest < cutoff && usize::try_from(count).is_ok_and(|count| count >= purge.limit);
    if !more {
        purge_attempts(store, &mut connection, purge, cutoff).await?;
        read::forget_free_keys(store, &mut connection).await?;
    }
    Ok(Purged {
        deleted,
        next: more.then_some(last),
    })
}

/// Attempts of events that are gone, as old as what is purged.
async fn purge_attempts<D: Driver>(
    store: &SqlStore<D>,
    connection: &mut D::Connection,
    purge: &Purge,
    cutoff: i64,
) -> Result<(), sqlx::Error> {
    let attempt = quote::<D>(&store.table.attempt());
    let table = quote::<D>(store.table.as_str());
    loop {
        let mut statement = Statement::<D>::new(format!(
            "delete from {attempt} where id in (select id from (select a.id from {attempt} a \
             where not exists (select 1 from {table} t where t.seq = a.seq) and {} < ",
            D::micros("a.failed_at"),
        ));
        statement
            .bind(cutoff)
            .push(" order by a.id limit ")
            .bind(purge.limit as i64)
            .push(") as gone)");
        let deleted = D::execute(connection, statement).await?;
        if usize::try_from(deleted).is_ok_and(|deleted| deleted < purge.limit) {
            return Ok(());
        }
    }
}

pub(super) async fn lead<D: Driver>(
    store: &SqlStore<D>,
    name: &str,
    owner: &str,
    lease: Duration,
) -> Result<bool, sqlx::Error> {
    let table = quote::<D>(&store.table.lease());
    let mut connection = store.pool.acquire().await?;
    let mut take = Statement::<D>::new(format!("update {table} set epoch = case when owner = "));
    take.bind(owner).push(" then epoch else epoch + 1 end, lease_until = ");
    let length = take.placeholder(micros(lease));
    take.push(&D::shift(D::NOW, &length))
        .push(", owner = ")
        .bind(owner)
        .push(" where name = ")
        .bind(name);
    take.push(" and (owner = ")
        .bind(owner)
        .push(&format!(" or lease_until <= {})", D::NOW));
    if D::execute(&mut connection, take).await? > 0 {
        return Ok(true);
    }
    // Nobody has ever had it, or somebody has it: an insert tells, and only one of many can succeed.
    let mut insert = Statement::<D>::new(format!(
        "insert into {table} (name, owner, epoch, lease_until) values ("
    ));
    insert.bind(name).push(", ").bind(owner).push(", 1, ");
    let length = insert.placeholder(micros(lease));
    insert.push(&D::shift(D::NOW, &length)).push(")");
    match D::execute(&mut connection, insert).await {
        Ok(_) => Ok(true),
        Err(sqlx::Error::Database(error)) if error.is_unique_violation() => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) async fn resign<D: Driver>(store: &SqlStore<D>, name: &str, owner: &str) -> Result<(), sqlx::Error> {
    let mut statement = Statement::<D>::new(format!(
        "update {} set lease_until = {} where name = ",
        quote::<D>(&store.table.lease()),
        D::NOW
    ));
    statement.bind(name).push(" and owner = ").bind(owner);
    let mut connection = store.pool.acquire().await?;
    D::execute(&mut connection, statement).await?;
    Ok(())
}

pub(super) async fn release_all<D: Driver>(store: &SqlStore<D>) -> Result<u64, sqlx::Error> {
    let statement = Statement::<D>::new(format!(
        "update {} set token = token + 1, locked_by = null, lease_until = null where {} and lease_until is not null",
        quote::<D>(store.table.as_str()),
        D::PENDING
    ));
    share::strike_all(store).await?;
    let mut connection = store.pool.acquire().await?;
    D::execute(&mut connection, statement).await
}

pub(super) async fn stats<D: Driver>(store: &SqlStore<D>, at_most: u64) -> Result<Stats, sqlx::Error> {
    let table = quote::<D>(store.table.as_str());
    let bound = i64::try_from(at_most).unwrap_or(i64::MAX);
    let mut stats = Stats::default();
    let mut connection = store.pool.acquire().await?;
    // Pending and dead rows, each by the index that holds nothing else, and no further than the bound.
    for rows in [D::PENDING, "status = 3 and dead_at is not null"] {
        let mut statement = Statement::<D>::new(format!(
            "select {}, event_type, count(*) from (select status, event_type from {table} where {rows} limit ",
            D::integer("status")
        ));
        statement
            .bind(bound)
            .push(") as found group by status, event_type order by status, event_type");
        let mut total = 0;
        for row in &D::fetch(&mut connection, statement).await? {
            let count = u64::try_from(required(D::int(row, 2)?)?).unwrap_or(0);
            total += count;
            stats.counts.push(StatusCount {
                status: required(D::int(row, 0)?.and_then(Status::from_code))?,
                event_type: required(D::text(row, 1)?)?,
                count,
            });
        }
        stats.at_least |= total >= at_most;
    }
    let oldest = Statement::<D>::new(format!(
        "select {}, {} from (select {due} as due from {table} where {} and {due} is not null order by {due} limit 1) as oldest",
        D::micros("due"),
        D::micros(D::NOW),
        D::PENDING,
        due = D::DUE
    ));
    if let Some(row) = D::fetch(&mut connection, oldest).await?.first() {
        let lag = required(D::int(row, 1)?)?.saturating_sub(D::int(row, 0)?.unwrap_or(0));
        stats.oldest_lag = (lag >= 0).then(|| from_micros(lag));
    }
    Ok(stats)
}
