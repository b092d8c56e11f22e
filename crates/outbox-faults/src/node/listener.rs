//! The listener: its effect is a line in the log.

use std::sync::Arc;
use std::time::Duration;

use outbox::testing::facts::{Fact, Log};
use outbox::{Builder, Delivery, Failure, Handled, Subscription};

use super::Config;
use crate::clock;
use crate::ledger::Ledger;
use crate::rng::Rng;

/// What the panic says; the node keeps quiet about this one.
pub(crate) const PANIC: &str = "a listener of the harness panics";
/// An event type for each way to be handled.
pub(crate) const PLAIN: &str = "Plain";
pub(crate) const FLAKY: &str = "Flaky";
pub(crate) const POISON: &str = "Poison";
pub(crate) const PANICKING: &str = "Panicking";

pub(crate) fn add<D: Ledger, O>(builder: Builder<D, O>, config: &Config, log: &Arc<Log>) -> Builder<D, O> {
    let listener = Arc::new(Listener {
        log: Arc::clone(log),
        seed: config.seed,
        longest: config.workload.listener,
    });
    builder.subscribe(Subscription::all("harness", move |delivery: Delivery| {
        let listener = Arc::clone(&listener);
        async move { listener.handle(&delivery).await }
    }))
}

#[derive(Debug)]
struct Listener {
    log: Arc<Log>,
    seed: u64,
    longest: Duration,
}

impl Listener {
    async fn handle(&self, delivery: &Delivery) -> Handled {
        // The same event takes equally long in every run of a seed.
        let mut rng = Rng::of(self.seed, delivery.id().as_str(), u64::from(delivery.attempt));
        let longest = u64::try_from(self.longest.as_micros()).unwrap_or(u64::MAX);
        if longest > 0 {
            let time = Duration::from_micros(rng.between(0, longest));
            tokio::time::sleep(time).await;
        }
        outbox::failpoint::hit("in-listener");
        match delivery.event_type().as_str() {
            POISON => return Err(Failure::retry("nobody can handle this")),
            PANICKING if delivery.attempt == 1 => panic!("{PANIC}"),
            FLAKY if delivery.attempt == 1 => return Err(Failure::retry("fails once")),
            _ => {}
        }
        self.log.write(&Fact::Delivered {
            id: delivery.id().to_string(),
            at: clock::now(),
            attempt: delivery.attempt,
        })?;
        Ok(())
    }
}
