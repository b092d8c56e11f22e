use std::fmt;
use std::str::FromStr;

/// The default name of the event table.
pub const DEFAULT_TABLE: &str = "outbox_event";

/// The name of the event table: a plain identifier, so that it can stand in SQL.
///
/// Its companions are named after it: `outbox_event` goes with `outbox_event_attempt`, `outbox_event_lease` and
/// `outbox_event_migration`. Several outboxes can thus share a database.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableName(String);

impl TableName {
    /// Leaves room for the names of indexes and companions within the 63 bytes that PostgreSQL allows.
    pub const MAX_BYTES: usize = 48;

    /// Checks a name: an ASCII letter or underscore, then letters, digits and underscores.
    ///
    /// # Errors
    /// [`TableNameError`] for anything else, or more than [`Self::MAX_BYTES`] bytes.
    pub fn new(name: impl Into<String>) -> Result<Self, TableNameError> {
        let name = name.into();
        let mut bytes = name.bytes();
        let plain = bytes
            .next()
            .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if plain && name.len() <= Self::MAX_BYTES {
            Ok(Self(name))
        } else {
            Err(TableNameError {
                name: name.chars().take(80).collect(),
            })
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Failed attempts, one row each.
    pub(crate) fn attempt(&self) -> String {
        self.companion("attempt")
    }

    /// Named leases: work that one node at a time may do.
    pub(crate) fn lease(&self) -> String {
        self.companion("lease")
    }

    /// The nodes that share the lanes.
    pub(crate) fn node(&self) -> String {
        self.companion("node")
    }

    /// Who reads which lane.
    pub(crate) fn lane(&self) -> String {
        self.companion("lane")
    }

    /// Keys whose events wait.
    pub(crate) fn key(&self) -> String {
        self.companion("key")
    }

    /// Which migrations have run.
    pub(crate) fn migration(&self) -> String {
        self.companion("migration")
    }

    fn companion(&self, what: &str) -> String {
        format!("{}_{what}", self.0)
    }
}

impl Default for TableName {
    fn default() -> Self {
        Self(DEFAULT_TABLE.to_owned())
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for TableName {
    type Err = TableNameError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::new(name)
    }
}

impl TryFrom<&str> for TableName {
    type Error = TableNameError;

    fn try_from(name: &str) -> Result<Self, Self::Error> {
        Self::new(name)
    }
}

/// A table name that could not stand in SQL as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} cannot be a table name: use 1 to {max} ASCII letters, digits and underscores, no digit first, no quotes",
    max = TableName::MAX_BYTES
)]
pub struct TableNameError {
    name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_identifiers_are_names() {
        let long = "x".repeat(64);
        for name in [
            "a;drop table x",
            &long,
            "",
            "\"quoted\"",
            "`quoted`",
            "a b",
            "1a",
            "a.b",
            "ä",
            "a\0",
        ] {
            let error = TableName::new(name).unwrap_err();
            assert!(
                error.to_string().ends_with(
                    "cannot be a table name: use 1 to 48 ASCII letters, digits and underscores, \
                     no digit first, no quotes"
                ),
                "{error}"
            );
        }
        assert!(TableName::new("_A9").is_ok());
    }

    #[test]
    fn companions_are_named_after_the_table() {
        assert_eq!(TableName::default().attempt(), "outbox_event_attempt");
        assert_eq!(TableName::new("my_events").unwrap().lease(), "my_events_lease");
        assert_eq!(TableName::new("my_events").unwrap().migration(), "my_events_migration");
    }
}
