//! A hostile host beside two machines with several links: see `weir_links::testing::fuzz_bundle`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_links::testing::fuzz_bundle;

fuzz_target!(|bytes: &[u8]| fuzz_bundle(bytes));
