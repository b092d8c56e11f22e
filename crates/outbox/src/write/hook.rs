use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::event::Event;

/// Why a hook failed. It is logged; the business code never sees it.
pub type HookError = Box<dyn std::error::Error + Send + Sync>;

/// Watches, and may change, what is written. Every method is called once per batch, on the publishing task: keep it
/// short. An error or a panic is logged and otherwise without effect.
pub trait WriterHook: Send + Sync + 'static {
    /// Before the insert: what it returns is what is written. Leave an event out to suppress it; replace one with what
    /// [`Event::to_builder`] makes of it. On an error the batch is written as it was.
    ///
    /// # Errors
    /// Whatever the hook could not do.
    fn before_write(&self, events: Vec<Event>) -> Result<Vec<Event>, HookError> {
        Ok(events)
    }

    /// After the insert, within the transaction.
    ///
    /// # Errors
    /// Whatever the hook could not do.
    fn after_write(&self, events: &[Event]) -> Result<(), HookError> {
        let _ = events;
        Ok(())
    }

    /// After the commit. Not called if its outcome is unknown, or a receipt is dropped.
    ///
    /// # Errors
    /// Whatever the hook could not do.
    fn after_commit(&self, events: &[Event]) -> Result<(), HookError> {
        let _ = events;
        Ok(())
    }

    /// After a rollback, or a drop of the transaction or savepoint. Not called for a receipt that is dropped.
    ///
    /// # Errors
    /// Whatever the hook could not do.
    fn after_rollback(&self, events: &[Event]) -> Result<(), HookError> {
        let _ = events;
        Ok(())
    }
}

/// The hooks of an outbox, in the order they were added.
#[derive(Clone, Default)]
pub(crate) struct Hooks(Vec<Arc<dyn WriterHook>>);

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} hooks", self.0.len())
    }
}

impl Hooks {
    pub(crate) fn push(&mut self, hook: Arc<dyn WriterHook>) {
        self.0.push(hook);
    }

    pub(super) fn before_write(&self, mut events: Vec<Event>) -> Vec<Event> {
        for hook in &self.0 {
            let batch = events.clone();
            if let Some(changed) = guarded("before_write", || hook.before_write(batch)) {
                events = changed;
            }
        }
        events
    }

    pub(super) fn after_write(&self, events: &[Event]) {
        self.each("after_write", events, |hook| hook.after_write(events));
    }

    pub(super) fn after_commit(&self, events: &[Event]) {
        self.each("after_commit", events, |hook| hook.after_commit(events));
    }

    pub(super) fn after_rollback(&self, events: &[Event]) {
        self.each("after_rollback", events, |hook| hook.after_rollback(events));
    }

    fn each(&self, name: &str, events: &[Event], call: impl Fn(&dyn WriterHook) -> Result<(), HookError>) {
        if !events.is_empty() {
            for hook in &self.0 {
                guarded(name, || call(hook.as_ref()));
            }
        }
    }
}

fn guarded<T>(name: &str, call: impl FnOnce() -> Result<T, HookError>) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Some(value),
        Ok(Err(error)) => {
            tracing::error!(hook = name, %error, "a writer hook failed");
            None
        }
        Err(_) => {
            tracing::error!(hook = name, "a writer hook panicked");
            None
        }
    }
}
