//! Properties that hold for any calls and any MADs.

use proptest::prelude::*;
use weir_cm::testing::{address, fuzz_handle};
use weir_cm::{Cm, Config};
use weir_transport::Instant;

#[test]
fn the_fuzz_corpus_passes() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/connections");
    let seeds: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!seeds.is_empty());
    seeds.iter().for_each(|seed| fuzz_handle(&std::fs::read(seed).unwrap()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(4000)))]

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
