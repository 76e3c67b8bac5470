//! Hellos of a third host while two processes agree on a connection over several links: see `weir_transport::testing::fuzz_opening`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_transport::testing::fuzz_opening;

fuzz_target!(|bytes: &[u8]| fuzz_opening(bytes));
