//! A hostile peer over several links does no harm: the body of the fuzz target `edge` on random bytes.

use proptest::prelude::*;
use weir_transport::testing::{Rng, fuzz_edge};

#[test]
fn a_hostile_peer_does_no_harm() {
    for seed in 0..3000 {
        let mut rng = Rng(seed);
        let bytes: Vec<u8> = (0..rng.below(2000)).map(|_| rng.draw() as u8).collect();
        // The seed is in the output of a panic.
        println!("seed {seed}");
        fuzz_edge(&bytes);
    }
}

proptest! {
    // PROPTEST_CASES raises the number of cases: `make soak` sets it.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(400)))]

    #[test]
    fn nor_does_one_that_repeats_itself(bytes in prop::collection::vec(0u8..8, 0..600)) {
        fuzz_edge(&bytes);
    }
}
