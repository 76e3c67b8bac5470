//! Any packets into a requester: see `weir_transport::testing::fuzz_requester`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_transport::testing::fuzz_requester;

fuzz_target!(|bytes: &[u8]| fuzz_requester(bytes));
