//! Properties that hold for any calls and any MADs.

use proptest::prelude::*;
use weir_cm::testing::{address, fuzz_handle};
use weir_cm::{Cm, Config};
use weir_transport::Instant;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_calls_and_mads_leave_a_consistent_process(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        fuzz_handle(&bytes);
    }

    #[test]
    fn bytes_that_are_no_mad_do_nothing(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let mut cm = Cm::new(Config::default());
        cm.handle(Instant(1), &address(0), &bytes);
        prop_assert!(cm.is_empty() && cm.poll_transmit().is_none() && cm.poll_event().is_none());
    }
}
