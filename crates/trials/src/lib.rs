//! For tests: the bodies of fuzz targets without a fuzzer. A body takes bytes, and panics if a promise is broken.
//!
//! [`run`] gives a body all inputs that `fuzz/corpus` keeps, and then changed ones and random ones for some time. The
//! bodies read their input by [`Input`].
#![forbid(unsafe_code)]

mod change;
mod input;
mod rng;

pub use input::Input;
pub use rng::Rng;

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// How long a target runs without [`SECONDS`].
const DEFAULT: Duration = Duration::from_secs(1);
/// The variable with the time of each target, s.
const SECONDS: &str = "FUZZ_TEST_SECONDS";
/// The variable with the least number of inputs, as `make soak` has it.
const CASES: &str = "PROPTEST_CASES";
/// The variable with the seed, as `make soak` has it.
const SEED: &str = "PROPTEST_RNG_SEED";

/// The inputs that are kept for a target. Panics if there are none.
pub fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "no inputs are kept for {target}");
    paths.iter().map(|path| fs::read(path).expect("an input")).collect()
}

/// Runs a body on the inputs that are kept for its target, then on changed and random ones: for one second, or what
/// FUZZ_TEST_SECONDS says. A failure prints the seed and the input.
pub fn run(target: &str, body: impl Fn(&[u8])) {
    let number = |name| env::var(name).ok().and_then(|text: String| text.parse::<u64>().ok());
    let seed = number(SEED).unwrap_or_else(|| RandomState::new().hash_one(0));
    let kept = corpus(target);
    let each = |bytes: &[u8]| {
        let named = Trial { target, seed, bytes };
        body(bytes);
        drop(named);
    };
    kept.iter().for_each(|bytes| each(bytes));
    let until = Instant::now() + number(SECONDS).map_or(DEFAULT, Duration::from_secs);
    let (mut rng, mut count, least) = (Rng(seed), 0, number(CASES).unwrap_or(0));
    while count < least || Instant::now() < until {
        each(&change::next(&kept, &mut rng));
        count += 1;
    }
    println!("{target}: {} kept inputs, {count} others from seed {seed}", kept.len());
}

/// Says which input it was, if the body panics.
struct Trial<'a> {
    target: &'a str,
    seed: u64,
    bytes: &'a [u8],
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let hex: String = self.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            eprintln!("the input of {} that failed, of seed {SEED}={}: {hex}", self.target, self.seed);
        }
    }
}
