//! Properties that hold for any calls and any MADs.

use proptest::prelude::*;
use weir_cm::testing::{address, fuzz_handle};
use weir_cm::{Cm, Config};
use weir_transport::Instant;

#[test]
fn any_calls_and_mads_leave_a_consistent_process() {
    weir_trials::run("connections", fuzz_handle);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(4000)))]

    #[test]
    fn bytes_that_are_no_mad_do_nothing(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let mut cm = Cm::new(Config::default());
        cm.handle(Instant(1), &address(0), &bytes);
        prop_assert!(cm.is_empty() && cm.poll_transmit().is_none() && cm.poll_event().is_none());
    }
}
