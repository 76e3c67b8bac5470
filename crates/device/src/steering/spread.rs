//! Receive-side scaling: a hash of a frame's addresses and ports selects the receive work queue.

use super::Headers;

/// The queues of an indirection table, and the hash that selects one of them.
#[derive(Clone, Debug)]
pub struct Spread {
    /// Numbers of the QPs behind the queues; a power of two of them.
    pub queues: Vec<u32>,
    /// The key of the Toeplitz hash.
    pub key: Vec<u8>,
    pub fields: HashFields,
}

bitflags::bitflags! {
    /// `ibv_rx_hash_fields`, bit for bit.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct HashFields: u64 {
        const SRC_IPV4 = 1;
        const DST_IPV4 = 2;
        const SRC_IPV6 = 4;
        const DST_IPV6 = 8;
        const SRC_PORT_TCP = 16;
        const DST_PORT_TCP = 32;
        const SRC_PORT_UDP = 64;
        const DST_PORT_UDP = 128;
    }
}

/// The longest input: two addresses of IPv6 and two ports.
const LONGEST: usize = 36;

impl Spread {
    /// The queue of a frame. A frame without the selected fields goes to the first queue.
    pub fn queue(&self, frame: &[u8], headers: &Headers) -> Option<u32> {
        let mut input = [0; LONGEST];
        let mut len = 0;
        for (field, header, offset, bytes) in self.inputs(headers) {
            if self.fields.contains(field)
                && let Some(header) = header
                && let Some(found) = frame.get(header + offset..header + offset + bytes)
            {
                input[len..len + bytes].copy_from_slice(found);
                len += bytes;
            }
        }
        let at = toeplitz(&self.key, &input[..len]) as usize & (self.queues.len().max(1) - 1);
        self.queues.get(at).copied()
    }

    /// The fields in the order in which they are hashed: header, offset and length of each.
    fn inputs(&self, headers: &Headers) -> [(HashFields, Option<usize>, usize, usize); 8] {
        let Headers { ipv4, ipv6, tcp, udp, .. } = *headers;
        [
            (HashFields::SRC_IPV4, ipv4, 12, 4),
            (HashFields::DST_IPV4, ipv4, 16, 4),
            (HashFields::SRC_IPV6, ipv6, 8, 16),
            (HashFields::DST_IPV6, ipv6, 24, 16),
            (HashFields::SRC_PORT_TCP, tcp, 0, 2),
            (HashFields::DST_PORT_TCP, tcp, 2, 2),
            (HashFields::SRC_PORT_UDP, udp, 0, 2),
            (HashFields::DST_PORT_UDP, udp, 2, 2),
        ]
    }
}

/// The Toeplitz hash: for each bit of the input that is set, the 32 bits of the key from there on.
fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
    let bit = |n: usize| key.get(n / 8).is_some_and(|byte| byte & 0x80 >> (n % 8) != 0);
    let mut window = (0..32).fold(0u32, |window, n| window << 1 | u32::from(bit(n)));
    let mut hash = 0;
    for (n, byte) in input.iter().enumerate() {
        for at in 0..8 {
            if byte & 0x80 >> at != 0 {
                hash ^= window;
            }
            window = window << 1 | u32::from(bit(32 + n * 8 + at));
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of "Verifying the RSS Hash Calculation" with their key.
    #[test]
    fn the_hash_is_that_of_the_published_examples() {
        let key: Vec<u8> = [
            0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca,
            0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b,
            0xbe, 0xac, 0x01, 0xfa,
        ]
        .into();
        let source_and_destination = [66, 9, 149, 187, 161, 142, 100, 80];
        assert_eq!(toeplitz(&key, &source_and_destination), 0x323e_8fc2);
        let mut with_ports = source_and_destination.to_vec();
        with_ports.extend([2794u16.to_be_bytes(), 1766u16.to_be_bytes()].concat());
        assert_eq!(toeplitz(&key, &with_ports), 0x51cc_c178);
        assert_eq!(toeplitz(&[], &with_ports), 0);
    }
}
