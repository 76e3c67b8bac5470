//! A hostile peer of a queue with tags: see `weir_transport::testing::fuzz_tags`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_transport::testing::fuzz_tags;

fuzz_target!(|bytes: &[u8]| fuzz_tags(bytes));
