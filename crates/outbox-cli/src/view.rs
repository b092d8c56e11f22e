//! How an event is shown: as JSON, as a row of a list, and in full.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use outbox::Event;
use outbox::store::{Attempt, StoredEvent};
use serde_json::{Map, Value, json};

use crate::moment::{plain, rfc3339};
use crate::output::{digits, printable};

/// How much of a binary payload is shown to people.
const PREVIEW_BYTES: usize = 64;
/// How much of an error stands in a list.
const ERROR_CHARS: usize = 60;

/// Everything but the payload's content.
pub(crate) fn json(stored: &StoredEvent) -> Map<String, Value> {
    let event = stored.event.as_ref().ok();
    let payload = event.map(Event::payload);
    let value = json!({
        "seq": stored.seq,
        "id": stored.event_id,
        "status": stored.status.as_str(),
        "type": event.map(|event| event.event_type().as_str()),
        "aggregate_type": event.map(|event| event.aggregate_type().as_str()),
        "aggregate_id": event.and_then(Event::aggregate_id),
        "tenant_id": event.and_then(Event::tenant_id),
        "occurred_at": event.map(|event| rfc3339(event.occurred_at())),
        "created_at": rfc3339(stored.created_at),
        "available_at": rfc3339(stored.available_at),
        "done_at": stored.done_at.map(rfc3339),
        "dead_at": stored.dead_at.map(rfc3339),
        "attempts": stored.attempts,
        "last_error": stored.last_error,
        "locked_by": stored.locked_by,
        "lease_until": stored.lease_until.map(rfc3339),
        "token": stored.token,
        "done_by": stored.done_by,
        "headers": event.map(Event::headers),
        "content_type": payload.map(|payload| payload.content_type()),
        "payload_bytes": payload.map(|payload| payload.as_bytes().len()),
        "undecodable": stored.event.as_ref().err().map(ToString::to_string),
    });
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Everything, with the payload, and the failed attempts.
pub(crate) fn json_in_full(stored: &StoredEvent, attempts: &[Attempt]) -> Value {
    let mut map = json(stored);
    let payload = stored.event.as_ref().ok().map(Event::payload);
    // The text as it is: a parser would change its numbers and the order of its keys.
    map.insert(
        "payload".to_owned(),
        json!(payload.and_then(|payload| payload.as_json())),
    );
    let bytes = payload.filter(|payload| payload.as_json().is_none());
    map.insert(
        "payload_base64".to_owned(),
        json!(bytes.map(|payload| BASE64_STANDARD.encode(payload.as_bytes()))),
    );
    let attempts: Vec<Value> = attempts
        .iter()
        .map(|attempt| {
            json!({
                "attempt": attempt.attempt,
                "node": attempt.node,
                "error": attempt.error,
                "failed_at": rfc3339(attempt.failed_at),
            })
        })
        .collect();
    map.insert("failed_attempts".to_owned(), Value::Array(attempts));
    Value::Object(map)
}

pub(crate) const HEADINGS: [&str; 8] = [
    "SEQ",
    "ID",
    "STATUS",
    "TYPE",
    "AGGREGATE",
    "WRITTEN (UTC)",
    "ATTEMPTS",
    "LAST ERROR",
];

/// A row under [`HEADINGS`].
pub(crate) fn row(stored: &StoredEvent) -> [String; 8] {
    let event = stored.event.as_ref().ok();
    let aggregate = event.map(|event| match event.aggregate_id() {
        Some(id) => format!("{} {}", event.aggregate_type(), id),
        None => event.aggregate_type().to_string(),
    });
    let mut error = printable(stored.last_error.as_deref().unwrap_or_default());
    if let Some((end, _)) = error.char_indices().nth(ERROR_CHARS) {
        error.truncate(end);
        error.push('…');
    }
    [
        stored.seq.to_string(),
        printable(&stored.event_id),
        stored.status.to_string(),
        event.map_or("?".to_owned(), |event| printable(event.event_type().as_str())),
        aggregate.map_or("?".to_owned(), |aggregate| printable(&aggregate)),
        plain(stored.created_at),
        stored.attempts.to_string(),
        error,
    ]
}

/// Everything, for people.
pub(crate) fn in_full(stored: &StoredEvent, attempts: &[Attempt]) -> String {
    let mut text = String::new();
    let mut field = |name: &str, value: Option<String>| {
        text.push_str(&format!(
            "{name:<15} {}\n",
            value.as_deref().map_or("-".to_owned(), printable)
        ));
    };
    let event = stored.event.as_ref().ok();
    field("id", Some(stored.event_id.clone()));
    field("seq", Some(stored.seq.to_string()));
    field("status", Some(stored.status.to_string()));
    if let Err(error) = &stored.event {
        field("undecodable", Some(error.to_string()));
    }
    field("type", event.map(|event| event.event_type().to_string()));
    field("aggregate type", event.map(|event| event.aggregate_type().to_string()));
    field("aggregate id", event.and_then(Event::aggregate_id).map(str::to_owned));
    field("tenant", event.and_then(Event::tenant_id).map(str::to_owned));
    field("occurred at", event.map(|event| rfc3339(event.occurred_at())));
    field("written at", Some(rfc3339(stored.created_at)));
    field("due at", Some(rfc3339(stored.available_at)));
    field("done at", stored.done_at.map(rfc3339));
    field("dead at", stored.dead_at.map(rfc3339));
    field("attempts", Some(stored.attempts.to_string()));
    field("last error", stored.last_error.clone());
    field("delivered by", stored.locked_by.clone());
    field("lease until", stored.lease_until.map(rfc3339));
    field("token", Some(stored.token.to_string()));
    field(
        "done by",
        (!stored.done_by.is_empty()).then(|| stored.done_by.join(", ")),
    );
    if let Some(event) = event {
        text.push_str("\nheaders\n");
        if event.headers().is_empty() {
            text.push_str("  none\n");
        }
        for (name, value) in event.headers() {
            text.push_str(&format!("  {}: {}\n", printable(name), printable(value)));
        }
        text.push_str(&payload(event));
    }
    text.push_str("\nfailed attempts\n");
    if attempts.is_empty() {
        text.push_str("  none\n");
    }
    for attempt in attempts {
        text.push_str(&format!(
            "  {}. {} on {}: {}\n",
            attempt.attempt,
            rfc3339(attempt.failed_at),
            printable(&attempt.node),
            printable(&attempt.error)
        ));
    }
    text
}

fn payload(event: &Event) -> String {
    let payload = event.payload();
    let bytes = payload.as_bytes();
    let size = digits(bytes.len() as u64);
    match payload.as_json() {
        // Its line breaks are part of how it reads.
        Some(json) => {
            let lines: Vec<String> = json.lines().map(printable).collect();
            format!("\npayload, {size} bytes of JSON\n{}\n", lines.join("\n"))
        }
        None => {
            let shown = &bytes[..bytes.len().min(PREVIEW_BYTES)];
            let hex: Vec<String> = shown.iter().map(|byte| format!("{byte:02x}")).collect();
            let more = if shown.len() < bytes.len() { " …" } else { "" };
            format!(
                "\npayload, {size} bytes of binary data (all of it: --json, payload_base64)\n{}{more}\n",
                hex.join(" ")
            )
        }
    }
}
