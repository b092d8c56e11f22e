//! The events of the service, all in one place.

use std::error::Error;

use outbox::{AggregateType, DomainEvent, Event, EventType};
use serde::{Deserialize, Serialize};

/// Every event type of the service, and every kind of thing they happen to: a closed list instead of strings.
#[derive(Clone, Copy, EventType)]
#[event_type(rename_all = "snake_case")]
pub(crate) enum Happened {
    OrderPlaced,
    OrderShipped,
}

#[derive(Clone, Copy, AggregateType)]
pub(crate) enum Thing {
    Order,
}

const ORDER: &str = Thing::Order.aggregate_type_name();
const SHIPPED: &str = Happened::OrderShipped.event_type_name();

#[derive(Serialize, Deserialize, Event)]
#[event(type = SHIPPED, aggregate = ORDER)]
pub(crate) struct OrderShipped {
    #[event(key)]
    pub(crate) order_id: u64,
}

/// Version 1 had `total`, in whole euros. Such events may still be in the table when this release starts.
#[derive(Serialize, Deserialize)]
pub(crate) struct OrderPlaced {
    pub(crate) order_id: u64,
    pub(crate) total_cents: u64,
}

/// By hand, because of `decode`; everything else is what the derive would write.
impl DomainEvent for OrderPlaced {
    const EVENT_TYPE: &'static str = Happened::OrderPlaced.event_type_name();
    const AGGREGATE_TYPE: &'static str = ORDER;
    const VERSION: u32 = 2;

    fn aggregate_id(&self) -> Option<String> {
        Some(self.order_id.to_string())
    }

    fn decode(event: &Event) -> Result<Self, Box<dyn Error + Send + Sync>> {
        #[derive(Deserialize)]
        struct Version1 {
            order_id: u64,
            total: u64,
        }

        let payload = event.payload().as_bytes();
        match event.version() {
            1 => {
                let old: Version1 = serde_json::from_slice(payload)?;
                Ok(Self {
                    order_id: old.order_id,
                    total_cents: old.total * 100,
                })
            }
            2 => Ok(serde_json::from_slice(payload)?),
            // No retry can mend it, so it is dead at once: visible, and replayed after the upgrade.
            newer => Err(format!("version {newer} is from a later release").into()),
        }
    }
}
