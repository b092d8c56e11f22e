use std::fmt;

use bytes::Bytes;

use super::EventError;

/// What an event says: JSON text or bytes, exactly as they were given.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Payload {
    /// JSON text, in UTF-8. Spacing, key order and number format are kept.
    Json(Bytes),
    /// Anything else.
    Bytes(Bytes),
}

impl Payload {
    /// The largest payload, in bytes.
    pub const MAX_BYTES: usize = 1_048_576;

    /// The deepest JSON, in nested arrays and objects: what the JSON check of every database takes.
    pub const MAX_DEPTH: usize = 31;

    /// The bytes, whichever kind they are.
    pub fn as_bytes(&self) -> &Bytes {
        match self {
            Self::Json(bytes) | Self::Bytes(bytes) => bytes,
        }
    }

    /// The text of a JSON payload.
    pub fn as_json(&self) -> Option<&str> {
        match self {
            Self::Json(bytes) => Some(std::str::from_utf8(bytes).expect("a JSON payload is built from a str")),
            Self::Bytes(_) => None,
        }
    }

    /// Its media type, as brokers name it.
    pub fn content_type(&self) -> &'static str {
        match self {
            Self::Json(_) => "application/json",
            Self::Bytes(_) => "application/octet-stream",
        }
    }

    /// JSON text from somebody else, which may be none.
    pub(crate) fn from_json_text(text: String) -> Result<Self, EventError> {
        let payload = Self::Json(Bytes::from(text));
        payload.check_size()?;
        serde_json::from_slice::<serde::de::IgnoredAny>(payload.as_bytes())
            .map_err(|source| EventError::PayloadNotJson { source })?;
        Ok(payload)
    }

    pub(crate) fn check_size(&self) -> Result<(), EventError> {
        let bytes = self.as_bytes().len();
        if bytes > Self::MAX_BYTES {
            return Err(EventError::PayloadTooLarge { bytes });
        }
        Ok(())
    }

    pub(crate) fn check_depth(&self) -> Result<(), EventError> {
        match self {
            Self::Json(json) if depth(json) > Self::MAX_DEPTH => Err(EventError::PayloadTooDeep { depth: depth(json) }),
            _ => Ok(()),
        }
    }
}

/// How deep valid JSON is nested.
fn depth(json: &[u8]) -> usize {
    let (mut deepest, mut depth, mut in_string, mut escaped) = (0_usize, 0_usize, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

impl fmt::Debug for Payload {
    /// The kind and the size, never the content.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Json(_) => "json",
            Self::Bytes(_) => "bytes",
        };
        write!(f, "{} bytes of {kind}", self.as_bytes().len())
    }
}
