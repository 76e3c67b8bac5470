//! Fields of messages that begin at any bit, and the macro that makes a message of them.

use std::net::Ipv6Addr;

/// Where a field is: the first bit, counted from the most significant bit of the first byte, and its width.
#[derive(Clone, Copy)]
pub(super) struct Bits {
    pub(super) first: usize,
    pub(super) width: usize,
}

/// What a field can be.
pub(super) trait Value {
    fn get(bytes: &[u8], at: Bits) -> Self;

    /// Writes the low bits of the value; bits that do not fit into the field are dropped.
    fn put(&self, bytes: &mut [u8], at: Bits);
}

/// A message as a struct of its fields: name, type, and (byte, bit within it, width in bits).
macro_rules! message {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$fdoc:meta])* $field:ident: $ty:ty = ($byte:literal, $bit:literal, $width:literal)),* $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }

        impl crate::cm::bits::Value for $name {
            fn get(bytes: &[u8], at: crate::cm::bits::Bits) -> Self {
                use crate::cm::bits::{Bits, Value};
                let bytes = &bytes[at.first / 8..(at.first + at.width) / 8];
                $name { $($field: Value::get(bytes, Bits { first: $byte * 8 + $bit, width: $width })),* }
            }

            fn put(&self, bytes: &mut [u8], at: crate::cm::bits::Bits) {
                use crate::cm::bits::{Bits, Value};
                let bytes = &mut bytes[at.first / 8..(at.first + at.width) / 8];
                $(Value::put(&self.$field, bytes, Bits { first: $byte * 8 + $bit, width: $width });)*
            }
        }

        /// All fields are zero.
        impl Default for $name {
            fn default() -> Self {
                use crate::cm::bits::{Bits, Value};
                Value::get(&[0; crate::mad::LEN], Bits { first: 0, width: crate::mad::LEN * 8 })
            }
        }
    };
}
pub(super) use message;

fn number(bytes: &[u8], at: Bits) -> u64 {
    (at.first..at.first + at.width).fold(0, |value, bit| value << 1 | u64::from(bytes[bit / 8] >> (7 - bit % 8) & 1))
}

fn put_number(value: u64, bytes: &mut [u8], at: Bits) {
    for (distance, bit) in (at.first..at.first + at.width).rev().enumerate() {
        let mask = 1 << (7 - bit % 8);
        match value >> distance & 1 {
            0 => bytes[bit / 8] &= !mask,
            _ => bytes[bit / 8] |= mask,
        }
    }
}

macro_rules! unsigned {
    ($($ty:ty),*) => {$(
        impl Value for $ty {
            fn get(bytes: &[u8], at: Bits) -> Self {
                number(bytes, at) as $ty
            }

            fn put(&self, bytes: &mut [u8], at: Bits) {
                put_number(u64::from(*self), bytes, at);
            }
        }
    )*};
}

unsigned!(u8, u16, u32, u64);

impl Value for bool {
    fn get(bytes: &[u8], at: Bits) -> Self {
        number(bytes, at) != 0
    }

    fn put(&self, bytes: &mut [u8], at: Bits) {
        put_number(u64::from(*self), bytes, at);
    }
}

impl<const N: usize> Value for [u8; N] {
    fn get(bytes: &[u8], at: Bits) -> Self {
        bytes[at.first / 8..][..N].try_into().expect("the length is N")
    }

    fn put(&self, bytes: &mut [u8], at: Bits) {
        bytes[at.first / 8..][..N].copy_from_slice(self);
    }
}

impl Value for Ipv6Addr {
    fn get(bytes: &[u8], at: Bits) -> Self {
        <[u8; 16]>::get(bytes, at).into()
    }

    fn put(&self, bytes: &mut [u8], at: Bits) {
        self.octets().put(bytes, at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_reads_what_was_written_and_leaves_the_bits_around_it() {
        for (first, width) in [(0, 32), (3, 5), (344, 5), (349, 2), (351, 1), (704, 20), (730, 6), (8, 64), (13, 24)] {
            let at = Bits { first, width };
            for background in [0x00, 0xff] {
                let mut bytes = [background; 100];
                let value = 0xa5c3_96f0_0f69_3c5a_u64 >> (64 - width);
                value.put(&mut bytes, at);
                assert_eq!(u64::get(&bytes, at), value);
                (!0_u64 * u64::from(background & 1)).put(&mut bytes, at);
                assert_eq!(bytes, [background; 100], "({first}, {width})");
            }
        }
    }
}
