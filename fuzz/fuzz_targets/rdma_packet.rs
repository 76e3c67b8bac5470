//! Any bytes as a frame of each link type: see `weir_capture::testing::fuzz_find`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_capture::testing::fuzz_find;

fuzz_target!(|bytes: &[u8]| fuzz_find(bytes));
