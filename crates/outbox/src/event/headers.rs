use std::collections::BTreeMap;
use std::collections::btree_map;

use super::EventError;

/// Header names with this prefix are written by the library alone.
pub const RESERVED_PREFIX: &str = "outbox-";

/// The version of a typed event's payload, as [`DomainEvent::VERSION`](crate::DomainEvent::VERSION) says it.
pub(crate) const VERSION_HEADER: &str = "outbox-event-version";

/// Text by name that travels with an event, to the listener and into a broker's own headers.
///
/// Sorted by name. No name or value holds CR, LF or NUL, so that none can forge a line of a protocol it is written to.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(transparent)]
pub struct Headers(BTreeMap<String, String>);

impl Headers {
    /// The value of a header.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// All headers, in the order of their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// How many headers there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A header of the user's: the reserved prefix is refused.
    pub(crate) fn insert(&mut self, name: String, value: String) -> Result<(), EventError> {
        if name
            .get(..RESERVED_PREFIX.len())
            .is_some_and(|p| p.eq_ignore_ascii_case(RESERVED_PREFIX))
        {
            return Err(EventError::ReservedHeader { name });
        }
        self.insert_own(name, value)
    }

    /// A header of the library's own.
    pub(crate) fn insert_own(&mut self, name: String, value: String) -> Result<(), EventError> {
        if name.is_empty() {
            return Err(EventError::Empty { what: "header name" });
        }
        if breaks_a_line(&name) || breaks_a_line(&value) {
            return Err(EventError::HeaderLineBreak {
                name: name.escape_default().to_string(),
            });
        }
        self.0.insert(name, value);
        Ok(())
    }

    /// As the table holds them: a JSON object, or nothing where there are none.
    pub(crate) fn to_json(&self) -> Option<String> {
        if self.0.is_empty() {
            return None;
        }
        Some(serde_json::to_string(&self.0).expect("a map of strings is always JSON"))
    }

    /// From the table, where another program may have written anything.
    pub(crate) fn from_json(json: &str) -> Result<Self, EventError> {
        let map: BTreeMap<String, String> =
            serde_json::from_str(json).map_err(|source| EventError::HeadersNotJson { source })?;
        let mut headers = Self::default();
        for (name, value) in map {
            headers.insert_own(name, value)?;
        }
        Ok(headers)
    }
}

fn breaks_a_line(text: &str) -> bool {
    text.bytes().any(|byte| matches!(byte, b'\r' | b'\n' | 0))
}

impl<'a> IntoIterator for &'a Headers {
    type Item = (&'a String, &'a String);
    type IntoIter = btree_map::Iter<'a, String, String>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}
