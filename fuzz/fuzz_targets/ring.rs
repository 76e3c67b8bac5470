//! Any bytes as what a hostile peer writes into shared memory: see `weir_device::testing::fuzz_ring`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_device::testing::fuzz_ring;

fuzz_target!(|bytes: &[u8]| fuzz_ring(bytes));
