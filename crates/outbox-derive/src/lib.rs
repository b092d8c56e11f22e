//! The derive macros of Outbox. Use them through the `outbox` crate, which re-exports all three:
//!
//! | derive | on | gives |
//! |---|---|---|
//! | [`Event`] | the struct or enum that is the payload | `impl outbox::DomainEvent` |
//! | [`EventType`] | an enum that lists event types | conversions into `outbox::EventType` |
//! | [`AggregateType`] | an enum that lists aggregate types | conversions into `outbox::AggregateType` |
//!
//! Names end up in columns of fixed width, so the limits (128 bytes for an event type, 64 for an
//! aggregate type) are checked here: a name that the database would refuse does not compile.

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

mod attribute;
mod event;
mod names;

/// Makes a type an event: implements `outbox::DomainEvent`.
///
/// ```
/// use outbox::{DomainEvent, Event};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Event)]
/// #[event(type = "order.placed", aggregate = "Order", version = 2)]
/// struct OrderPlaced {
///     #[event(key)]
///     order_id: u64,
///     total_cents: i64,
/// }
///
/// let event = OrderPlaced { order_id: 7, total_cents: 1999 };
/// assert_eq!(OrderPlaced::EVENT_TYPE, "order.placed");
/// assert_eq!(event.aggregate_id(), Some("7".to_owned()));
/// ```
///
/// # On the type
///
/// Every attribute is optional.
///
/// | `#[event(..)]` | meaning | default |
/// |---|---|---|
/// | `type = ..` | the event type, 1 to 128 bytes | the name of the type |
/// | `aggregate = ..` | the aggregate type, 1 to 64 bytes | `__GLOBAL__` |
/// | `version = 2` | the version of the payload's shape, 1 or more | 1 |
/// | `key = order_id` | the field that is the aggregate id | none |
/// | `crate = ::path` | where the `outbox` crate is found | `::outbox` |
///
/// `type` and `aggregate` take a string literal or the path of a `&'static str` constant, so that a
/// name shared by many events is written once. A constant is checked against the same limits; in a
/// generic type, where the constant may depend on a parameter, only once the event is used.
///
/// ```
/// # use outbox::Event;
/// # use serde::{Deserialize, Serialize};
/// mod names {
///     pub const ORDER: &str = "Order";
/// }
///
/// #[derive(Serialize, Deserialize, Event)]
/// #[event(aggregate = names::ORDER, key = order_id)]
/// struct OrderCancelled {
///     order_id: u64,
/// }
/// ```
///
/// # The key
///
/// Events of one aggregate are delivered in order; the key says which aggregate an event belongs
/// to. Mark the field with `#[event(key)]`, or name it on the type; at most one. The field's type
/// implements `Display`. An `Option<..>` gives an aggregate id only when it is `Some`. The macro
/// sees the text of the type and not what it means, so an alias of `Option` is not recognized and
/// does not compile.
///
/// # Enums and generics
///
/// A whole enum is one event type, and it has no key: its variants need not share a field.
///
/// Generic parameters and where clauses are kept as written. The type has to be `Serialize`,
/// `DeserializeOwned`, `Send`, `Sync` and `'static`, so bound the parameters accordingly, and stop
/// serde from adding its own bounds to them:
///
/// ```
/// # use outbox::Event;
/// # use serde::{Deserialize, Serialize, de::DeserializeOwned};
/// #[derive(Serialize, Deserialize, Event)]
/// #[serde(bound = "")]
/// struct Changed<T: Serialize + DeserializeOwned + Send + Sync + 'static> {
///     before: T,
///     after: T,
/// }
/// ```
///
/// A lifetime parameter is an error: an event is read back from the database and owns its data.
#[proc_macro_derive(Event, attributes(event))]
pub fn derive_event(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    event::expand(&input)
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

/// Makes the variants of an enum event types: converts it into `outbox::EventType`, by value and by
/// reference.
///
/// For code that builds its events by hand, or routes by type, and wants a closed list instead of
/// strings.
///
/// ```
/// use outbox::EventType;
///
/// #[derive(Clone, Copy, EventType)]
/// #[event_type(rename_all = "snake_case")]
/// enum UserEvent {
///     SignedUp,
///     #[event_type(rename = "user.deleted")]
///     Deleted,
/// }
///
/// assert_eq!(UserEvent::SignedUp.event_type_name(), "signed_up");
/// assert_eq!(EventType::from(UserEvent::Deleted), EventType::from("user.deleted"));
/// ```
///
/// Variants carry no data. The name of a variant is its identifier, unless
///
/// - `#[event_type(rename_all = "..")]` on the enum spells all of them in one case: `snake_case`,
///   `SCREAMING_SNAKE_CASE`, `kebab-case`, `camelCase`, `PascalCase` or `lowercase`;
/// - `#[event_type(rename = "..")]` on the variant gives its name literally.
///
/// A run of capitals is one word: `HTTPCalled` becomes `http_called` (serde would write
/// `h_t_t_p_called`).
///
/// Every name is 1 to 128 bytes and unique within the enum. `#[event_type(crate = ::path)]` says
/// where the `outbox` crate is found.
///
/// The enum also gets `pub const fn event_type_name(&self) -> &'static str`. It is not called
/// `name`, so that one enum can derive [`macro@AggregateType`] as well and still have a `name` of
/// its own.
#[proc_macro_derive(EventType, attributes(event_type))]
pub fn derive_event_type(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    names::expand(&input, &names::EVENT_TYPE)
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

/// Makes the variants of an enum aggregate types: converts it into `outbox::AggregateType`, by
/// value and by reference.
///
/// ```
/// use outbox::AggregateType;
///
/// #[derive(Clone, Copy, AggregateType)]
/// enum Aggregate {
///     Order,
///     #[aggregate_type(rename = "user")]
///     Account,
/// }
///
/// assert_eq!(Aggregate::Order.aggregate_type_name(), "Order");
/// assert_eq!(AggregateType::from(Aggregate::Account), AggregateType::from("user"));
/// ```
///
/// Everything is as for [`macro@EventType`], under the attribute `#[aggregate_type(..)]`, except
/// that a name has at most 64 bytes and the enum gets `pub const fn aggregate_type_name(&self) ->
/// &'static str`. The function is `const`, so that an event can take its aggregate from the enum:
///
/// ```
/// # use outbox::{AggregateType, Event};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(AggregateType)]
/// # enum Aggregate { Order }
/// const ORDER: &str = Aggregate::Order.aggregate_type_name();
///
/// #[derive(Serialize, Deserialize, Event)]
/// #[event(aggregate = ORDER)]
/// struct OrderPlaced { /* .. */ }
/// ```
#[proc_macro_derive(AggregateType, attributes(aggregate_type))]
pub fn derive_aggregate_type(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    names::expand(&input, &names::AGGREGATE_TYPE)
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

#[cfg(test)]
mod underline {
    //! What a user sees of an error: the piece of source it underlines, and the message.

    use proc_macro2::TokenStream;
    use syn::DeriveInput;

    pub(crate) fn parse(source: &str) -> DeriveInput {
        syn::parse_str(source).expect("the test's input is a struct or an enum")
    }

    pub(crate) fn errors(result: syn::Result<TokenStream>) -> Vec<(String, String)> {
        let error = result.expect_err("the input is refused");
        error
            .into_iter()
            .map(|e| (e.span().source_text().unwrap_or_default(), e.to_string()))
            .collect()
    }
}
