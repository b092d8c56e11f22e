//! What must not compile, and what the compiler says then.
//!
//! `publish(&mut pool, ..)` is a `compile_fail` example of the documentation instead: the compiler lists what would do in
//! the pool's place, and the list depends on the enabled features.
#![cfg(feature = "sqlite")]

#[test]
fn pool_is_no_transaction_and_a_receipt_is_not_ignored() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
}
