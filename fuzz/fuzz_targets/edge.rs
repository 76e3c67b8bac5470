//! A hostile peer over several links: see `weir_transport::testing::fuzz_edge`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_transport::testing::fuzz_edge;

fuzz_target!(|bytes: &[u8]| fuzz_edge(bytes));
