//! The library on every database, as one binary: linking is what takes the time.

mod conformance;
