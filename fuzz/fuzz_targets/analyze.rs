//! Any packets at any time into an analysis: see `weir_analyze::testing::fuzz_analyze`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_analyze::testing::fuzz_analyze;

fuzz_target!(|bytes: &[u8]| fuzz_analyze(bytes));
