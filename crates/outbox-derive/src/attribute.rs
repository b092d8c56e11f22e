//! What the attributes of the three derives have in common: each is given once, an unknown one is
//! answered with the known ones, and names keep to the width of their column.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::meta::ParseNestedMeta;
use syn::spanned::Spanned;
use syn::{Attribute, Error, Path, Result, parse_quote};

/// The length a kind of name may have.
pub(crate) struct Limit {
    /// What the name is, as the user calls it.
    pub(crate) what: &'static str,
    /// The most bytes that the column holds.
    pub(crate) bytes: usize,
}

pub(crate) const EVENT_TYPE: Limit = Limit {
    what: "event type",
    bytes: 128,
};
pub(crate) const AGGREGATE_TYPE: Limit = Limit {
    what: "aggregate type",
    bytes: 64,
};

impl Limit {
    /// Refuses a name that is empty or too long; the error underlines `source`.
    pub(crate) fn check(&self, name: &str, source: &impl ToTokens) -> Result<()> {
        if name.is_empty() {
            return Err(Error::new_spanned(source, self.empty()));
        }
        if name.len() > self.bytes {
            return Err(Error::new_spanned(
                source,
                format!("{}; this one has {}", self.too_long(), name.len()),
            ));
        }
        Ok(())
    }

    /// An expression with the value of `constant` that does not compile if that value breaks the
    /// limit: the macro cannot see the value, the compiler can.
    pub(crate) fn checked(&self, constant: &impl ToTokens) -> TokenStream {
        let (bytes, empty, too_long) = (self.bytes, self.empty(), self.too_long());
        let span = constant.span().resolved_at(proc_macro2::Span::call_site());
        quote_spanned! {span=> {
            let name: &'static str = #constant;
            ::core::assert!(!name.is_empty(), #empty);
            ::core::assert!(name.len() <= #bytes, #too_long);
            name
        }}
    }

    fn empty(&self) -> String {
        format!("an {} must not be empty", self.what)
    }

    fn too_long(&self) -> String {
        format!("an {} has at most {} bytes", self.what, self.bytes)
    }
}

/// Calls `logic` for each `name` or `name = value` within the attributes called `attribute`.
pub(crate) fn parse(
    attributes: &[Attribute],
    attribute: &str,
    mut logic: impl FnMut(&ParseNestedMeta<'_>) -> Result<()>,
) -> Result<()> {
    attributes
        .iter()
        .filter(|found| found.path().is_ident(attribute))
        .try_for_each(|found| found.parse_nested_meta(|meta| logic(&meta)))
}

/// Keeps the value of an attribute that may be given only once.
pub(crate) fn set_once<T>(slot: &mut Option<T>, meta: &ParseNestedMeta<'_>, value: T) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(meta.error(format!("`{}` is given twice", spelled(&meta.path)))),
    }
}

/// The error for an attribute that nobody knows.
pub(crate) fn unknown(meta: &ParseNestedMeta<'_>, attribute: &str, place: &str, known: &[&str]) -> Error {
    let known = list(known);
    meta.error(format!(
        "unknown `{}`; `#[{attribute}(..)]` on {place} takes {known}",
        spelled(&meta.path)
    ))
}

/// Parses the value of `crate = ::path`.
pub(crate) fn crate_path(meta: &ParseNestedMeta<'_>) -> Result<Path> {
    meta.value()?.call(Path::parse_mod_style)
}

/// Where the generated code finds the `outbox` crate.
pub(crate) fn crate_or_default(path: Option<Path>) -> Path {
    path.unwrap_or_else(|| parse_quote!(::outbox))
}

/// All the values, or all the errors in one: a user fixes ten variants in one go instead of in ten
/// compilations.
pub(crate) fn all<T>(results: impl IntoIterator<Item = Result<T>>) -> Result<Vec<T>> {
    let (mut values, mut errors) = (Vec::new(), None::<Error>);
    for result in results {
        match (result, &mut errors) {
            (Ok(value), _) => values.push(value),
            (Err(error), Some(first)) => first.combine(error),
            (Err(error), none) => *none = Some(error),
        }
    }
    errors.map_or(Ok(values), Err)
}

/// The choices of a message: "`a`, `b`, `c`".
pub(crate) fn list(choices: &[&str]) -> String {
    choices
        .iter()
        .map(|choice| format!("`{choice}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn spelled(path: &Path) -> String {
    quote!(#path).to_string().replace(' ', "")
}
