//! Any bytes as a UDP payload, and as an Ethernet frame: see `weir_capture::testing::fuzz_parse`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_capture::testing::fuzz_parse;

fuzz_target!(|bytes: &[u8]| fuzz_parse(bytes));
