//! Any calls and any MADs into connection management: see `weir_cm::testing::fuzz_handle`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_cm::testing::fuzz_handle;

fuzz_target!(|bytes: &[u8]| fuzz_handle(bytes));
