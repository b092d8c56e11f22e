use std::borrow::Cow;
use std::fmt;

use super::EventError;

/// The aggregate type of an event that names none.
pub const GLOBAL_AGGREGATE: &str = "__GLOBAL__";

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal, $max:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Cow<'static, str>);

        impl $type {
            #[doc = concat!("The longest ", $what, " that the table holds, in characters.")]
            pub const MAX_CHARS: usize = $max;

            /// A name known at compile time. Its length is checked when an event is built with it.
            pub const fn from_static(name: &'static str) -> Self {
                Self(Cow::Borrowed(name))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            pub(crate) fn check(&self) -> Result<(), EventError> {
                super::check_text($what, &self.0, Self::MAX_CHARS)
            }
        }

        impl From<&'static str> for $type {
            fn from(name: &'static str) -> Self {
                Self(Cow::Borrowed(name))
            }
        }

        impl From<String> for $type {
            fn from(name: String) -> Self {
                Self(Cow::Owned(name))
            }
        }

        impl From<&$type> for $type {
            fn from(name: &$type) -> Self {
                name.clone()
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.0)
            }
        }
    };
}

name! {
    /// What happened, for example `OrderPlaced`: with the aggregate type, what a listener is chosen by.
    ///
    /// From a string, or from an enum of yours with `#[derive(EventType)]`; both meet in the same name.
    EventType, "event type", 128
}

name! {
    /// What it happened to, for example `Order`: with the aggregate id, the key that order is kept by.
    ///
    /// From a string, or from an enum of yours with `#[derive(AggregateType)]`; both meet in the same name.
    AggregateType, "aggregate type", 64
}

impl AggregateType {
    /// The aggregate type of an event that names none.
    pub const GLOBAL: Self = Self::from_static(GLOBAL_AGGREGATE);
}

impl Default for AggregateType {
    fn default() -> Self {
        Self::GLOBAL
    }
}
