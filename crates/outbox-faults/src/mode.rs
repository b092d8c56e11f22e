//! The modes of delivery, as data. What a mode means to the builder stands in `node.rs` and nowhere else.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// How cold rows are owned, and whether order is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Row claims, no order.
    Unordered,
    /// Lanes, no order.
    Lanes,
    /// Lanes, and the order of each key.
    Ordered,
}

impl Mode {
    pub(crate) const ALL: &[Self] = &[Self::Unordered, Self::Lanes, Self::Ordered];

    /// Whether first deliveries of a key must be in order.
    pub(crate) fn keeps_order(self) -> bool {
        self == Self::Ordered
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Unordered => "unordered",
            Self::Lanes => "lanes",
            Self::Ordered => "ordered",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
