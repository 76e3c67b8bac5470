//! Any bytes as a message of the process that holds port 4791: see `weir_device::testing::fuzz_hand_over`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_device::testing::fuzz_hand_over;

fuzz_target!(|bytes: &[u8]| fuzz_hand_over(bytes));
