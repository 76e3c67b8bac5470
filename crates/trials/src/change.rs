//! Inputs near those that are kept: most defects are close to an input that goes far.

use crate::Rng;

/// The longest input that is not kept.
const LONGEST: usize = 4096;
/// The most random bytes at once.
const RANDOM: usize = 600;
/// Numbers at which code decides.
const EDGES: [u8; 8] = [0, 1, 0x7f, 0x80, 0xff, 0x10, 0x40, 0xfe];

/// The next input: one that is kept with some changes, or random bytes.
pub fn next(kept: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    if rng.below(4) == 0 {
        return random(RANDOM, rng);
    }
    let mut bytes = kept[rng.below(kept.len())].clone();
    bytes.truncate(LONGEST);
    for _ in 0..1 + rng.below(8) {
        change(&mut bytes, kept, rng);
    }
    bytes.truncate(LONGEST);
    bytes
}

fn change(bytes: &mut Vec<u8>, kept: &[Vec<u8>], rng: &mut Rng) {
    let at = rng.below(bytes.len() + 1);
    let rest = bytes.len() - at;
    match rng.below(8) {
        0 => bytes.truncate(at),
        1 => drop(bytes.splice(at..at, random(16, rng))),
        2 => drop(bytes.drain(at..at + rng.below(rest.min(32) + 1))),
        // A part of another input.
        3 | 4 => {
            let other = &kept[rng.below(kept.len())];
            let from = rng.below(other.len() + 1);
            let len = rng.below((other.len() - from).min(RANDOM) + 1);
            let replaced = if rng.below(2) == 0 { 0 } else { len.min(rest) };
            bytes.splice(at..at + replaced, other[from..from + len].iter().copied());
        }
        5 if rest > 0 => bytes[at] ^= 1 << rng.below(8),
        6 if rest > 0 => bytes[at] = EDGES[rng.below(EDGES.len())],
        _ if rest > 0 => bytes[at] = rng.draw() as u8,
        _ => bytes.push(rng.draw() as u8),
    }
}

fn random(most: usize, rng: &mut Rng) -> Vec<u8> {
    (0..rng.below(most)).map(|_| rng.draw() as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_inputs_again_and_they_are_near_the_kept_ones() {
        let kept = [vec![1; 100], vec![2; 50], vec![]];
        let inputs = |seed| {
            let mut rng = Rng(seed);
            (0..1000).map(|_| next(&kept, &mut rng)).collect::<Vec<_>>()
        };
        let first = inputs(1);
        assert_eq!(first, inputs(1));
        assert_ne!(first, inputs(2));
        let near = first.iter().filter(|bytes| bytes.iter().filter(|byte| [1, 2].contains(*byte)).count() > 20);
        assert!(near.count() > 200, "inputs have parts of the kept ones");
        assert!(first.iter().all(|bytes| bytes.len() <= LONGEST));
    }
}
