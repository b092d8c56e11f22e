//! Times on the command line: an instant, or how long ago.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};

/// `15m`, `2h`, `7d`: a number and one of s, m, h, d, w.
pub(crate) fn parse_age(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no age: use a number and s, m, h, d or w, as in 90s, 15m, 2h, 7d");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds: u64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 60 * 60,
        'd' => 24 * 60 * 60,
        'w' => 7 * 24 * 60 * 60,
        _ => return Err(wrong()),
    };
    let number = &text[..text.len() - unit.len_utf8()];
    if !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let number: u64 = number.parse().map_err(|_| wrong())?;
    // Longer than that there have been no computers.
    match number.checked_mul(seconds) {
        Some(age) if age <= 100 * 365 * 24 * 60 * 60 => Ok(Duration::from_secs(age)),
        _ => Err(format!("{text:?} is too long ago: a hundred years is the most")),
    }
}

/// An RFC 3339 instant, or an age before now.
pub(crate) fn parse_instant(text: &str) -> Result<DateTime<Utc>, String> {
    if let Ok(instant) = DateTime::parse_from_rfc3339(text) {
        return Ok(instant.with_timezone(&Utc));
    }
    match parse_age(text) {
        Ok(age) => Ok(Utc::now() - age),
        Err(_) => Err(format!(
            "{text:?} is no time: use RFC 3339, as in 2026-01-31T12:00:00Z, or an age, as in 15m, 2h, 7d"
        )),
    }
}

/// RFC 3339, to the microsecond that the databases keep.
pub(crate) fn rfc3339(instant: DateTime<Utc>) -> String {
    instant.to_rfc3339_opts(SecondsFormat::Micros, true)
}

/// For people: `2026-01-31 12:00:00.123`, in UTC.
pub(crate) fn plain(instant: DateTime<Utc>) -> String {
    instant.format("%Y-%m-%d %H:%M:%S%.3f").to_string()
}

/// For people: `3.2 s`, `5 min`, `2 h`, `7 d`; never rounded to something longer than it is.
pub(crate) fn span(duration: Duration) -> String {
    match duration.as_secs() {
        0..120 => format!("{:.1} s", duration.as_secs_f64()),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_a_number_and_a_unit() {
        assert_eq!(parse_age("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_age("15m"), Ok(Duration::from_secs(900)));
        assert_eq!(parse_age("7d"), Ok(Duration::from_secs(604_800)));
        for wrong in [
            "",
            "m",
            "7",
            "-1d",
            "+1d",
            "1.5h",
            "1y",
            "7 d",
            "1ü",
            "99999999999999999999d",
            "5200000w",
        ] {
            assert!(parse_age(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn instants_are_rfc_3339_or_an_age() {
        let instant = parse_instant("2026-01-31T13:00:00.5+01:00").unwrap();
        assert_eq!(rfc3339(instant), "2026-01-31T12:00:00.500000Z");
        let two_hours_ago = parse_instant("2h").unwrap();
        let age = Utc::now() - two_hours_ago;
        assert!((7_200..7_210).contains(&age.num_seconds()), "{age}");
        assert!(parse_instant("yesterday").unwrap_err().contains("RFC 3339"));
    }

    #[test]
    fn spans_are_short() {
        let spans = [0, 119, 120, 7_199, 7_200, 172_800].map(|seconds| span(Duration::from_secs(seconds)));
        assert_eq!(spans, ["0.0 s", "119.0 s", "2 min", "119 min", "2 h", "2 d"]);
    }
}
