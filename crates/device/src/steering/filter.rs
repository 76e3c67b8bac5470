//! The packet socket's filter: the kernel copies only frames that a rule may match. It looks at the two addresses; the
//! rules themselves decide afterwards.

use super::{Kind, Rule};
use weir_link::FilterInstruction;

const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const AND: u16 = 0x54;
const JUMP_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
/// The whole frame.
const ACCEPT: u32 = u32::MAX;
/// The kernel's limit.
const LONGEST: usize = 4096;

/// A program that accepts what any of the rules may match. Empty: it accepts all frames.
pub fn program<'a>(rules: impl Iterator<Item = &'a Rule>) -> Vec<FilterInstruction> {
    let mut program = Vec::new();
    for rule in rules {
        let mut tests = Vec::new();
        if rule.kind == Kind::Normal {
            rule.pattern.ethernet().for_each(|(offset, value, mask)| compare(offset, value, mask, &mut tests));
        }
        if tests.is_empty() {
            return Vec::new();
        }
        // A failed test jumps behind the rule's last instruction.
        let end = tests.len() * 3 + 1;
        for (at, test) in tests.iter().enumerate() {
            let next = (end - (at * 3 + 3)) as u8;
            program.push(step(if test.half { LOAD_HALF } else { LOAD_WORD }, test.offset, 0));
            program.push(step(AND, test.mask, 0));
            program.push(step(JUMP_EQUAL, test.value, next));
        }
        program.push(step(RETURN, ACCEPT, 0));
        if program.len() >= LONGEST {
            return Vec::new();
        }
    }
    program.push(step(RETURN, 0, 0));
    program
}

/// A masked comparison of four bytes, or of two.
struct Test {
    half: bool,
    offset: u32,
    value: u32,
    mask: u32,
}

fn compare(offset: usize, value: &[u8], mask: &[u8], tests: &mut Vec<Test>) {
    // Addresses have six bytes.
    for (at, len) in [(0, 4), (4, 2)] {
        let (Some(value), Some(mask)) = (value.get(at..at + len), mask.get(at..at + len)) else { continue };
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
        if number(mask) != 0 {
            let offset = (offset + at) as u32;
            tests.push(Test { half: len == 2, offset, value: number(value), mask: number(mask) });
        }
    }
}

fn step(code: u16, k: u32, unless: u8) -> FilterInstruction {
    FilterInstruction { code, jt: 0, jf: unless, k }
}
