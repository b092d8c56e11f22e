//! The shop: its events, its producers and its listeners.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox::retry::Exponential;
use outbox::{Builder, Delivery, DomainEvent, Error, Event, EventId, Failure, Handled, Outbox, Path, Subscription};
use serde::{Deserialize, Serialize};
use sqlx::Pool;
use tokio::time::{Instant, MissedTickBehavior};

use super::database::ShopDatabase;
use super::log::{Fact, Log};

/// A customer has bought something. Two listeners hear of it, by name.
#[derive(Debug, Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", aggregate = "Order")]
struct OrderPlaced {
    #[event(key)]
    number: i64,
    item: String,
    cents: u64,
}

/// What nobody can pack: its order fails until it is dead.
const POISON: &str = "poison";

/// Something that is shipped later: its event is delayed.
#[derive(Debug, Serialize, Deserialize, Event)]
#[event(type = "PreorderPlaced", aggregate = "Order")]
struct PreorderPlaced {
    #[event(key)]
    number: i64,
}

/// A customer wants the money back. Its listener panics, once.
#[derive(Debug, Serialize, Deserialize, Event)]
#[event(type = "RefundRequested", aggregate = "Order")]
struct RefundRequested {
    #[event(key)]
    number: i64,
    reason: String,
}

/// What the panic says; the node keeps quiet about this one.
pub(crate) const PANIC: &str = "the listener of the demo panics once";

/// One in so many calls of the flaky listener fails.
const FLAKY: u32 = 40;

/// What the listeners of a node share.
#[derive(Debug)]
struct Staff {
    log: Arc<Log>,
    /// Whether a listener here still has to panic.
    panic_due: AtomicBool,
}

impl Staff {
    /// Notes that a listener was called, and what became of it.
    fn attend(&self, listener: &str, delivery: &Delivery, work: impl FnOnce() -> Handled) -> Handled {
        let at = self.log.now();
        let (id, listener) = (delivery.id().to_string(), listener.to_owned());
        self.log.write(&Fact::Started {
            id: id.clone(),
            listener: listener.clone(),
            attempt: delivery.attempt,
            hot: delivery.path == Path::Hot,
            at,
        })?;
        let answer = work();
        let at = self.log.now();
        self.log.write(&match &answer {
            Ok(()) => Fact::Delivered { id, listener, at },
            Err(_) => Fact::Failed { id, listener },
        })?;
        answer
    }

    fn mail(&self, _order: OrderPlaced, delivery: &Delivery) -> Handled {
        self.attend("mail", delivery, || Ok(()))
    }

    fn pack(&self, order: OrderPlaced, delivery: &Delivery) -> Handled {
        self.attend("packing", delivery, || {
            if order.item == POISON {
                return Err(Failure::retry("nobody can pack this"));
            }
            if rand::random_range(0..FLAKY) == 0 {
                return Err(Failure::retry("the packing machine jams now and then"));
            }
            Ok(())
        })
    }

    fn remind(&self, _preorder: PreorderPlaced, delivery: &Delivery) -> Handled {
        self.attend("reminder", delivery, || Ok(()))
    }

    fn refund(&self, _refund: RefundRequested, delivery: &Delivery) -> Handled {
        self.attend("refund", delivery, || {
            if self.panic_due.swap(false, Ordering::Relaxed) {
                self.log.write(&Fact::Failed {
                    id: delivery.id().to_string(),
                    listener: "refund".to_owned(),
                })?;
                panic!("{PANIC}");
            }
            Ok(())
        })
    }
}

/// Adds the listeners, and the policy for what fails: quick, and soon over.
pub(crate) fn with_listeners<D: ShopDatabase, O>(
    builder: Builder<D, O>,
    log: &Arc<Log>,
    panics: bool,
) -> Builder<D, O> {
    let staff = Arc::new(Staff {
        log: Arc::clone(log),
        panic_due: AtomicBool::new(panics),
    });
    let [mail, packing, reminder, refund] = std::array::from_fn(|_| Arc::clone(&staff));
    builder
        .retry(Exponential::new(Duration::from_millis(20), Duration::from_millis(200)).attempts(6))
        .subscribe(
            Subscription::on::<OrderPlaced>(move |order, delivery: Delivery| {
                std::future::ready(mail.mail(order, &delivery))
            })
            .named("mail"),
        )
        .subscribe(
            Subscription::on::<OrderPlaced>(move |order, delivery: Delivery| {
                std::future::ready(packing.pack(order, &delivery))
            })
            .named("packing"),
        )
        .on::<PreorderPlaced>(move |preorder, delivery: Delivery| {
            std::future::ready(reminder.remind(preorder, &delivery))
        })
        .on::<RefundRequested>(move |request, delivery: Delivery| {
            // Inside the future: where the panic of an async listener happens.
            let refund = Arc::clone(&refund);
            async move { refund.refund(request, &delivery) }
        })
}

/// Why a transaction did not go as it was meant to.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Outbox(#[from] Error),
    #[error(transparent)]
    Event(#[from] outbox::EventError),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error("the log cannot be written: {0}")]
    Log(#[from] std::io::Error),
    /// Not trouble: how the closure form is told to roll back.
    #[error("the customer has changed their mind")]
    ChangedTheirMind,
}

/// What a customer does in one transaction.
#[derive(Debug)]
struct Wish {
    number: i64,
    event: Event,
    listeners: usize,
    delayed: bool,
    /// Whose order is kept, and its place in it.
    place: Option<(String, i64)>,
    /// They change their mind before the commit.
    rolls_back: bool,
    /// They add something, and take it back: a savepoint inside of the transaction.
    hesitates: bool,
}

/// A customer, who places one order after the other.
#[derive(Debug)]
pub(crate) struct Producer<D: ShopDatabase> {
    pub(crate) outbox: Outbox<D>,
    pub(crate) pool: Pool<D>,
    pub(crate) log: Arc<Log>,
    /// The shop's table.
    pub(crate) orders: Arc<str>,
    /// Orders are numbered from here.
    pub(crate) first: i64,
    /// Whether one of them is the poison.
    pub(crate) poisons: bool,
    /// Whether the events are those of a few customers, whose order is kept.
    pub(crate) customers: bool,
}

/// A producer stands for so many customers, one after the other: nobody else writes about them.
const CUSTOMERS: i64 = 10;

impl<D: ShopDatabase> Producer<D> {
    /// Places an order every so often, until then.
    pub(crate) async fn run(self, every: Duration, until: Instant) -> Result<(), std::io::Error> {
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for turn in 0.. {
            ticks.tick().await;
            if Instant::now() >= until {
                break;
            }
            let placed = match turn % 3 {
                0 => self.with_the_wrapper(turn).await,
                1 => self.with_a_receipt(turn).await,
                _ => self.with_a_closure(turn).await,
            };
            match placed {
                Ok(()) | Err(Trouble::ChangedTheirMind) => {}
                Err(Trouble::Log(error)) => return Err(error),
                Err(trouble) => self.log.write(&Fact::Trouble {
                    error: trouble.to_string(),
                })?,
            }
        }
        Ok(())
    }

    fn wish(&self, turn: i64) -> Result<Wish, Trouble> {
        let mut wish = self.plain_wish(turn)?;
        if let Some((customer, _)) = &wish.place {
            wish.event = wish.event.to_builder().aggregate_id(customer.as_str()).build()?;
        }
        Ok(wish)
    }

    fn plain_wish(&self, turn: i64) -> Result<Wish, Trouble> {
        let number = self.first + turn;
        let mut wish = Wish {
            number,
            event: self.order("book", number)?,
            listeners: 2,
            delayed: false,
            place: self
                .customers
                .then(|| (format!("customer-{}", self.first + turn % CUSTOMERS), turn)),
            rolls_back: rand::random_range(0..10) == 0,
            hesitates: rand::random_range(0..15) == 0,
        };
        // The first: on a busy machine a producer may not get to a later one.
        if self.poisons && turn == 0 {
            wish.event = self.order(POISON, number)?;
            wish.rolls_back = false;
            return Ok(wish);
        }
        match rand::random_range(0..20) {
            0 => {
                let delay = Duration::from_millis(rand::random_range(100..1000));
                let event = PreorderPlaced { number }.to_event()?.to_builder();
                wish.event = event.deliver_after(delay).build()?;
                wish.listeners = 1;
                wish.delayed = true;
            }
            1 => {
                let reason = "it is not what it looked like".to_owned();
                wish.event = RefundRequested { number, reason }.to_event()?;
                wish.listeners = 1;
            }
            _ => {}
        }
        Ok(wish)
    }

    fn order(&self, item: &str, number: i64) -> Result<Event, outbox::EventError> {
        let (item, cents) = (item.to_owned(), 1999);
        OrderPlaced { number, item, cents }.to_event()
    }

    /// What is added and taken back.
    fn second_thought(&self, wish: &Wish) -> Result<Event, outbox::EventError> {
        self.order("chocolate", wish.number)
    }

    /// Writes the order, and that it may be committed.
    async fn write(
        &self,
        connection: &mut D::Connection,
        id: &EventId,
        wish: &Wish,
        listeners: usize,
    ) -> Result<(), Trouble> {
        self.log.write(&Fact::Intent {
            id: id.to_string(),
            listeners,
            delayed: wish.delayed,
            place: wish.place.clone(),
        })?;
        D::insert_order(connection, &self.orders, id.as_str(), wish.number).await?;
        Ok(())
    }

    fn committed(&self, id: &EventId) -> Result<(), Trouble> {
        let (id, at) = (id.to_string(), self.log.now());
        Ok(self.log.write(&Fact::Committed { id, at })?)
    }

    fn rolled_back(&self, id: &EventId) -> Result<(), Trouble> {
        Ok(self.log.write(&Fact::RolledBack { id: id.to_string() })?)
    }

    /// Notes what became of a commit, unless nobody knows: then the shop's table tells.
    fn settle<E: Into<Trouble>>(&self, id: &EventId, outcome: Result<(), E>) -> Result<(), Trouble> {
        match outcome.map_err(Into::into) {
            Ok(()) => self.committed(id),
            Err(trouble) => {
                if matches!(trouble, Trouble::Outbox(Error::NotCommitted { .. })) {
                    self.rolled_back(id)?;
                }
                Err(trouble)
            }
        }
    }

    /// The first form: a transaction of the library's, whose commit hands over.
    async fn with_the_wrapper(&self, turn: i64) -> Result<(), Trouble> {
        let wish = self.wish(turn)?;
        let mut tx = self.outbox.begin(&self.pool).await?;
        let published = self.outbox.publish(&mut tx, &wish.event).await?;
        let id = &published.ids()[0];
        self.write(&mut tx, id, &wish, wish.listeners).await?;
        if wish.hesitates {
            let mut savepoint = tx.savepoint().await?;
            let published = self
                .outbox
                .publish(&mut savepoint, &self.second_thought(&wish)?)
                .await?;
            let id = &published.ids()[0];
            self.write(&mut savepoint, id, &wish, 2).await?;
            savepoint.rollback().await?;
            self.rolled_back(id)?;
        }
        if wish.rolls_back {
            tx.rollback().await?;
            return self.rolled_back(id);
        }
        let outcome = tx.commit().await;
        self.settle(id, outcome)
    }

    /// The second form: a transaction of the pool's, and a receipt.
    async fn with_a_receipt(&self, turn: i64) -> Result<(), Trouble> {
        let wish = self.wish(turn)?;
        let mut tx = D::begin_plainly(&self.pool).await?;
        let receipt = self.outbox.publish(&mut tx, &wish.event).await?;
        let id = receipt.ids().swap_remove(0);
        self.write(&mut tx, &id, &wish, wish.listeners).await?;
        let mut undone = None;
        if wish.hesitates {
            let mut savepoint = sqlx::Connection::begin(&mut *tx).await?;
            let receipt = self
                .outbox
                .publish(&mut savepoint, &self.second_thought(&wish)?)
                .await?;
            let id = receipt.ids().swap_remove(0);
            self.write(&mut savepoint, &id, &wish, 2).await?;
            savepoint.rollback().await?;
            self.rolled_back(&id)?;
            undone = Some(receipt);
        }
        if wish.rolls_back {
            tx.rollback().await?;
            receipt.rolled_back();
            return self.rolled_back(&id);
        }
        let outcome = tx.commit().await;
        if outcome.is_ok() {
            receipt.committed();
            // A mistake that is easily made: the savepoint of this one was rolled back. It must not matter.
            if let Some(undone) = undone {
                undone.committed();
            }
        }
        self.settle(&id, outcome)
    }

    /// The third form: a closure, which is committed if it returns `Ok`.
    async fn with_a_closure(&self, turn: i64) -> Result<(), Trouble> {
        let wish = self.wish(turn)?;
        let mut written = None;
        let outcome: Result<(), Trouble> = self
            .outbox
            .transaction(&self.pool, async |tx| {
                let published = self.outbox.publish(tx, &wish.event).await?;
                let id = written.insert(published.ids()[0].clone());
                self.write(tx, id, &wish, wish.listeners).await?;
                if wish.rolls_back {
                    return Err(Trouble::ChangedTheirMind);
                }
                Ok(())
            })
            .await;
        match &written {
            Some(id) if matches!(outcome, Err(Trouble::ChangedTheirMind)) => self.rolled_back(id),
            Some(id) => self.settle(id, outcome),
            None => outcome,
        }
    }
}
