//! Any bytes as a message about shared memory: see `weir_device::testing::fuzz_handshake`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_device::testing::fuzz_handshake;

fuzz_target!(|bytes: &[u8]| fuzz_handshake(bytes));
