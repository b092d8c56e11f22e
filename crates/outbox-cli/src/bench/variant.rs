//! The ways of delivery that are measured, and the builder of each.

use outbox::store::Driver;
use outbox::{Builder, Outbox};
use sqlx::Pool;

use super::bare::drain::BareLoop;

/// How a node makes rows its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Ownership {
    /// Row by row.
    RowClaims,
    /// Lane by lane.
    Lanes,
    /// Lane by lane, and one event per key at a time.
    Ordered,
}

/// A way of delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variant {
    pub(crate) ownership: Ownership,
    /// Delivered rows are deleted instead of marked.
    pub(crate) delete: bool,
}

impl Variant {
    pub(crate) const ROW_CLAIMS: Self = Self::of(Ownership::RowClaims);
    #[allow(dead_code, reason = "measured as soon as the library has lanes")]
    pub(crate) const LANES: Self = Self::of(Ownership::Lanes);
    #[allow(dead_code, reason = "measured as soon as the library has lanes")]
    pub(crate) const LANES_AND_DELETE: Self = Self {
        delete: true,
        ..Self::LANES
    };
    #[allow(dead_code, reason = "measured as soon as the library has lanes")]
    pub(crate) const ORDERED: Self = Self::of(Ownership::Ordered);

    /// What `drain` measures.
    pub(crate) const DRAINED: &[Self] = &[Self::ROW_CLAIMS];
    /// What `ordered` measures.
    pub(crate) const IN_ORDER: &[Self] = &[];
    /// What `grown`, `held` and `nodes` measure.
    pub(crate) const STRAINED: &[Self] = &[Self::ROW_CLAIMS];

    const fn of(ownership: Ownership) -> Self {
        Self {
            ownership,
            delete: false,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match (self.ownership, self.delete) {
            (Ownership::RowClaims, false) => "row claims",
            (Ownership::RowClaims, true) => "row claims, delete",
            (Ownership::Lanes, false) => "lanes",
            (Ownership::Lanes, true) => "lanes, delete",
            (Ownership::Ordered, false) => "ordered",
            (Ownership::Ordered, true) => "ordered, delete",
        }
    }

    /// The loop that does the same work by hand.
    pub(crate) fn by_hand(self) -> BareLoop {
        match (self.ownership, self.delete) {
            (Ownership::RowClaims, _) => BareLoop::ClaimAndUpdate,
            (Ownership::Lanes | Ownership::Ordered, false) => BareLoop::ReadAndUpdate,
            (Ownership::Lanes | Ownership::Ordered, true) => BareLoop::ReadAndDelete,
        }
    }

    /// The outbox that delivers so. `alone`: there is no other node.
    pub(crate) fn builder<D: Driver>(self, pool: &Pool<D>, alone: bool) -> Builder<D> {
        let nodes = if alone { Outbox::single_node } else { Outbox::multi_node };
        let builder = match self.ownership {
            Ownership::RowClaims => nodes(pool),
            Ownership::Lanes => nodes(pool),
            Ownership::Ordered => nodes(pool),
        };
        if self.delete {
            builder.delete_when_done()
        } else {
            builder
        }
    }
}
