//! Any hellos into a whole engine, and any bytes as a hello: see `weir_device::testing::fuzz_hello`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_device::testing::fuzz_hello;

fuzz_target!(|bytes: &[u8]| fuzz_hello(bytes));
