//! A producer: one transaction after the other, each drawn from the seed, each written down before and after.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use outbox::store::Driver;
use outbox::testing::facts::{Fact, Log};
use outbox::{Error, Event, EventBuilder, Outbox, Payload, TableName};
use sqlx::Pool;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::{Config, listener};
use crate::ledger::Ledger;
use crate::rng::Rng;

/// The aggregate type of events that have a key.
const AGGREGATE: &str = "Key";

#[derive(Debug)]
pub(crate) struct Producer<D: Ledger> {
    outbox: Outbox<D>,
    pool: Pool<D>,
    statements: D::Sql,
    log: Arc<Log>,
    rng: Rng,
    /// What its ids start with.
    name: String,
    every: Duration,
    keys: i64,
    poison: bool,
}

/// What one transaction is to be.
#[derive(Clone, Debug)]
struct Wish {
    id: String,
    key: Option<i64>,
    event_type: &'static str,
    size: Size,
    delay: Option<Duration>,
    form: Form,
    rolls_back: bool,
    /// Something is published in a savepoint that is rolled back.
    hesitates: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Small,
    AtTheLimit,
    BeyondIt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Wrapper,
    Receipt,
    ForgottenReceipt,
}

/// Why a transaction came to nothing. None of these is a fault of the harness, except the last.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Outbox(#[from] Error),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error("the log cannot be written: {0}")]
    Log(#[from] std::io::Error),
}

impl<D: Ledger> Producer<D> {
    pub(crate) fn new(config: &Config, number: u32, outbox: &Outbox<D>, pool: &Pool<D>, log: &Arc<Log>) -> Self {
        let name = format!("{}.{}.{number}", config.number, config.life);
        Self {
            outbox: outbox.clone(),
            pool: pool.clone(),
            statements: <D as Driver>::statements(&TableName::default()),
            log: Arc::clone(log),
            rng: Rng::of(config.seed, &name, 0),
            name,
            every: config.workload.every,
            keys: config.workload.keys,
            poison: config.workload.poison,
        }
    }

    /// Produces until it is told to be quiet.
    pub(crate) async fn run(mut self, mut quiet: watch::Receiver<bool>) -> Result<(), std::io::Error> {
        let mut ticks = tokio::time::interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for turn in 0_u64.. {
            tokio::select! {
                _ = quiet.wait_for(|quiet| *quiet) => return Ok(()),
                _ = ticks.tick() => {}
            }
            let wish = self.draw(turn);
            match self.fulfil(&wish).await {
                Ok(()) => {}
                Err(Trouble::Log(error)) => return Err(error),
                Err(trouble) => tracing::warn!(id = wish.id, %trouble, "a transaction failed"),
            }
        }
        Ok(())
    }

    fn draw(&mut self, turn: u64) -> Wish {
        let rng = &mut self.rng;
        let delayed = rng.percent(8);
        let kind = rng.between(0, 99);
        let (event_type, size) = match kind {
            0..3 => (listener::FLAKY, Size::Small),
            3..5 if self.poison => (listener::POISON, Size::Small),
            5..8 if self.poison => (listener::PANICKING, Size::Small),
            8..10 if self.poison => (listener::PLAIN, Size::AtTheLimit),
            10..12 if self.poison => (listener::PLAIN, Size::BeyondIt),
            _ => (listener::PLAIN, Size::Small),
        };
        let key = rng.between(0, self.keys.unsigned_abs() - 1);
        let form = match rng.between(0, 9) {
            0..7 => Form::Wrapper,
            7..9 => Form::Receipt,
            _ => Form::ForgottenReceipt,
        };
        Wish {
            id: format!("{}.{turn}", self.name),
            // What is to be delivered later has no place in the order of a key.
            key: (!delayed).then(|| i64::try_from(key).unwrap_or(0)),
            event_type,
            size,
            delay: delayed.then(|| Duration::from_millis(rng.between(50, 400))),
            form,
            rolls_back: rng.percent(12),
            hesitates: rng.percent(10),
        }
    }

    async fn fulfil(&self, wish: &Wish) -> Result<(), Trouble> {
        match wish.form {
            Form::Wrapper => self.with_the_wrapper(wish).await,
            Form::Receipt | Form::ForgottenReceipt => self.with_a_receipt(wish).await,
        }
    }

    async fn with_the_wrapper(&self, wish: &Wish) -> Result<(), Trouble> {
        let mut tx = self.outbox.begin(&self.pool).await?;
        if wish.hesitates {
            // Its key is free again when the savepoint is rolled back, or else a place would be missing.
            let id = format!("{}.s", wish.id);
            let mut savepoint = tx.savepoint().await?;
            self.log.write(&Fact::intent(&id))?;
            D::record(&mut savepoint, &id, -1, 0).await?;
            let event = Event::builder(listener::PLAIN).id(&id).json("{}");
            let published = self.outbox.publish(&mut savepoint, event).await;
            self.log.write(&Fact::rolled_back(&id))?;
            published?;
            savepoint.rollback().await?;
        }
        let event = self.prepare(&mut tx, wish).await?;
        match self.outbox.publish(&mut tx, event).await {
            Ok(_) => {}
            Err(error) => return self.refused(wish, error),
        }
        if wish.rolls_back {
            self.log.write(&Fact::rolled_back(&wish.id))?;
            return Ok(tx.rollback().await?);
        }
        match tx.commit().await {
            Ok(()) => Ok(self.log.write(&Fact::committed(&wish.id))?),
            Err(error @ Error::CommitOutcomeUnknown { .. }) => {
                self.log.write(&Fact::unknown(&wish.id))?;
                Err(error.into())
            }
            Err(error) => {
                self.log.write(&Fact::rolled_back(&wish.id))?;
                Err(error.into())
            }
        }
    }

    async fn with_a_receipt(&self, wish: &Wish) -> Result<(), Trouble> {
        let mut tx = <D as Driver>::begin(&self.pool, &self.statements).await?;
        let event = self.prepare(&mut tx, wish).await?;
        let receipt = match self.outbox.publish(&mut tx, event).await {
            Ok(receipt) => receipt,
            Err(error) => return self.refused(wish, error),
        };
        if wish.rolls_back {
            self.log.write(&Fact::rolled_back(&wish.id))?;
            return Ok(tx.rollback().await?);
        }
        match tx.commit().await {
            Ok(()) => {
                if wish.form == Form::Receipt {
                    receipt.committed();
                }
                Ok(self.log.write(&Fact::committed(&wish.id))?)
            }
            // The driver does not tell a refusal from a lost answer: there is nothing to write down.
            Err(error) => Err(error.into()),
        }
    }

    /// The business part of a transaction, and the intent.
    async fn prepare(&self, connection: &mut D::Connection, wish: &Wish) -> Result<EventBuilder, Trouble> {
        let place = match wish.key {
            Some(key) => D::next_place(connection, key).await?,
            None => 0,
        };
        let key = wish.key.map(|key| key.to_string());
        // The last moment before which it cannot be committed.
        self.log.write(&Fact::Intent {
            id: wish.id.clone(),
            place: key.is_some().then_some(place.unsigned_abs()),
            key: key.clone(),
            poison: wish.event_type == listener::POISON,
        })?;
        D::record(connection, &wish.id, wish.key.unwrap_or(-1), place).await?;
        let mut event = Event::builder(wish.event_type).id(&wish.id);
        event = match wish.size {
            Size::Small => event.json(format!(r#"{{"place":{place}}}"#)),
            Size::AtTheLimit => event.bytes(vec![b'x'; Payload::MAX_BYTES]),
            Size::BeyondIt => event.bytes(vec![b'x'; Payload::MAX_BYTES + 1]),
        };
        if let Some(key) = key {
            event = event.aggregate(AGGREGATE, key);
        }
        if let Some(delay) = wish.delay {
            event = event.deliver_after(delay);
        }
        Ok(event)
    }

    /// Publishing failed, so the transaction is dropped, which rolls it back.
    fn refused(&self, wish: &Wish, error: Error) -> Result<(), Trouble> {
        self.log.write(&Fact::rolled_back(&wish.id))?;
        match error {
            Error::Event(_) if wish.size == Size::BeyondIt => Ok(()),
            error => Err(error.into()),
        }
    }
}

/// An application's clock that is so many minutes ahead.
pub(crate) fn clock(minutes: i32) -> fn() -> DateTime<Utc> {
    match minutes {
        1.. => || Utc::now() + TimeDelta::minutes(10),
        0 => Utc::now,
        _ => || Utc::now() - TimeDelta::minutes(10),
    }
}
