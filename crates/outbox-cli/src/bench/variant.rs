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
    pub(crate) const LANES: Self = Self::of(Ownership::Lanes);
    pub(crate) const LANES_AND_DELETE: Self = Self {
        delete: true,
        ..Self::LANES
    };
    pub(crate) const ORDERED: Self = Self::of(Ownership::Ordered);

    /// What `drain` measures.
    pub(crate) const DRAINED: &[Self] = &[Self::ROW_CLAIMS, Self::LANES, Self::LANES_AND_DELETE];
    /// What `ordered` measures.
    pub(crate) const IN_ORDER: &[Self] = &[Self::ORDERED];
    /// What `grown`, `held` and `nodes` measure.
    pub(crate) const STRAINED: &[Self] = &[Self::ROW_CLAIMS, Self::LANES];

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

    /// The outbox that delivers so, with what `configure` adds. `alone`: there is no other node.
    pub(crate) async fn build<D: Driver>(
        self,
        pool: &Pool<D>,
        alone: bool,
        settings: impl Configure<D>,
    ) -> Result<Outbox<D>, outbox::Error> {
        let nodes = if alone { Outbox::single_node } else { Outbox::multi_node };
        match self.ownership {
            Ownership::RowClaims => self.done(settings.configure(nodes(pool).row_claims())).build().await,
            Ownership::Lanes => self.done(settings.configure(nodes(pool).lanes())).build().await,
            Ownership::Ordered => self.done(settings.configure(Outbox::ordered(pool))).build().await,
        }
    }

    fn done<D: Driver, O>(self, builder: Builder<D, O>) -> Builder<D, O> {
        if self.delete {
            builder.delete_when_done()
        } else {
            builder
        }
    }
}

/// What all variants have in common, whatever kind of builder they have.
pub(crate) trait Configure<D: Driver> {
    fn configure<O>(self, builder: Builder<D, O>) -> Builder<D, O>;
}
