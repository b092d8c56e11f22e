use quote::quote;

use super::{AGGREGATE_TYPE, EVENT_TYPE, Kind, expand};
use crate::underline::{errors, parse};

/// The input is refused with these errors: what each underlines, and its message.
fn assert_refused(kind: &Kind, source: &str, expected: &[(&str, &str)]) {
    let refused = errors(expand(&parse(source), kind));
    let refused: Vec<_> = refused
        .iter()
        .map(|(at, message)| (at.as_str(), message.as_str()))
        .collect();
    assert_eq!(refused, expected);
}

#[test]
fn enum_gets_the_name_function_and_both_conversions() {
    let source = r#"
        #[event_type(rename_all = "snake_case")]
        enum UserEvent { SignedUp, #[event_type(rename = "user.deleted")] Deleted }
    "#;
    let expected = quote! {
        #[automatically_derived]
        #[allow(deprecated, reason = "the warning is for those who use it")]
        impl UserEvent {
            #[doc = "The name of the event type that this variant stands for."]
            #[must_use]
            pub const fn event_type_name(&self) -> &'static str {
                match self {
                    Self::SignedUp => "signed_up",
                    Self::Deleted => "user.deleted",
                }
            }
        }

        #[automatically_derived]
        #[allow(deprecated, reason = "the warning is for those who use it")]
        impl ::core::convert::From<UserEvent> for ::outbox::EventType {
            fn from(value: UserEvent) -> Self {
                ::outbox::EventType::from_static(value.event_type_name())
            }
        }

        #[automatically_derived]
        #[allow(deprecated, reason = "the warning is for those who use it")]
        impl ::core::convert::From<&UserEvent> for ::outbox::EventType {
            fn from(value: &UserEvent) -> Self {
                ::outbox::EventType::from_static(value.event_type_name())
            }
        }
    };
    let expansion = expand(&parse(source), &EVENT_TYPE).expect("the input is accepted");
    assert_eq!(expansion.to_string(), expected.to_string());
}

#[test]
fn aggregate_type_differs_in_attribute_function_and_target_only() {
    let events = r#"#[event_type(crate = ::a::outbox)] enum A { #[event_type(rename = "b")] B }"#;
    let aggregates = events.replace("event_type", "aggregate_type");
    let event_types = expand(&parse(events), &EVENT_TYPE).expect("accepted").to_string();
    let aggregate_types = expand(&parse(&aggregates), &AGGREGATE_TYPE)
        .expect("accepted")
        .to_string();
    let translated = event_types
        .replace("event_type", "aggregate_type")
        .replace("EventType", "AggregateType")
        .replace("event type", "aggregate type");
    assert_eq!(aggregate_types, translated);
}

#[test]
fn attributes_of_the_other_derive_are_left_to_it() {
    let source = r#"enum A { #[event_type(rename = "b")] #[aggregate_type(rename = "c")] B }"#;
    let event_types = expand(&parse(source), &EVENT_TYPE).expect("accepted").to_string();
    assert!(event_types.contains(r#"Self :: B => "b""#), "{event_types}");
    let aggregate_types = expand(&parse(source), &AGGREGATE_TYPE).expect("accepted").to_string();
    assert!(aggregate_types.contains(r#"Self :: B => "c""#), "{aggregate_types}");
}

#[test]
fn raw_identifier_loses_its_prefix() {
    let expansion = expand(&parse("enum A { r#Try }"), &EVENT_TYPE)
        .expect("accepted")
        .to_string();
    assert!(expansion.contains(r#"Self :: r#Try => "Try""#), "{expansion}");
}

#[test]
fn only_an_enum_with_variants_is_accepted() {
    let message = "`EventType` is derived for enums; its variants are the names";
    assert_refused(&EVENT_TYPE, "struct A;", &[("A", message)]);
    let message = "an enum without variants names no aggregate type";
    assert_refused(&AGGREGATE_TYPE, "enum A {}", &[("A", message)]);
}

#[test]
fn every_variant_with_data_is_refused() {
    let message = "a variant that names an event type carries no data";
    assert_refused(
        &EVENT_TYPE,
        "enum A { B(u8), C, D { e: u8 } }",
        &[("(u8)", message), ("{ e: u8 }", message)],
    );
}

#[test]
fn duplicate_name_is_refused_where_it_is_written() {
    assert_refused(
        &EVENT_TYPE,
        r#"enum A { B, #[event_type(rename = "B")] C }"#,
        &[(r#""B""#, "`B` is already the name of `B`")],
    );
    assert_refused(
        &EVENT_TYPE,
        r#"#[event_type(rename_all = "lowercase")] enum A { SignUp, Signup }"#,
        &[("Signup", "`signup` is already the name of `SignUp`")],
    );
}

#[test]
fn name_beyond_its_limit_is_refused_and_at_its_limit_accepted() {
    for (kind, message) in [
        (&EVENT_TYPE, "an event type has at most 128 bytes; this one has 129"),
        (
            &AGGREGATE_TYPE,
            "an aggregate type has at most 64 bytes; this one has 65",
        ),
    ] {
        let fits = "X".repeat(kind.limit.bytes);
        assert!(expand(&parse(&format!("enum A {{ {fits} }}")), kind).is_ok());

        let long = format!("{fits}X");
        assert_refused(kind, &format!("enum A {{ {long} }}"), &[(&long, message)]);
        let literal = format!(r#""{long}""#);
        let renamed = format!("enum A {{ #[{}(rename = {literal})] B }}", kind.attribute);
        assert_refused(kind, &renamed, &[(&literal, message)]);
    }
}

#[test]
fn empty_name_is_refused() {
    assert_refused(
        &EVENT_TYPE,
        r#"enum A { #[event_type(rename = "")] B }"#,
        &[(r#""""#, "an event type must not be empty")],
    );
    assert_refused(
        &AGGREGATE_TYPE,
        r#"#[aggregate_type(rename_all = "kebab-case")] enum A { __ }"#,
        &[("__", "an aggregate type must not be empty")],
    );
}

#[test]
fn unknown_attribute_is_answered_with_the_known_ones() {
    assert_refused(
        &EVENT_TYPE,
        r#"#[event_type(rename = "a")] enum A { B }"#,
        &[(
            "rename",
            "unknown `rename`; `#[event_type(..)]` on the enum takes `rename_all`, `crate`",
        )],
    );
    assert_refused(
        &AGGREGATE_TYPE,
        "enum A { #[aggregate_type(skip)] B }",
        &[(
            "skip",
            "unknown `skip`; `#[aggregate_type(..)]` on a variant takes `rename`",
        )],
    );
}

#[test]
fn unknown_case_is_answered_with_the_known_ones() {
    let message = "unknown case `Snake`; `rename_all` takes `snake_case`, `SCREAMING_SNAKE_CASE`, \
                   `kebab-case`, `camelCase`, `PascalCase`, `lowercase`";
    let source = r#"#[event_type(rename_all = "Snake")] enum A { B }"#;
    assert_refused(&EVENT_TYPE, source, &[(r#""Snake""#, message)]);
}

#[test]
fn attribute_given_twice_is_refused() {
    assert_refused(
        &EVENT_TYPE,
        r#"enum A { #[event_type(rename = "b", rename = "c")] B }"#,
        &[(r#"rename = "c""#, "`rename` is given twice")],
    );
}
