//! Frames of a hostile peer into a QP: see `weir_transport::testing::fuzz_frames`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_transport::testing::fuzz_frames;

fuzz_target!(|bytes: &[u8]| fuzz_frames(bytes));
