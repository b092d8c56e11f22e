//! The expansions compile and behave. The `outbox` crate depends on this one, so this file plays its part: it goes by
//! that name, and has the items that the macros rely on.

// The stand-ins are public because the expansions reach them from other modules.
#![allow(unreachable_pub, missing_docs)]

extern crate self as outbox;

use std::fmt::Display;

use outbox_derive::Event;

pub trait DomainEvent: Send + Sync + 'static {
    const EVENT_TYPE: &'static str;
    const AGGREGATE_TYPE: &'static str = "__GLOBAL__";
    const VERSION: u32 = 1;
    fn aggregate_id(&self) -> Option<String> {
        None
    }
}

#[derive(Debug, PartialEq)]
pub struct EventType(&'static str);

#[derive(Debug, PartialEq)]
pub struct AggregateType(&'static str);

impl EventType {
    pub const fn from_static(name: &'static str) -> Self {
        Self(name)
    }
}

impl AggregateType {
    pub const fn from_static(name: &'static str) -> Self {
        Self(name)
    }
}

mod names {
    pub(crate) const ORDER: &str = "Order";
}

#[test]
fn plain_event_has_the_defaults() {
    #[derive(Event)]
    struct Started;

    assert_eq!(Started::EVENT_TYPE, "Started");
    assert_eq!(Started::AGGREGATE_TYPE, "__GLOBAL__");
    assert_eq!(Started::VERSION, 1);
    assert_eq!(Started.aggregate_id(), None);
}

#[test]
fn event_has_what_its_attributes_say() {
    #[derive(Event)]
    #[event(type = "order.placed", aggregate = names::ORDER, version = 2)]
    struct OrderPlaced {
        #[event(key)]
        id: u64,
    }

    assert_eq!(OrderPlaced::EVENT_TYPE, "order.placed");
    assert_eq!(OrderPlaced::AGGREGATE_TYPE, "Order");
    assert_eq!(OrderPlaced::VERSION, 2);
    assert_eq!(OrderPlaced { id: 7 }.aggregate_id(), Some("7".to_owned()));
}

#[test]
fn optional_key_gives_an_aggregate_id_only_when_present() {
    #[derive(Event)]
    #[event(key = user, crate = crate)]
    struct Visited {
        user: Option<String>,
    }

    assert_eq!(
        Visited {
            user: Some("ann".to_owned())
        }
        .aggregate_id(),
        Some("ann".to_owned())
    );
    assert_eq!(Visited { user: None }.aggregate_id(), None);
}

#[test]
fn constant_of_the_type_itself_names_the_event() {
    #[derive(Event)]
    #[event(type = Self::NAME)]
    struct Moved;
    impl Moved {
        const NAME: &'static str = "box.moved";
    }

    assert_eq!(Moved::EVENT_TYPE, "box.moved");
}

#[test]
fn generic_event_takes_its_aggregate_from_a_parameter() {
    trait Subject: Send + Sync + 'static {
        const NAME: &'static str;
    }
    struct Order;
    impl Subject for Order {
        const NAME: &'static str = "Order";
    }
    #[derive(Event)]
    #[event(aggregate = S::NAME)]
    struct Changed<S: Subject, T>
    where
        T: Display + Send + Sync + 'static,
    {
        #[event(key)]
        id: T,
        subject: std::marker::PhantomData<S>,
    }

    let changed = Changed::<Order, _> {
        id: 'x',
        subject: std::marker::PhantomData,
    };
    let _ = &changed.subject;
    assert_eq!(Changed::<Order, char>::AGGREGATE_TYPE, "Order");
    assert_eq!(changed.aggregate_id(), Some("x".to_owned()));
}

#[test]
fn derive_works_on_the_output_of_a_declarative_macro() {
    macro_rules! event {
        ($name:ident, $event_type:expr, $aggregate:path, $key:ident: $ty:ty) => {
            #[derive(Event)]
            #[event(type = $event_type, aggregate = $aggregate)]
            struct $name {
                #[event(key)]
                $key: $ty,
            }
        };
    }
    event!(Renamed, "renamed", names::ORDER, id: Option<u8>);

    assert_eq!(Renamed::EVENT_TYPE, "renamed");
    assert_eq!(Renamed::AGGREGATE_TYPE, "Order");
    assert_eq!(Renamed { id: Some(3) }.aggregate_id(), Some("3".to_owned()));
}

#[test]
fn one_enum_names_event_types_and_aggregate_types() {
    #[derive(Clone, Copy, outbox_derive::EventType, outbox_derive::AggregateType)]
    #[event_type(rename_all = "snake_case")]
    enum Name {
        SignedUp,
        #[event_type(rename = "user.deleted")]
        #[aggregate_type(rename = "user")]
        Deleted,
    }

    const SIGNED_UP: &str = Name::SignedUp.event_type_name();
    assert_eq!(SIGNED_UP, "signed_up");
    assert_eq!(EventType::from(Name::Deleted), EventType("user.deleted"));
    assert_eq!(EventType::from(&Name::SignedUp), EventType("signed_up"));
    assert_eq!(Name::SignedUp.aggregate_type_name(), "SignedUp");
    assert_eq!(AggregateType::from(Name::SignedUp), AggregateType("SignedUp"));
    assert_eq!(AggregateType::from(&Name::Deleted), AggregateType("user"));
}
