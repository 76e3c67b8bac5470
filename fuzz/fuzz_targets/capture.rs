//! Any bytes as a capture file: see `weir_capture::testing::fuzz_read`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_capture::testing::fuzz_read;

fuzz_target!(|bytes: &[u8]| fuzz_read(bytes));
