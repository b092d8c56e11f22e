//! Writer hooks: they may change what is written, and can break nothing.

use std::sync::{Arc, Mutex};

use outbox::store::Filter;
use outbox::{Event, HookError, Outbox, WriterHook};
use outbox_tests::{Database, On};

macro_rules! on_every_database {
    ($($name:ident: $database:ty),*) => {$(
        crate::cases! { $name, $database:
            hook_is_called_once_per_batch
            hook_learns_of_a_rollback
            hook_learns_the_fate_of_each_savepoint
            hook_changes_and_suppresses_events
            hook_that_fails_or_panics_changes_nothing
            hooks_run_in_the_order_they_were_added
        }
    )*};
}

on_every_database!(sqlite: sqlx::Sqlite, postgres: sqlx::Postgres, mariadb: sqlx::MySql, memory: outbox::testing::Memory);

/// Writes down what it is told.
#[derive(Clone, Default)]
struct Scribe(Arc<Mutex<Vec<String>>>);

impl Scribe {
    fn told(&self, what: &str, events: &[Event]) -> Result<(), HookError> {
        let types: Vec<_> = events.iter().map(|event| event.event_type().as_str()).collect();
        self.0.lock().unwrap().push(format!("{what} {}", types.join(" ")));
        Ok(())
    }

    fn lines(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl WriterHook for Scribe {
    fn before_write(&self, events: Vec<Event>) -> Result<Vec<Event>, HookError> {
        self.told("before", &events)?;
        Ok(events)
    }

    fn after_write(&self, events: &[Event]) -> Result<(), HookError> {
        self.told("written", events)
    }

    fn after_commit(&self, events: &[Event]) -> Result<(), HookError> {
        self.told("committed", events)
    }

    fn after_rollback(&self, events: &[Event]) -> Result<(), HookError> {
        self.told("rolled back", events)
    }
}

fn event(event_type: &'static str) -> Event {
    Event::json(event_type, "{}").unwrap()
}

async fn with_hook<D: Database>(on: &On<D>, hook: impl WriterHook) -> Outbox<D> {
    Outbox::writer_only(&on.pool).hook(hook).build().await.unwrap()
}

async fn hook_is_called_once_per_batch<D: Database>() {
    let on = On::<D>::open("hook_once").await;
    let scribe = Scribe::default();
    let outbox = with_hook(&on, scribe.clone()).await;
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    outbox.publish_all(&mut tx, [event("A"), event("B")]).await.unwrap();
    outbox.publish(&mut tx, event("C")).await.unwrap();
    assert_eq!(scribe.lines(), ["before A B", "written A B", "before C", "written C"]);
    tx.commit().await.unwrap();
    assert_eq!(scribe.lines(), ["committed A B", "committed C"]);
}

async fn hook_learns_of_a_rollback<D: Database>() {
    let on = On::<D>::open("hook_rollback").await;
    let scribe = Scribe::default();
    let outbox = with_hook(&on, scribe.clone()).await;
    for explicitly in [true, false] {
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        outbox.publish_all(&mut tx, [event("A"), event("B")]).await.unwrap();
        scribe.lines();
        if explicitly {
            tx.rollback().await.unwrap();
        } else {
            drop(tx);
        }
        assert_eq!(scribe.lines(), ["rolled back A B"]);
    }
}

async fn hook_learns_the_fate_of_each_savepoint<D: Database>() {
    let on = On::<D>::open("hook_savepoint").await;
    let scribe = Scribe::default();
    let outbox = with_hook(&on, scribe.clone()).await;
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    let mut savepoint = tx.savepoint().await.unwrap();
    outbox.publish(&mut savepoint, event("Kept")).await.unwrap();
    savepoint.release().await.unwrap();
    let mut savepoint = tx.savepoint().await.unwrap();
    outbox.publish(&mut savepoint, event("Undone")).await.unwrap();
    scribe.lines();
    savepoint.rollback().await.unwrap();
    assert_eq!(scribe.lines(), ["rolled back Undone"]);
    tx.commit().await.unwrap();
    assert_eq!(scribe.lines(), ["committed Kept"]);
}

/// Marks what it lets through.
struct Censor;

impl WriterHook for Censor {
    fn before_write(&self, events: Vec<Event>) -> Result<Vec<Event>, HookError> {
        events
            .into_iter()
            .filter(|event| event.event_type().as_str() != "Secret")
            .map(|event| Ok(event.to_builder().header("censored", "yes").build()?))
            .collect()
    }
}

async fn hook_changes_and_suppresses_events<D: Database>() {
    let on = On::<D>::open("hook_changes").await;
    let scribe = Scribe::default();
    let outbox = Outbox::writer_only(&on.pool)
        .hook(Censor)
        .hook(scribe.clone())
        .build()
        .await
        .unwrap();
    let (public, secret) = (event("Public"), event("Secret"));
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    let published = outbox.publish_all(&mut tx, [&secret, &public]).await.unwrap();
    assert_eq!(published.ids(), [public.id().clone()]);
    // A batch of which nothing is left.
    let published = outbox.publish(&mut tx, event("Secret")).await.unwrap();
    assert!(published.ids().is_empty());
    tx.commit().await.unwrap();

    let stored = outbox.store().fetch(public.id()).await.unwrap().unwrap().event.unwrap();
    assert_eq!(stored.headers().get("censored"), Some("yes"));
    assert_eq!(stored.payload(), public.payload());
    assert_eq!(outbox.store().count(&Filter::all(), 10).await.unwrap(), 1);
    let committed: Vec<_> = scribe
        .lines()
        .into_iter()
        .filter(|line| line.starts_with("committed"))
        .collect();
    assert_eq!(committed, ["committed Public"]);
}

/// Fails in every way at every turn.
struct Saboteur {
    panics: bool,
}

impl Saboteur {
    fn fail<T>(&self) -> Result<T, HookError> {
        assert!(!self.panics, "a hook that panics");
        Err("a hook that fails".into())
    }
}

impl WriterHook for Saboteur {
    fn before_write(&self, _events: Vec<Event>) -> Result<Vec<Event>, HookError> {
        self.fail()
    }

    fn after_write(&self, _events: &[Event]) -> Result<(), HookError> {
        self.fail()
    }

    fn after_commit(&self, _events: &[Event]) -> Result<(), HookError> {
        self.fail()
    }

    fn after_rollback(&self, _events: &[Event]) -> Result<(), HookError> {
        self.fail()
    }
}

async fn hook_that_fails_or_panics_changes_nothing<D: Database>() {
    let on = On::<D>::open("hook_fails").await;
    for panics in [false, true] {
        let scribe = Scribe::default();
        let outbox = Outbox::writer_only(&on.pool)
            .hook(Saboteur { panics })
            .hook(scribe.clone())
            .build()
            .await
            .unwrap();
        let event = event("Unharmed");
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        outbox.publish(&mut tx, &event).await.unwrap();
        tx.rollback().await.unwrap();
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        outbox.publish(&mut tx, &event).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(
            outbox.store().fetch(event.id()).await.unwrap().unwrap().event.unwrap(),
            event
        );
        // The hooks after it are called all the same.
        let told = scribe.lines();
        assert_eq!(told[2], "rolled back Unharmed");
        assert_eq!(told[5], "committed Unharmed");
    }
}

async fn hooks_run_in_the_order_they_were_added<D: Database>() {
    struct Append(&'static str);
    impl WriterHook for Append {
        fn before_write(&self, events: Vec<Event>) -> Result<Vec<Event>, HookError> {
            let append = |event: &Event| {
                let before = event.headers().get("trail").unwrap_or_default().to_owned();
                event.to_builder().header("trail", before + self.0).build()
            };
            Ok(events.iter().map(append).collect::<Result<_, _>>()?)
        }
    }
    let on = On::<D>::open("hook_order").await;
    let outbox = Outbox::writer_only(&on.pool)
        .hook(Append("a"))
        .hook(Append("b"))
        .hook(Append("c"))
        .build()
        .await
        .unwrap();
    let event = event("Trailed");
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    outbox.publish(&mut tx, &event).await.unwrap();
    tx.commit().await.unwrap();
    let stored = outbox.store().fetch(event.id()).await.unwrap().unwrap().event.unwrap();
    assert_eq!(stored.headers().get("trail"), Some("abc"));
}
