//! Hellos between two processes with several links: the addresses of each, and the numbers of their connection.
//!
//! A hello may *ask* (it carries a nonce) and may *answer* (it repeats the other side's nonce). What a hello says is used
//! only if it answers: a sender that did not receive the nonce cannot answer, so a forged source address changes nothing.
//! The fields, big-endian:
//!
//! | offset | bytes | field |
//! | ---: | ---: | --- |
//! | 0 | 4 | [`MAGIC`] |
//! | 4 | 1 | version: 2. It is raised when the packets of connections change, too |
//! | 5 | 1 | bit 0: its sender lists all its interfaces, of which the peer's network may have some; bit 1: packets carry pieces of MultiEdge's operations instead of packets of QPs; bit 2: its sender refuses the connection, or ends it (the answer is then the receiver's number of the connection and its first packet); bit 3: its sender got a packet for a connection that it does not have, of the number at offset 24 |
//! | 6 | 1 | number of addresses |
//! | 7 | 1 | 0 |
//! | 8 | 8 | nonce that the answer must repeat; 0: no answer is requested |
//! | 16 | 8 | nonce of the hello that this one answers; 0: it is no answer |
//! | 24 | 4 | the sender's number of the connection |
//! | 28 | 4 | sequence number of the sender's first packet |
//! | 32 | | addresses |
//! | | 4 | CRC-32 of what is before it |
//!
//! An address:
//!
//! | offset | bytes | field |
//! | ---: | ---: | --- |
//! | 0 | 1 | number of the interface that has it, 0 ..= 63: an interface may have several |
//! | 1 | 1 | bytes of the address: 4 or 16 |
//! | 2 | 1 | bits that the addresses of its network have in common |
//! | 3 | 1 | 0 |
//! | 4 | 4 | MTU of the interface, bytes |
//! | 8 | 4 | speed of the interface, Mbit/s; 0: not known |
//! | 12 | 4 or 16 | address |

use super::{EdgeError, MAX_LINKS, Seq};
use std::net::IpAddr;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of a hello. As a BTH opcode, `W` belongs to the RD service, which no adapter implements; as a transport
/// header version, the second byte is none.
pub const MAGIC: [u8; 4] = *b"WLNK";
/// The most bytes of a hello. Addresses that do not fit are left out.
pub const MAX_HELLO_LEN: usize = 1400;

const FORMAT: u8 = 2;
const LISTS_ALL: u8 = 1 << 0;
const PIECES: u8 = 1 << 1;
const REFUSES: u8 = 1 << 2;
const UNKNOWN: u8 = 1 << 3;
const CHECK_LEN: usize = 4;

/// A hello. By default it neither asks nor answers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hello {
    pub ask: u64,
    pub answer: u64,
    /// The sender's number of the connection.
    pub connection: u32,
    /// The sender's first packet.
    pub first: Seq,
    /// Its sender lists all its interfaces, of which the peer's network may have some.
    pub lists_all: bool,
    /// Packets carry pieces of MultiEdge's operations.
    pub pieces: bool,
    /// Its sender refuses the connection, or ends it.
    pub refuses: bool,
    /// Its sender got a packet for a connection that it does not have, of the number `connection`.
    pub unknown: bool,
    /// Addresses of the sender, best first.
    pub addresses: Vec<Address>,
}

/// An address of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// Of the interface, below [`MAX_LINKS`].
    pub interface: u8,
    pub address: IpAddr,
    /// Bits that the addresses of its network have in common.
    pub prefix: u8,
    /// Of the interface, bytes.
    pub mtu: u32,
    /// Of the interface, Mbit/s; 0: not known.
    pub speed: u32,
}

impl Hello {
    /// Tells that a packet came for a connection that this side does not have.
    pub fn unknown(connection: u32) -> Hello {
        Hello { connection, unknown: true, ..Hello::default() }
    }

    /// The connection that the sender of the hello does not have, although a packet came for it.
    pub fn unknown_connection(&self) -> Option<u32> {
        self.unknown.then_some(self.connection)
    }

    /// Whether bytes begin as a hello.
    pub fn is_hello(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// The hello in wire format, with as many addresses as fit.
    pub fn encode(&self) -> Vec<u8> {
        let bit = |bit: u8, is: bool| if is { bit } else { 0 };
        let mut out = vec![0; size_of::<RawHello>()];
        let fitting = Address::fitting(&self.addresses);
        for address in fitting {
            let octets = match address.address {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            };
            let raw = RawAddress {
                interface: address.interface,
                len: octets.len() as u8,
                prefix: address.prefix,
                zero: 0,
                mtu: address.mtu.into(),
                speed: address.speed.into(),
            };
            out.extend(raw.as_bytes());
            out.extend(octets);
        }
        let raw = RawHello {
            magic: MAGIC,
            format: FORMAT,
            flags: bit(LISTS_ALL, self.lists_all)
                | bit(PIECES, self.pieces)
                | bit(REFUSES, self.refuses)
                | bit(UNKNOWN, self.unknown),
            addresses: fitting.len() as u8,
            zero: 0,
            ask: self.ask.into(),
            answer: self.answer.into(),
            connection: self.connection.into(),
            first: self.first.0.into(),
        };
        out[..size_of::<RawHello>()].copy_from_slice(raw.as_bytes());
        let check = crc32fast::hash(&out);
        out.extend(check.to_be_bytes());
        out
    }

    /// Reads a hello. A damaged one is [`EdgeError::Check`].
    pub fn decode(bytes: &[u8]) -> Result<Hello, EdgeError> {
        let truncated = EdgeError::Truncated { len: bytes.len() };
        let (body, check) = bytes.split_last_chunk::<CHECK_LEN>().ok_or(truncated)?;
        let (raw, mut rest) = RawHello::ref_from_prefix(body).map_err(|_| truncated)?;
        if raw.magic != MAGIC || raw.format != FORMAT {
            return Err(EdgeError::Version(raw.format));
        }
        if crc32fast::hash(body) != u32::from_be_bytes(*check) {
            return Err(EdgeError::Check);
        }
        if raw.zero != 0 || raw.flags & !(LISTS_ALL | PIECES | REFUSES | UNKNOWN) != 0 {
            return Err(EdgeError::Reserved);
        }
        let mut addresses = vec![];
        for _ in 0..raw.addresses {
            let (raw, after) = RawAddress::ref_from_prefix(rest).map_err(|_| truncated)?;
            let (octets, after) = after.split_at_checked(usize::from(raw.len)).ok_or(truncated)?;
            let address = match octets.len() {
                4 => IpAddr::from(<[u8; 4]>::try_from(octets).expect("four bytes")),
                16 => IpAddr::from(<[u8; 16]>::try_from(octets).expect("sixteen bytes")),
                _ => return Err(EdgeError::Reserved),
            };
            if usize::from(raw.interface) >= MAX_LINKS {
                return Err(EdgeError::Link(raw.interface));
            }
            if raw.zero != 0 || usize::from(raw.prefix) > 8 * octets.len() {
                return Err(EdgeError::Reserved);
            }
            let (interface, prefix) = (raw.interface, raw.prefix);
            addresses.push(Address { interface, address, prefix, mtu: raw.mtu.get(), speed: raw.speed.get() });
            rest = after;
        }
        if !rest.is_empty() {
            return Err(EdgeError::Reserved);
        }
        Ok(Hello {
            ask: raw.ask.get(),
            answer: raw.answer.get(),
            connection: raw.connection.get(),
            first: Seq(raw.first.get()),
            lists_all: raw.flags & LISTS_ALL != 0,
            pieces: raw.flags & PIECES != 0,
            refuses: raw.flags & REFUSES != 0,
            unknown: raw.flags & UNKNOWN != 0,
            addresses,
        })
    }
}

impl Address {
    /// The first addresses of a list, as many as fit into a hello.
    pub fn fitting(list: &[Address]) -> &[Address] {
        let mut len = size_of::<RawHello>() + CHECK_LEN;
        let fits = |address: &&Address| {
            len += size_of::<RawAddress>() + if address.address.is_ipv4() { 4 } else { 16 };
            len <= MAX_HELLO_LEN
        };
        &list[..list.iter().take(usize::from(u8::MAX)).take_while(fits).count()]
    }
}

/// The front of a hello in wire format.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHello {
    magic: [u8; 4],
    format: u8,
    flags: u8,
    addresses: u8,
    zero: u8,
    ask: U64,
    answer: U64,
    connection: U32,
    first: U32,
}

/// The front of an address in wire format.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawAddress {
    interface: u8,
    len: u8,
    prefix: u8,
    zero: u8,
    mtu: U32,
    speed: U32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(interface: u8, address: &str, prefix: u8) -> Address {
        Address { interface, address: address.parse().unwrap(), prefix, mtu: 9000, speed: 10_000 }
    }

    fn hello() -> Hello {
        Hello {
            ask: 0x0102_0304_0506_0708,
            answer: u64::MAX,
            connection: 0x1112_1314,
            first: Seq(0x2122_2324),
            lists_all: true,
            pieces: false,
            refuses: true,
            unknown: false,
            addresses: vec![address(0, "10.0.0.1", 24), address(0, "fd00::1", 64), address(63, "10.0.1.1", 32)],
        }
    }

    #[test]
    fn the_layout_is_as_documented() {
        let hello = Hello { addresses: vec![address(7, "10.0.0.1", 24)], ..hello() };
        let bytes = hello.encode();
        let expected = [
            &b"WLNK\x02\x05\x01\x00"[..],
            &[1, 2, 3, 4, 5, 6, 7, 8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            &[0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24],
            &[7, 4, 24, 0, 0, 0, 0x23, 0x28, 0, 0, 0x27, 0x10, 10, 0, 0, 1],
        ];
        assert_eq!(bytes[..bytes.len() - CHECK_LEN], expected.concat());
        assert!(!super::super::is_edge(&bytes) && Hello::is_hello(&bytes));
    }

    #[test]
    fn a_hello_comes_back_and_a_damaged_one_is_refused() {
        let bytes = hello().encode();
        assert_eq!(Hello::decode(&bytes), Ok(hello()));
        for len in 0..bytes.len() {
            assert!(Hello::decode(&bytes[..len]).is_err());
        }
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            assert!(Hello::decode(&bad).is_err(), "byte {at}");
        }
    }

    #[test]
    fn what_must_be_zero_is_checked() {
        let with = |at: usize, value: u8| {
            let mut bad = hello().encode();
            let end = bad.len() - CHECK_LEN;
            bad[at] = value;
            let check = crc32fast::hash(&bad[..end]);
            bad[end..].copy_from_slice(&check.to_be_bytes());
            Hello::decode(&bad).err()
        };
        assert_eq!(with(5, 16), Some(EdgeError::Reserved));
        assert_eq!(with(7, 1), Some(EdgeError::Reserved));
        assert_eq!(with(32, 64), Some(EdgeError::Link(64)));
        assert_eq!(with(33, 5), Some(EdgeError::Reserved));
        assert_eq!(with(34, 33), Some(EdgeError::Reserved));
        assert_eq!(with(35, 1), Some(EdgeError::Reserved));
        assert_eq!(with(6, 2), Some(EdgeError::Reserved), "bytes after the last address");
    }

    #[test]
    fn addresses_that_do_not_fit_are_left_out() {
        let all = |text: &str| (0..64).map(|n| address(n, text, 20)).collect::<Vec<_>>();
        let count = |addresses| Hello::decode(&Hello { addresses, ..hello() }.encode()).unwrap().addresses.len();
        assert_eq!(count(all("10.0.0.1")), 64);
        assert_eq!(count(all("fd00::1")), (MAX_HELLO_LEN - 36) / 28);
    }
}
