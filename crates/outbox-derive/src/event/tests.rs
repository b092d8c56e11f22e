use quote::quote;

use super::expand;
use crate::underline::{errors, parse};

fn assert_expands(source: &str, expected: proc_macro2::TokenStream) {
    let expansion = expand(&parse(source)).expect("the input is accepted");
    assert_eq!(expansion.to_string(), expected.to_string());
}

/// The input is refused with one error, which underlines `underlined`.
fn assert_refused(source: &str, underlined: &str, message: &str) {
    let expected = vec![(underlined.to_owned(), message.to_owned())];
    assert_eq!(errors(expand(&parse(source))), expected);
}

#[test]
fn without_attributes_the_event_is_called_like_the_type_and_the_trait_decides_the_rest() {
    assert_expands(
        "struct OrderPlaced { id: u64 }",
        quote! {
            #[automatically_derived]
            #[allow(deprecated, reason = "the warning is for those who use it")]
            impl ::outbox::DomainEvent for OrderPlaced {
                const EVENT_TYPE: &'static str = "OrderPlaced";
            }
        },
    );
}

#[test]
fn attributes_become_the_constants_and_the_marked_field_the_aggregate_id() {
    assert_expands(
        r#"
        #[event(type = "order.placed", aggregate = "Order", version = 2)]
        struct OrderPlaced { #[event(key)] id: u64 }
        "#,
        quote! {
            #[automatically_derived]
            #[allow(deprecated, reason = "the warning is for those who use it")]
            impl ::outbox::DomainEvent for OrderPlaced {
                const EVENT_TYPE: &'static str = "order.placed";
                const AGGREGATE_TYPE: &'static str = "Order";
                const VERSION: u32 = 2u32;
                fn aggregate_id(&self) -> ::core::option::Option<::std::string::String> {
                    ::core::option::Option::Some(::std::string::ToString::to_string(&self.id))
                }
            }
        },
    );
}

#[test]
fn key_named_on_the_type_equals_the_mark_on_the_field() {
    let named = expand(&parse("#[event(key = id)] struct A { id: u64 }"));
    let marked = expand(&parse("struct A { #[event(key)] id: u64 }"));
    let text = |result: syn::Result<proc_macro2::TokenStream>| result.expect("accepted").to_string();
    assert_eq!(text(named), text(marked));
}

#[test]
fn option_is_recognized_by_its_spelling() {
    let mapped = |ty: &str| {
        let source = format!("struct A {{ #[event(key)] id: {ty} }}");
        expand(&parse(&source))
            .expect("accepted")
            .to_string()
            .contains(":: as_ref")
    };
    assert!(mapped("Option<u64>"));
    assert!(mapped("std::option::Option<u64>"));
    assert!(mapped("(Option<u64>)"));
    assert!(!mapped("OptionalId"));
    assert!(!mapped("Vec<Option<u64>>"));
}

#[test]
fn generics_and_where_clause_are_kept() {
    assert_expands(
        "#[event(crate = crate::outbox)] struct Changed<T: Clone, const N: usize> where T: Send { a: [T; N] }",
        quote! {
            #[automatically_derived]
            #[allow(deprecated, reason = "the warning is for those who use it")]
            impl<T: Clone, const N: usize> crate::outbox::DomainEvent for Changed<T, N> where T: Send {
                const EVENT_TYPE: &'static str = "Changed";
            }
        },
    );
}

#[test]
fn constant_is_checked_by_the_compiler_where_the_event_is_defined() {
    let name = quote!({
        let name: &'static str = names::ORDER;
        ::core::assert!(!name.is_empty(), "an aggregate type must not be empty");
        ::core::assert!(name.len() <= 64usize, "an aggregate type has at most 64 bytes");
        name
    });
    assert_expands(
        "#[event(aggregate = names::ORDER)] struct A;",
        quote! {
            #[automatically_derived]
            #[allow(deprecated, reason = "the warning is for those who use it")]
            impl ::outbox::DomainEvent for A {
                const EVENT_TYPE: &'static str = "A";
                const AGGREGATE_TYPE: &'static str = #name;
            }
            #[allow(deprecated, reason = "the warning is for those who use it")]
            const _: (&'static str, &'static str) = (
                <A as ::outbox::DomainEvent>::EVENT_TYPE,
                <A as ::outbox::DomainEvent>::AGGREGATE_TYPE,
            );
        },
    );
    // A generic type has no one value, so its constant is checked where the event is used.
    assert_expands(
        "#[event(aggregate = names::ORDER)] struct A<T> { t: T }",
        quote! {
            #[automatically_derived]
            #[allow(deprecated, reason = "the warning is for those who use it")]
            impl<T> ::outbox::DomainEvent for A<T> {
                const EVENT_TYPE: &'static str = "A";
                const AGGREGATE_TYPE: &'static str = #name;
            }
        },
    );
}

#[test]
fn raw_identifier_loses_its_prefix() {
    let expansion = expand(&parse("#[event(key = type)] struct r#Try { r#type: u8 }"));
    let expansion = expansion.expect("accepted").to_string();
    assert!(expansion.contains(r#"= "Try""#), "{expansion}");
    assert!(expansion.contains("self . r#type"), "{expansion}");
}

#[test]
fn unknown_attribute_is_answered_with_the_known_ones() {
    assert_refused(
        r#"#[event(agregate = "Order")] struct A;"#,
        "agregate",
        "unknown `agregate`; `#[event(..)]` on the type takes `type`, `aggregate`, `version`, `key`, `crate`",
    );
    assert_refused(
        "struct A { #[event(id)] id: u64 }",
        "id",
        "unknown `id`; `#[event(..)]` on a field takes `key`",
    );
}

#[test]
fn attribute_given_twice_is_refused() {
    assert_refused(
        r#"#[event(type = "a")] #[event(type = "b")] struct A;"#,
        r#"type = "b""#,
        "`type` is given twice",
    );
    assert_refused("struct A { #[event(key, key)] id: u64 }", "key", "`key` is given twice");
}

#[test]
fn attribute_without_its_value_is_refused() {
    assert_refused("#[event(version)] struct A;", ")", "expected `=`");
    let bare = errors(expand(&parse("#[event] struct A;")));
    assert!(bare[0].1.contains("#[event(...)]"), "{bare:?}");
}

#[test]
fn name_is_a_literal_or_a_path() {
    let message = "expected a string literal or the path of a `&'static str` constant";
    assert_refused("#[event(type = 5)] struct A;", "5", message);
    assert_refused("#[event(aggregate = name())] struct A;", "name()", message);
}

#[test]
fn empty_name_is_refused() {
    assert_refused(
        r#"#[event(type = "")] struct A;"#,
        r#""""#,
        "an event type must not be empty",
    );
    assert_refused(
        r#"#[event(aggregate = "")] struct A;"#,
        r#""""#,
        "an aggregate type must not be empty",
    );
}

#[test]
fn name_beyond_its_limit_is_refused_and_at_its_limit_accepted() {
    let event = |bytes: usize| format!(r#"#[event(type = "{}")] struct A;"#, "x".repeat(bytes));
    let aggregate = |bytes: usize| format!(r#"#[event(aggregate = "{}")] struct A;"#, "x".repeat(bytes));
    let literal = |bytes: usize| format!(r#""{}""#, "x".repeat(bytes));
    let too_long = "an event type has at most 128 bytes; this one has 129";

    assert!(expand(&parse(&event(128))).is_ok());
    assert_refused(&event(129), &literal(129), too_long);
    assert!(expand(&parse(&aggregate(64))).is_ok());
    let message = "an aggregate type has at most 64 bytes; this one has 65";
    assert_refused(&aggregate(65), &literal(65), message);

    let identifier = "X".repeat(129);
    assert_refused(&format!("struct {identifier};"), &identifier, too_long);
}

#[test]
fn limit_counts_bytes_and_not_letters() {
    let name = "ä".repeat(33);
    let source = format!(r#"#[event(aggregate = "{name}")] struct A;"#);
    let message = "an aggregate type has at most 64 bytes; this one has 66";
    assert_refused(&source, &format!(r#""{name}""#), message);
}

#[test]
fn version_is_a_whole_number_from_one() {
    for value in ["0", "-1", "1.5", r#""2""#, "4294967296"] {
        assert_refused(
            &format!("#[event(version = {value})] struct A;"),
            value,
            "`version` is a whole number from 1 to 4294967295",
        );
    }
}

#[test]
fn second_key_is_refused() {
    let message = "an event has one key, and this is the second";
    assert_refused(
        "struct A { #[event(key)] a: u8, #[event( key )] b: u8 }",
        "key",
        message,
    );
    assert_refused(
        "#[event(key = a)] struct A { a: u8, #[event(key)] b: u8 }",
        "key",
        message,
    );
    assert_refused("#[event(key = a)] struct A { #[event(key)] a: u8 }", "key", message);
}

#[test]
fn key_is_a_field_with_a_name() {
    assert_refused("#[event(key = b)] struct A { a: u8 }", "b", "no field is called `b`");
    assert_refused("#[event(key = b)] struct A;", "b", "no field is called `b`");
    assert_refused(
        "struct A(#[event(key)] u8);",
        "key",
        "a key is a field with a name; give the struct named fields",
    );
}

#[test]
fn enum_is_one_event_type_and_has_no_key() {
    assert!(expand(&parse(r#"#[event(type = "moved")] enum A { B { id: u8 }, C }"#)).is_ok());
    assert_refused(
        "#[event(key = id)] enum A { B { id: u8 } }",
        "id",
        "an enum has no key: its variants need not share a field",
    );
    let misplaced = "the whole enum is one event type without a key: \
                     its variants and their fields take no `#[event(..)]`";
    assert_refused("enum A { B { #[event(key)] id: u8 } }", "#[event(key)]", misplaced);
    assert_refused(
        r#"enum A { #[event(type = "b")] B }"#,
        r#"#[event(type = "b")]"#,
        misplaced,
    );
}

#[test]
fn every_lifetime_is_refused_because_an_event_owns_its_data() {
    let message = |lifetime: &str| {
        format!(
            "an event owns its data, because it is read back from the database \
             (`DeserializeOwned + 'static`): remove `{lifetime}` and use owned types, \
             such as `String` for `&str`"
        )
    };
    let refused = errors(expand(&parse("struct A<'a, 'b> { a: &'a str, b: &'b str }")));
    let expected = ["'a", "'b"].map(|lifetime| (lifetime.to_owned(), message(lifetime)));
    assert_eq!(refused, expected);
}

#[test]
fn union_is_refused() {
    let message = "an event is a struct or an enum, not a union";
    assert_refused("union A { a: u8 }", "union", message);
}
