//! The modes of delivery, as data. What a mode means to the builder stands here and nowhere else.

use std::fmt;

use clap::ValueEnum;
use outbox::{Builder, Outbox};
use serde::{Deserialize, Serialize};
use sqlx::Pool;

use crate::ledger::Ledger;

/// How cold rows are owned, and whether order is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Row claims, no order.
    Unordered,
}

impl Mode {
    pub(crate) const ALL: &[Self] = &[Self::Unordered];

    /// A builder for a node of several, in this mode.
    pub(crate) fn builder<D: Ledger>(self, pool: &Pool<D>) -> Builder<D> {
        match self {
            Self::Unordered => Outbox::multi_node(pool),
        }
    }

    /// Whether first deliveries of a key must be in order.
    pub(crate) fn keeps_order(self) -> bool {
        match self {
            Self::Unordered => false,
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Unordered => "unordered",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
