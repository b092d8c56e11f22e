//! `#[derive(Event)]`.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::meta::ParseNestedMeta;
use syn::spanned::Spanned;
use syn::{
    Attribute, Data, DeriveInput, Error, Expr, ExprLit, ExprPath, Field, Fields, GenericArgument, Ident, Lit, LitStr,
    Path, PathArguments, Result, Type,
};

use crate::attribute::{self, Limit};

#[cfg(test)]
mod tests;

const ATTRIBUTE: &str = "event";

pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream> {
    refuse_lifetimes(input)?;
    let options = Options::parse(&input.attrs)?;
    let key = find_key(&input.data, options.key.as_ref())?;

    let event_type = match &options.event_type {
        Some(name) => name.value(&attribute::EVENT_TYPE)?,
        None => {
            let name = input.ident.unraw().to_string();
            attribute::EVENT_TYPE.check(&name, &input.ident)?;
            name.into_token_stream()
        }
    };
    // What is not given is not generated, so that the defaults stand in the trait and nowhere else.
    let aggregate_type = match &options.aggregate {
        Some(name) => {
            let value = name.value(&attribute::AGGREGATE_TYPE)?;
            quote!(const AGGREGATE_TYPE: &'static str = #value;)
        }
        None => TokenStream::new(),
    };
    let version = options.version.map(|version| quote!(const VERSION: u32 = #version;));
    let aggregate_id = key.map(aggregate_id);

    let name = &input.ident;
    let outbox = attribute::crate_or_default(options.outbox);
    let (impl_generics, type_generics, where_clause) = input.generics.split_for_impl();

    // The compiler evaluates a constant of an impl only where it is used; naming it makes a
    // constant that breaks a limit fail in the crate that defines it. A generic type has no one
    // value to name.
    let given_by_path = [&options.event_type, &options.aggregate]
        .into_iter()
        .flatten()
        .any(Name::is_constant);
    let evaluated = (given_by_path && input.generics.params.is_empty()).then(|| {
        quote! {
            #[allow(deprecated, reason = "the warning is for those who use it")]
            const _: (&'static str, &'static str) = (
                <#name as #outbox::DomainEvent>::EVENT_TYPE,
                <#name as #outbox::DomainEvent>::AGGREGATE_TYPE,
            );
        }
    });

    Ok(quote! {
        #[automatically_derived]
        #[allow(deprecated, reason = "the warning is for those who use it")]
        impl #impl_generics #outbox::DomainEvent for #name #type_generics #where_clause {
            const EVENT_TYPE: &'static str = #event_type;
            #aggregate_type
            #version
            #aggregate_id
        }
        #evaluated
    })
}

/// The attributes of the type.
#[derive(Default)]
struct Options {
    event_type: Option<Name>,
    aggregate: Option<Name>,
    version: Option<u32>,
    key: Option<Ident>,
    outbox: Option<Path>,
}

impl Options {
    fn parse(attributes: &[Attribute]) -> Result<Self> {
        let mut options = Self::default();
        attribute::parse(attributes, ATTRIBUTE, |meta| {
            if meta.path.is_ident("type") {
                attribute::set_once(&mut options.event_type, meta, Name::parse(meta)?)
            } else if meta.path.is_ident("aggregate") {
                attribute::set_once(&mut options.aggregate, meta, Name::parse(meta)?)
            } else if meta.path.is_ident("version") {
                attribute::set_once(&mut options.version, meta, version(meta)?)
            } else if meta.path.is_ident("key") {
                attribute::set_once(&mut options.key, meta, meta.value()?.call(Ident::parse_any)?)
            } else if meta.path.is_ident("crate") {
                attribute::set_once(&mut options.outbox, meta, attribute::crate_path(meta)?)
            } else {
                let known = ["type", "aggregate", "version", "key", "crate"];
                Err(attribute::unknown(meta, ATTRIBUTE, "the type", &known))
            }
        })?;
        Ok(options)
    }
}

/// The value of `type` or `aggregate`.
enum Name {
    Literal(LitStr),
    Constant(ExprPath),
}

impl Name {
    fn parse(meta: &ParseNestedMeta<'_>) -> Result<Self> {
        let mut value: Expr = meta.value()?.parse()?;
        // A fragment of a declarative macro arrives wrapped in an invisible group.
        while let Expr::Group(group) = value {
            value = *group.expr;
        }
        match value {
            Expr::Lit(ExprLit {
                lit: Lit::Str(literal), ..
            }) => Ok(Self::Literal(literal)),
            Expr::Path(path) => Ok(Self::Constant(path)),
            other => Err(Error::new_spanned(
                other,
                "expected a string literal or the path of a `&'static str` constant",
            )),
        }
    }

    fn value(&self, limit: &Limit) -> Result<TokenStream> {
        match self {
            Self::Literal(literal) => limit
                .check(&literal.value(), literal)
                .map(|()| literal.to_token_stream()),
            Self::Constant(path) => Ok(limit.checked(path)),
        }
    }

    fn is_constant(&self) -> bool {
        matches!(self, Self::Constant(_))
    }
}

fn version(meta: &ParseNestedMeta<'_>) -> Result<u32> {
    let value: Lit = meta.value()?.parse()?;
    let number = match &value {
        Lit::Int(number) => number.base10_parse::<u32>().ok().filter(|number| *number > 0),
        _ => None,
    };
    number.ok_or_else(|| Error::new_spanned(&value, format!("`version` is a whole number from 1 to {}", u32::MAX)))
}

fn refuse_lifetimes(input: &DeriveInput) -> Result<()> {
    attribute::all(input.generics.lifetimes().map(|parameter| -> Result<()> {
        let message = format!(
            "an event owns its data, because it is read back from the database (`DeserializeOwned + 'static`): \
             remove `{}` and use owned types, such as `String` for `&str`",
            parameter.lifetime
        );
        Err(Error::new_spanned(&parameter.lifetime, message))
    }))
    .map(drop)
}

/// The key's field, however it is given; `named` is the one that the type's attribute names.
fn find_key<'a>(data: &'a Data, named: Option<&Ident>) -> Result<Option<&'a Field>> {
    let fields = match data {
        Data::Struct(data) => &data.fields,
        Data::Enum(data) => {
            let fields = data.variants.iter().flat_map(|variant| &variant.fields);
            let attributes = data
                .variants
                .iter()
                .map(|v| &v.attrs)
                .chain(fields.map(|f| &f.attrs))
                .flatten();
            return refuse_key_of_enum(attributes, named).map(|()| None);
        }
        Data::Union(data) => {
            return Err(Error::new(
                data.union_token.span(),
                "an event is a struct or an enum, not a union",
            ));
        }
    };

    let marked = attribute::all(fields.iter().filter_map(|field| marked_key(field).transpose()))?;
    let by_name = named.map(|name| field_called(fields, name)).transpose()?;
    match (marked.as_slice(), by_name) {
        ([], by_name) => Ok(by_name),
        ([(_, field)], None) => Ok(Some(field)),
        ([(second, _), ..], Some(_)) | ([_, (second, _), ..], None) => {
            Err(Error::new(*second, "an event has one key, and this is the second"))
        }
    }
}

/// The field and the place of its mark, if it is marked `#[event(key)]`.
fn marked_key(field: &Field) -> Result<Option<(Span, &Field)>> {
    let mut mark = None;
    attribute::parse(&field.attrs, ATTRIBUTE, |meta| {
        if !meta.path.is_ident("key") {
            return Err(attribute::unknown(meta, ATTRIBUTE, "a field", &["key"]));
        }
        if field.ident.is_none() {
            return Err(meta.error("a key is a field with a name; give the struct named fields"));
        }
        attribute::set_once(&mut mark, meta, (meta.path.span(), field))
    })?;
    Ok(mark)
}

fn field_called<'a>(fields: &'a Fields, name: &Ident) -> Result<&'a Field> {
    let wanted = name.unraw();
    let called = |field: &&Field| field.ident.as_ref().is_some_and(|ident| ident.unraw() == wanted);
    fields
        .iter()
        .find(called)
        .ok_or_else(|| Error::new_spanned(name, format!("no field is called `{wanted}`")))
}

/// The variants of an enum need not share a field, so there is nothing to take a key from.
fn refuse_key_of_enum<'a>(inner: impl Iterator<Item = &'a Attribute>, named: Option<&Ident>) -> Result<()> {
    let misplaced = inner.filter(|found| found.path().is_ident(ATTRIBUTE)).map(|found| {
        let message = "the whole enum is one event type without a key: \
                       its variants and their fields take no `#[event(..)]`";
        Error::new_spanned(found, message)
    });
    let named = named.map(|name| Error::new_spanned(name, "an enum has no key: its variants need not share a field"));
    attribute::all(misplaced.chain(named).map(Err::<(), _>)).map(drop)
}

fn aggregate_id(key: &Field) -> TokenStream {
    let field = &key.ident;
    // A type that cannot be displayed is reported at the field, and not at the derive.
    let span = key.ty.span().resolved_at(Span::call_site());
    let value = if is_option(&key.ty) {
        quote_spanned! {span=>
            ::core::option::Option::map(
                ::core::option::Option::as_ref(&self.#field),
                ::std::string::ToString::to_string,
            )
        }
    } else {
        quote_spanned! {span=>
            ::core::option::Option::Some(::std::string::ToString::to_string(&self.#field))
        }
    };
    quote! {
        fn aggregate_id(&self) -> ::core::option::Option<::std::string::String> {
            #value
        }
    }
}

/// Whether the type is written as `Option<..>`, with or without the path that leads to it.
fn is_option(ty: &Type) -> bool {
    let path = match ty {
        Type::Group(group) => return is_option(&group.elem),
        Type::Paren(paren) => return is_option(&paren.elem),
        Type::Path(path) => &path.path,
        _ => return false,
    };
    path.segments.last().is_some_and(|last| {
        last.ident == "Option"
            && matches!(&last.arguments, PathArguments::AngleBracketed(arguments)
                if matches!(arguments.args.first(), Some(GenericArgument::Type(_))))
    })
}
