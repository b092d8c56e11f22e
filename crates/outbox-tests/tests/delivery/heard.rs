//! A listener that remembers, and the questions tests ask it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox::store::{Status, Store, StoredEvent};
use outbox::{Backend, Delivery, Event, EventId, Failure, Handled, Handler, Outbox};
use outbox_testbed::eventually;

/// How long anything may take on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// What a listener has heard, and what it shall answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    deliveries: Vec<Delivery>,
    answers: VecDeque<Answer>,
    then: Answer,
}

/// What to answer.
#[derive(Clone, Debug, Default)]
pub(crate) enum Answer {
    #[default]
    Done,
    Fail,
    RetryAfter(Duration),
    Defer(Duration),
    Permanent,
    Panic,
    Hang,
}

impl Heard {
    /// Answers these in turn, and then always `Done`.
    pub(crate) fn answering(answers: impl IntoIterator<Item = Answer>) -> Self {
        let heard = Self::default();
        heard.0.lock().unwrap().answers = answers.into_iter().collect();
        heard
    }

    /// Answers this, always.
    pub(crate) fn always(answer: Answer) -> Self {
        let heard = Self::default();
        heard.0.lock().unwrap().then = answer;
        heard
    }

    pub(crate) fn then(&self, answer: Answer) {
        self.0.lock().unwrap().then = answer;
    }

    pub(crate) fn listener(&self) -> impl Handler + use<> {
        let heard = self.clone();
        move |delivery: Delivery| {
            let heard = heard.clone();
            async move { heard.hear(delivery).await }
        }
    }

    async fn hear(&self, delivery: Delivery) -> Handled {
        let answer = {
            let mut state = self.0.lock().unwrap();
            state.deliveries.push(delivery);
            let then = state.then.clone();
            state.answers.pop_front().unwrap_or(then)
        };
        match answer {
            Answer::Done => Ok(()),
            Answer::Fail => Err(Failure::retry("the listener failed")),
            Answer::RetryAfter(delay) => Err(Failure::retry_after(delay, "later")),
            Answer::Defer(delay) => Err(Failure::defer(delay)),
            Answer::Permanent => Err(Failure::permanent("never")),
            Answer::Panic => panic!("the listener panicked on purpose"),
            Answer::Hang => std::future::pending().await,
        }
    }

    pub(crate) fn deliveries(&self) -> Vec<Delivery> {
        self.0.lock().unwrap().deliveries.clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap().deliveries.len()
    }

    /// Waits until this many deliveries were heard.
    pub(crate) async fn wait(&self, count: usize) -> Vec<Delivery> {
        eventually(&format!("{count} deliveries"), DEADLINE, async || {
            let deliveries = self.deliveries();
            (deliveries.len() >= count).then_some(deliveries)
        })
        .await
    }
}

pub(crate) fn event(event_type: &'static str) -> Event {
    Event::json(event_type, r#"{"total": 42}"#).unwrap()
}

/// Publishes in a transaction of our own.
pub(crate) async fn publish<D: Backend>(outbox: &Outbox<D>, pool: &D::Pool, event: &Event) -> EventId {
    let mut tx = outbox.begin(pool).await.unwrap();
    outbox.publish(&mut tx, event).await.unwrap();
    tx.commit().await.unwrap();
    event.id().clone()
}

/// Waits until an event has this status.
pub(crate) async fn settled(store: &dyn Store, id: &EventId, status: Status) -> StoredEvent {
    eventually(&format!("{id} to be {status}"), DEADLINE, async || {
        store.fetch(id).await.unwrap().filter(|event| event.status == status)
    })
    .await
}

/// Waits until nothing is pending.
pub(crate) async fn drained(store: &dyn Store) {
    eventually("nothing to be pending", DEADLINE * 2, async || {
        let stats = store.stats(10_000).await.unwrap();
        (stats.total(Status::New) + stats.total(Status::Retry) == 0).then_some(())
    })
    .await;
}
