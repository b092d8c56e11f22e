use std::fmt;
use std::sync::{Mutex, PoisonError};

use ulid::Generator;

use super::EventError;

/// Identifies an event, everywhere: in the table, in a broker's header, in a consumer's inbox.
///
/// At most [`EventId::MAX_CHARS`] characters. The default is a ULID, 26 characters that sort by time and, within one
/// process, strictly by creation.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(Box<str>);

impl EventId {
    /// The longest id that the table holds.
    pub const MAX_CHARS: usize = 36;

    /// A new ULID, greater than every id this process has made before, even if the clock was set back.
    pub fn generate() -> Self {
        static GENERATOR: Mutex<Generator> = Mutex::new(Generator::new());
        let mut generator = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            // Only 2^80 ids within one millisecond make this fail; the next millisecond starts afresh.
            if let Ok(id) = generator.generate() {
                let mut text = [0; ulid::ULID_LEN];
                return Self(Box::from(&*id.array_to_str(&mut text)));
            }
        }
    }

    /// An id of your own making, for example the key of an incoming request.
    ///
    /// # Errors
    /// [`EventError::Empty`], [`EventError::TooLong`] or [`EventError::ControlCharacter`].
    pub fn new(id: impl Into<String>) -> Result<Self, EventError> {
        let id = id.into();
        super::check_text("event id", &id, Self::MAX_CHARS)?;
        Ok(Self(id.into_boxed_str()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventId({})", self.0)
    }
}

impl AsRef<str> for EventId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_one_process_increase_strictly_across_threads() {
        let threads: Vec<_> = (0..4)
            .map(|_| std::thread::spawn(|| (0..5_000).map(|_| EventId::generate()).collect::<Vec<_>>()))
            .collect();
        let mut all = Vec::new();
        for thread in threads {
            let ids = thread.join().unwrap();
            assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
            all.extend(ids);
        }
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn a_long_id_is_refused_and_says_the_limit() {
        let error = EventId::new("x".repeat(37)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the event id has 37 characters; at most 36 are allowed: shorten it"
        );
        assert!(EventId::new("ü".repeat(36)).is_ok());
    }
}
