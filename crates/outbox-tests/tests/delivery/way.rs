//! The two ways to own what is read from the table. What holds for one holds for the other.

use outbox::{Backend, Builder, Outbox, PoolOf};

pub(crate) trait Way {
    /// As a node in a process of its own is told.
    const NAME: &'static str;

    fn own<D: Backend>(builder: Builder<D>) -> Builder<D>;

    fn single_node<D: Backend>(pool: &impl PoolOf<D>) -> Builder<D> {
        Self::own(Outbox::single_node(pool))
    }

    fn multi_node<D: Backend>(pool: &impl PoolOf<D>) -> Builder<D> {
        Self::own(Outbox::multi_node(pool))
    }
}

pub(crate) struct RowClaims;

impl Way for RowClaims {
    const NAME: &'static str = "row-claims";

    fn own<D: Backend>(builder: Builder<D>) -> Builder<D> {
        builder.row_claims()
    }
}

pub(crate) struct Lanes;

impl Way for Lanes {
    const NAME: &'static str = "lanes";

    fn own<D: Backend>(builder: Builder<D>) -> Builder<D> {
        builder.lanes()
    }
}
