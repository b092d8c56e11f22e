//! What commands print: for people a table or a line, for programs JSON.

use std::io::{self, Write};

use serde_json::Value;

/// Writes a line to standard output. Unlike `println!`, it does not panic when the reader has gone.
pub(crate) fn line(text: impl std::fmt::Display) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{text}")
}

/// Writes text as it is.
pub(crate) fn text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes a value as indented JSON.
pub(crate) fn json(value: &Value) -> io::Result<()> {
    line(format_args!("{value:#}"))
}

/// Writes rows under their headings, in columns as wide as their widest cell.
pub(crate) fn table<const N: usize>(headings: [&str; N], rows: &[[String; N]]) -> io::Result<()> {
    text(&lay_out(headings, rows))
}

fn lay_out<const N: usize>(headings: [&str; N], rows: &[[String; N]]) -> String {
    let headings = headings.map(str::to_owned);
    let lines = || std::iter::once(&headings).chain(rows);
    let widths: [usize; N] =
        std::array::from_fn(|column| lines().map(|cells| cells[column].chars().count()).max().unwrap_or(0));
    let mut text = String::new();
    for cells in lines() {
        let padded: Vec<String> = cells
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text.push_str(padded.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A number of things, for people: `1 event`, `12,345 events`; `at least` so many if the counting ended there.
pub(crate) fn count(number: u64, bound: u64, thing: &str) -> String {
    let at_least = if number >= bound { "at least " } else { "" };
    let plural = if number == 1 { "" } else { "s" };
    format!("{at_least}{} {thing}{plural}", digits(number))
}

/// `12,345`.
pub(crate) fn digits(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Text from the table, which may hold anything, without what would drive a terminal; on one line.
pub(crate) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            printable.extend(character.escape_default());
        } else {
            printable.push(character);
        }
    }
    printable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [
            ["1".to_owned(), "first".to_owned()],
            ["10,000".to_owned(), "ö".to_owned()],
        ];
        assert_eq!(
            lay_out(["ID", "NAME"], &rows),
            "ID      NAME\n1       first\n10,000  ö\n"
        );
        assert_eq!(lay_out(["ID", "NAME"], &[]), "ID  NAME\n");
    }

    #[test]
    fn numbers_are_grouped_and_agree_with_their_noun() {
        assert_eq!(count(0, 9, "event"), "0 events");
        assert_eq!(count(1, 9, "event"), "1 event");
        assert_eq!(count(123, 999, "event"), "123 events");
        assert_eq!(count(1_234_567, 1_234_567, "event"), "at least 1,234,567 events");
    }

    #[test]
    fn text_from_the_table_cannot_drive_a_terminal() {
        assert_eq!(printable("ö\u{1b}[2J\n"), "ö\\u{1b}[2J\\n");
    }
}
