//! Any datagrams and hellos into a whole engine: see `weir_device::testing::fuzz_engine`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_device::testing::fuzz_engine;

fuzz_target!(|bytes: &[u8]| fuzz_engine(bytes));
