//! A hostile peer of an endpoint for messages: see `weir_msg::testing::fuzz`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_msg::testing::fuzz;

fuzz_target!(|bytes: &[u8]| fuzz(bytes));
