//! `rename_all`: the identifier of a variant, spelled in another case.

use syn::{Error, LitStr, Result};

use crate::attribute;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    Snake,
    ScreamingSnake,
    Kebab,
    Camel,
    Pascal,
    Lower,
}

/// Each case as the user writes it: in itself.
const SPELLED: [(&str, Case); 6] = [
    ("snake_case", Case::Snake),
    ("SCREAMING_SNAKE_CASE", Case::ScreamingSnake),
    ("kebab-case", Case::Kebab),
    ("camelCase", Case::Camel),
    ("PascalCase", Case::Pascal),
    ("lowercase", Case::Lower),
];

impl Case {
    pub(super) fn parse(literal: &LitStr) -> Result<Self> {
        let wanted = literal.value();
        SPELLED
            .into_iter()
            .find(|(spelled, _)| *spelled == wanted)
            .map(|(_, case)| case)
            .ok_or_else(|| {
                let known = attribute::list(&SPELLED.map(|(spelled, _)| spelled));
                Error::new_spanned(literal, format!("unknown case `{wanted}`; `rename_all` takes {known}"))
            })
    }

    pub(super) fn apply(self, identifier: &str) -> String {
        let words = words(identifier);
        match self {
            Self::Snake => words.join("_"),
            Self::ScreamingSnake => words.join("_").to_uppercase(),
            Self::Kebab => words.join("-"),
            Self::Camel => match words.split_first() {
                Some((first, rest)) => rest.iter().fold(first.clone(), |name, word| name + &capitalized(word)),
                None => String::new(),
            },
            Self::Pascal => words.iter().map(|word| capitalized(word)).collect(),
            Self::Lower => words.concat(),
        }
    }
}

/// The words of an identifier, in lower case. A word begins at an underscore, at a capital after a
/// small letter or digit, and at the last capital of a run when a small letter follows:
/// `HTTPCalled` is "http", "called".
fn words(identifier: &str) -> Vec<String> {
    let letters: Vec<char> = identifier.chars().collect();
    let mut words = vec![String::new()];
    for (at, &letter) in letters.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|before| letters.get(before));
        let after = letters.get(at + 1);
        let leaves_word = before.is_some_and(|c| !c.is_uppercase());
        let leaves_run = after.is_some_and(|c| c.is_lowercase());
        if letter == '_' || (letter.is_uppercase() && (leaves_word || leaves_run)) {
            words.push(String::new());
        }
        if letter != '_'
            && let Some(word) = words.last_mut()
        {
            word.extend(letter.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

fn capitalized(word: &str) -> String {
    let mut letters = word.chars();
    letters
        .next()
        .into_iter()
        .flat_map(char::to_uppercase)
        .chain(letters)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_spells_the_words_of_the_identifier() {
        let spelled = SPELLED.map(|(_, case)| case.apply("UserSignedUp"));
        let expected = [
            "user_signed_up",
            "USER_SIGNED_UP",
            "user-signed-up",
            "userSignedUp",
            "UserSignedUp",
            "usersignedup",
        ];
        assert_eq!(spelled, expected);
    }

    #[test]
    fn run_of_capitals_is_one_word() {
        assert_eq!(Case::Snake.apply("HTTPCalled"), "http_called");
        assert_eq!(Case::Snake.apply("CalledHTTP"), "called_http");
        assert_eq!(Case::Camel.apply("HTTPCalled"), "httpCalled");
        assert_eq!(Case::Pascal.apply("HTTPCalled"), "HttpCalled");
    }

    #[test]
    fn digit_stays_with_the_word_before_it() {
        assert_eq!(Case::Snake.apply("V2Created"), "v2_created");
        assert_eq!(Case::Kebab.apply("Order2"), "order2");
    }

    #[test]
    fn underscore_separates_words_and_is_not_doubled() {
        assert_eq!(Case::Snake.apply("User_Created"), "user_created");
        assert_eq!(Case::Kebab.apply("USER__CREATED"), "user-created");
        assert_eq!(Case::Snake.apply("_"), "");
    }

    #[test]
    fn letters_outside_ascii_are_letters() {
        assert_eq!(Case::Snake.apply("ÄrgerÜber"), "ärger_über");
        assert_eq!(Case::Pascal.apply("ärger"), "Ärger");
    }
}
