//! Any packets into a responder: see `weir_transport::testing::fuzz_responder`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_transport::testing::fuzz_responder;

fuzz_target!(|bytes: &[u8]| fuzz_responder(bytes));
