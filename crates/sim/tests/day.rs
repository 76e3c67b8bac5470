//! A day of random work under random faults, over all profiles: what the transport promises of a work request holds each
//! time. `SIM_SECONDS` sets the virtual seconds of all profiles together, PROPTEST_RNG_SEED the seed.

mod day_world;

use day_world::World;
use std::alloc::{GlobalAlloc, Layout, System};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::Duration;
use weir_trials::Rng;

/// A day has 86,400.
const SECONDS: &str = "180";
/// The most virtual seconds of a simulation.
const LONGEST: f64 = 200.0;
/// How much the memory of a simulation may grow after its first quarter, bytes.
const GROWTH: isize = 256 << 10;

struct Counting;

static LIVE: AtomicIsize = AtomicIsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged; the wrapper only counts bytes.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn every_promise_holds_over_a_day_of_faults() {
    let seconds: f64 = std::env::var("SIM_SECONDS").unwrap_or(SECONDS.into()).parse().unwrap();
    let seed = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("PROPTEST_RNG_SEED={seed}");
    let names: Vec<_> = weir_profiles::names().collect();
    let mut rng = Rng(seed);
    let mut failures = 0;
    // Each world has its own link.
    let rounds = (seconds / names.len() as f64 / LONGEST).ceil() as usize;
    let part = Duration::from_secs_f64(seconds / (names.len() * rounds) as f64);
    for name in names.iter().cycle().take(names.len() * rounds) {
        let mut world = World::new(name, rng.draw());
        world.run(part / 4);
        let early = LIVE.load(Ordering::Relaxed);
        world.run(part);
        let grown = LIVE.load(Ordering::Relaxed) - early;
        let tally = world.finish();
        println!("{tally}");
        assert!(grown < GROWTH, "{grown} bytes more after three quarters of {part:?}: {tally}");
        // Eight ends with an operation every 50 ms; an end that waits for its peer's answers posts all the same.
        let least = part.as_secs_f64() * 8.0 / 0.05 / 4.0;
        assert!(tally.done as f64 > least, "{tally}");
        failures += tally.failures;
    }
    assert!(failures > 0, "no outage was long enough");
}
