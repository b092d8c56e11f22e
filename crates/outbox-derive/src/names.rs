//! `#[derive(EventType)]` and `#[derive(AggregateType)]`: one expansion under two names.

use std::collections::HashMap;

use proc_macro2::TokenStream;
use quote::{ToTokens, format_ident, quote};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Fields, Ident, LitStr, Path, Result, Variant};

use self::case::Case;
use crate::attribute::{self, Limit};

mod case;
#[cfg(test)]
mod tests;

/// Where the two derives differ.
pub(crate) struct Kind {
    attribute: &'static str,
    /// The type of the `outbox` crate that the enum converts into.
    target: &'static str,
    /// The inherent function; its own name per kind, since one enum may derive both.
    function: &'static str,
    limit: Limit,
}

pub(crate) const EVENT_TYPE: Kind = Kind {
    attribute: "event_type",
    target: "EventType",
    function: "event_type_name",
    limit: attribute::EVENT_TYPE,
};

pub(crate) const AGGREGATE_TYPE: Kind = Kind {
    attribute: "aggregate_type",
    target: "AggregateType",
    function: "aggregate_type_name",
    limit: attribute::AGGREGATE_TYPE,
};

pub(crate) fn expand(input: &DeriveInput, kind: &Kind) -> Result<TokenStream> {
    let Data::Enum(data) = &input.data else {
        let message = format!("`{}` is derived for enums; its variants are the names", kind.target);
        return Err(Error::new_spanned(&input.ident, message));
    };
    if data.variants.is_empty() {
        return Err(Error::new_spanned(
            &input.ident,
            format!("an enum without variants names no {}", kind.limit.what),
        ));
    }
    let options = Options::parse(input, kind)?;
    let named = attribute::all(
        data.variants
            .iter()
            .map(|variant| Named::parse(variant, &options, kind)),
    )?;
    refuse_duplicates(&named)?;

    let variants = named.iter().map(|named| named.variant);
    let names = named.iter().map(|named| &named.name);
    let enum_name = &input.ident;
    let outbox = attribute::crate_or_default(options.outbox);
    let target = format_ident!("{}", kind.target);
    let function = format_ident!("{}", kind.function);
    let doc = format!("The name of the {} that this variant stands for.", kind.limit.what);
    let (impl_generics, type_generics, where_clause) = input.generics.split_for_impl();

    Ok(quote! {
        #[automatically_derived]
        #[allow(deprecated, reason = "the warning is for those who use it")]
        impl #impl_generics #enum_name #type_generics #where_clause {
            #[doc = #doc]
            #[must_use]
            pub const fn #function(&self) -> &'static str {
                match self {
                    #(Self::#variants => #names,)*
                }
            }
        }

        #[automatically_derived]
        #[allow(deprecated, reason = "the warning is for those who use it")]
        impl #impl_generics ::core::convert::From<#enum_name #type_generics> for #outbox::#target #where_clause {
            fn from(value: #enum_name #type_generics) -> Self {
                #outbox::#target::from_static(value.#function())
            }
        }

        #[automatically_derived]
        #[allow(deprecated, reason = "the warning is for those who use it")]
        impl #impl_generics ::core::convert::From<&#enum_name #type_generics> for #outbox::#target #where_clause {
            fn from(value: &#enum_name #type_generics) -> Self {
                #outbox::#target::from_static(value.#function())
            }
        }
    })
}

/// The attributes of the enum.
#[derive(Default)]
struct Options {
    rename_all: Option<Case>,
    outbox: Option<Path>,
}

impl Options {
    fn parse(input: &DeriveInput, kind: &Kind) -> Result<Self> {
        let mut options = Self::default();
        attribute::parse(&input.attrs, kind.attribute, |meta| {
            if meta.path.is_ident("rename_all") {
                let case = Case::parse(&meta.value()?.parse()?)?;
                attribute::set_once(&mut options.rename_all, meta, case)
            } else if meta.path.is_ident("crate") {
                attribute::set_once(&mut options.outbox, meta, attribute::crate_path(meta)?)
            } else {
                Err(attribute::unknown(
                    meta,
                    kind.attribute,
                    "the enum",
                    &["rename_all", "crate"],
                ))
            }
        })?;
        Ok(options)
    }
}

/// A variant and its name.
struct Named<'a> {
    variant: &'a Ident,
    name: String,
    /// Where the name is written: errors about it underline this.
    source: TokenStream,
}

impl<'a> Named<'a> {
    fn parse(variant: &'a Variant, options: &Options, kind: &Kind) -> Result<Self> {
        if !matches!(variant.fields, Fields::Unit) {
            let message = format!("a variant that names an {} carries no data", kind.limit.what);
            return Err(Error::new(variant.fields.span(), message));
        }
        let mut rename = None::<LitStr>;
        attribute::parse(&variant.attrs, kind.attribute, |meta| {
            if meta.path.is_ident("rename") {
                attribute::set_once(&mut rename, meta, meta.value()?.parse()?)
            } else {
                Err(attribute::unknown(meta, kind.attribute, "a variant", &["rename"]))
            }
        })?;

        let identifier = variant.ident.unraw().to_string();
        let (name, source) = match (rename, options.rename_all) {
            (Some(literal), _) => (literal.value(), literal.into_token_stream()),
            (None, Some(case)) => (case.apply(&identifier), variant.ident.to_token_stream()),
            (None, None) => (identifier, variant.ident.to_token_stream()),
        };
        kind.limit.check(&name, &source)?;
        Ok(Self {
            variant: &variant.ident,
            name,
            source,
        })
    }
}

/// Two variants of one name would be routed to one listener, and could not be told apart when read
/// back.
fn refuse_duplicates(named: &[Named<'_>]) -> Result<()> {
    let mut taken = HashMap::new();
    attribute::all(
        named
            .iter()
            .map(|Named { variant, name, source }| match taken.insert(name, variant) {
                None => Ok(()),
                Some(first) => Err(Error::new_spanned(
                    source,
                    format!("`{name}` is already the name of `{first}`"),
                )),
            }),
    )
    .map(drop)
}
