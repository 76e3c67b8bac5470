//! Which addresses may send to this process: prefixes, and the socket filter by which the kernel drops all other
//! datagrams before they take room in a socket's buffer.

use crate::socket_filter;
use socket2::{SockRef, Socket};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

/// The most prefixes of a list: their filter fits into `net.core.optmem_max` of every kernel.
const MAX: usize = 64;
/// The loopback interface has this index in every network namespace.
const LOOPBACK: u32 = 1;
/// Where the source address is in an IPv4 and in an IPv6 header.
const SOURCE_V4: u32 = 12;
const SOURCE_V6: u32 = 8;
/// Where a filter reads the index of the interface, and the kind of a packet (`PACKET_*`).
const INTERFACE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_IFINDEX) as u32;
const KIND: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
/// What a filter returns to keep all of a datagram, and to drop it.
const KEEP: u32 = u32::MAX;
const DROP: u32 = 0;

/// The addresses that this process exchanges packets with, beside those of its own host. By default all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed(Option<Arc<[Prefix]>>);

/// The addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Prefix {
    address: IpAddr,
    bits: u8,
}

/// Why a text is no list of prefixes.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum AllowError {
    #[error("`{0}` is not a prefix; write 192.0.2.0/24, 2001:db8::/32 or a single address")]
    NotAPrefix(String),
    #[error("`{0}` has bits set after the prefix; write {1}")]
    TooManyBits(String, String),
    #[error("{0} prefixes are too many; give at most {MAX}")]
    TooMany(usize),
}

impl Allowed {
    /// Whether an address of another host is allowed.
    pub fn permits(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.as_ref().is_none_or(|prefixes| prefixes.iter().any(|prefix| prefix.holds(address)))
    }

    /// Has the kernel drop what comes to a UDP socket from an address that is not allowed. What this host itself sends
    /// passes: it comes by the loopback interface, or is the copy of a multicast datagram that leaves.
    pub(crate) fn restrict(&self, socket: &Socket, v6: bool) -> io::Result<()> {
        let Some(prefixes) = &self.0 else { return Ok(()) };
        // A process that cannot keep to the list must not open a port at all.
        socket_filter::attach(&SockRef::from(socket), &filter(prefixes, v6)).map_err(|error| {
            io::Error::new(error.kind(), format!("the kernel refuses the socket filter that --allow needs: {error}"))
        })
    }
}

impl Prefix {
    /// Of a canonical address.
    fn holds(&self, address: IpAddr) -> bool {
        let words = words(address);
        self.address.is_ipv4() == address.is_ipv4()
            && self.masks().zip(words).all(|((mask, word), other)| other & mask == word)
    }

    /// The masks of the 32-bit words that it compares, and the words.
    fn masks(&self) -> impl Iterator<Item = (u32, u32)> {
        let mask = |n: usize| match u32::from(self.bits).saturating_sub(32 * n as u32) {
            0 => 0,
            bits => u32::MAX << (32 - bits.min(32)),
        };
        words(self.address).enumerate().map(move |(n, word)| (mask(n), word))
    }

    /// With its address's bits after the prefix cleared.
    fn trimmed(self) -> Prefix {
        let words: Vec<u32> = self.masks().map(|(mask, word)| mask & word).collect();
        let address = match self.address {
            IpAddr::V4(_) => Ipv4Addr::from(words[0]).into(),
            IpAddr::V6(_) => Ipv6Addr::from(words.iter().fold(0, |all, word| all << 32 | u128::from(*word))).into(),
        };
        Prefix { address, ..self }
    }
}

/// The 32-bit words of an address.
fn words(address: IpAddr) -> impl Iterator<Item = u32> {
    let (all, count) = match address {
        IpAddr::V4(v4) => (u128::from(u32::from(v4)) << 96, 1),
        IpAddr::V6(v6) => (u128::from(v6), 4),
    };
    (0..count).map(move |n| (all >> (96 - 32 * n)) as u32)
}

/// A classic BPF program for a UDP socket of one family.
fn filter(prefixes: &[Prefix], v6: bool) -> Vec<libc::sock_filter> {
    let load = |at: u32| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at);
    let result = |what: u32| statement(libc::BPF_RET | libc::BPF_K, what);
    let equal = |value: u32, otherwise: u8| {
        let code = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        libc::sock_filter { code: code as u16, jt: 0, jf: otherwise, k: value }
    };
    let source = libc::SKF_NET_OFF as u32;
    let source = source.wrapping_add(if v6 { SOURCE_V6 } else { SOURCE_V4 });
    let mut filter = vec![load(INTERFACE), equal(LOOPBACK, 1), result(KEEP)];
    filter.extend([load(KIND), equal(libc::PACKET_LOOPBACK.into(), 1), result(KEEP)]);
    for prefix in prefixes.iter().filter(|prefix| prefix.address.is_ipv6() == v6) {
        let compared: Vec<(usize, (u32, u32))> =
            prefix.masks().enumerate().filter(|(_, (mask, _))| *mask != 0).collect();
        for (done, (n, (mask, word))) in compared.iter().enumerate() {
            // Over the rest of this prefix: three statements for each word, and its result.
            let rest = 3 * (compared.len() - done - 1) + 1;
            let masked = statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, *mask);
            filter.extend([load(source + 4 * *n as u32), masked, equal(*word, rest as u8)]);
        }
        filter.push(result(KEEP));
    }
    filter.push(result(DROP));
    filter
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

impl FromStr for Prefix {
    type Err = AllowError;

    fn from_str(text: &str) -> Result<Prefix, AllowError> {
        let wrong = || AllowError::NotAPrefix(text.into());
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(longest), |bits| bits.parse().map_err(|_| wrong()))?;
        let is_mapped = address != address.to_canonical();
        if bits > longest || is_mapped {
            return Err(wrong());
        }
        let prefix = Prefix { address, bits };
        match prefix.trimmed() {
            trimmed if trimmed == prefix => Ok(prefix),
            trimmed => Err(AllowError::TooManyBits(text.into(), trimmed.to_string())),
        }
    }
}

impl FromStr for Allowed {
    type Err = AllowError;

    /// Prefixes separated by commas.
    fn from_str(text: &str) -> Result<Allowed, AllowError> {
        let prefixes: Vec<Prefix> = text.split(',').map(|prefix| prefix.trim().parse()).collect::<Result<_, _>>()?;
        if prefixes.len() > MAX {
            return Err(AllowError::TooMany(prefixes.len()));
        }
        Ok(Allowed(Some(prefixes.into())))
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefixes: Vec<String> = self.0.iter().flat_map(|all| all.iter()).map(Prefix::to_string).collect();
        f.write_str(&prefixes.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(list: &str, address: &str) -> bool {
        list.parse::<Allowed>().unwrap().permits(address.parse().unwrap())
    }

    #[test]
    fn prefixes_hold_their_addresses_only() {
        let list = "192.0.2.0/25, 198.51.100.7,2001:db8:2::/47,fe80::1";
        for inside in ["192.0.2.127", "198.51.100.7", "::ffff:192.0.2.1", "2001:db8:3:ffff::1", "fe80::1"] {
            assert!(permits(list, inside), "{inside}");
        }
        for outside in ["192.0.2.128", "198.51.100.6", "2001:db8:4::1", "fe80::2", "::c000:201"] {
            assert!(!permits(list, outside), "{outside}");
        }
        assert!(permits("0.0.0.0/0", "203.0.113.9") && !permits("0.0.0.0/0", "::1"));
        assert!(Allowed::default().permits("203.0.113.9".parse().unwrap()));
    }

    #[test]
    fn wrong_prefixes_are_refused_with_what_to_write() {
        for wrong in ["", "eth0", "192.0.2.0/33", "192.0.2.0/", "2001:db8::/129", "192.0.2.1,,", "::ffff:192.0.2.1"] {
            assert!(matches!(wrong.parse::<Allowed>(), Err(AllowError::NotAPrefix(_))), "{wrong}");
        }
        let error = "192.0.2.7/24".parse::<Allowed>().unwrap_err();
        assert_eq!(error.to_string(), "`192.0.2.7/24` has bits set after the prefix; write 192.0.2.0/24");
        let error = "2001:db8::1/32".parse::<Allowed>().unwrap_err();
        assert_eq!(error.to_string(), "`2001:db8::1/32` has bits set after the prefix; write 2001:db8::/32");
        let many = vec!["192.0.2.1"; MAX + 1].join(",");
        assert_eq!(many.parse::<Allowed>(), Err(AllowError::TooMany(MAX + 1)));
    }

    #[test]
    fn a_list_is_written_as_it_is_read() {
        let list = "192.0.2.0/24,2001:db8::/32,::1/128";
        assert_eq!(list.parse::<Allowed>().unwrap().to_string(), list);
    }

    /// What the kernel does with a filter, for a datagram of a kind by an interface.
    fn run(filter: &[libc::sock_filter], interface: u32, kind: u8, source: IpAddr) -> u32 {
        let first = if source.is_ipv6() { SOURCE_V6 } else { SOURCE_V4 };
        let words: Vec<u32> = words(source).collect();
        let (mut a, mut at) = (0, 0);
        loop {
            let now = filter[at];
            at += 1;
            match u32::from(now.code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    let offset = now.k.wrapping_sub(libc::SKF_NET_OFF as u32);
                    let is_source = offset < 64;
                    a = match now.k {
                        _ if is_source => words[((offset - first) / 4) as usize],
                        KIND => kind.into(),
                        _ => interface,
                    };
                }
                code if code == libc::BPF_ALU | libc::BPF_AND | libc::BPF_K => a &= now.k,
                code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => {
                    at += usize::from(if a == now.k { now.jt } else { now.jf });
                }
                _ => return now.k,
            }
        }
    }

    #[test]
    fn the_filter_drops_what_is_not_allowed_and_keeps_what_this_host_sends() {
        let list: Allowed = "10.0.0.0/8,192.0.2.7,2001:db8::/33,fd77::1,::/0".parse().unwrap();
        let narrow: Allowed = "10.0.0.0/8,192.0.2.7,2001:db8::/33,fd77::1".parse().unwrap();
        for address in
            ["10.255.0.1", "192.0.2.7", "192.0.2.8", "2001:db8:7fff::1", "2001:db8:8000::1", "fd77::1", "fd77::2"]
        {
            let address: IpAddr = address.parse().unwrap();
            for list in [&list, &narrow] {
                let filter = filter(list.0.as_ref().unwrap(), address.is_ipv6());
                let kept = run(&filter, 7, libc::PACKET_HOST, address) == KEEP;
                assert_eq!(kept, list.permits(address), "{address} by {list}");
                assert_eq!(run(&filter, LOOPBACK, libc::PACKET_HOST, address), KEEP);
                assert_eq!(run(&filter, 7, libc::PACKET_LOOPBACK, address), KEEP);
            }
        }
    }

    /// The longest filter: the kernel must take it.
    #[test]
    fn the_kernel_takes_the_longest_filter() {
        let list: Allowed = vec!["2001:db8::1"; MAX].join(",").parse().unwrap();
        let socket = Socket::new(socket2::Domain::IPV6, socket2::Type::DGRAM, None);
        // A machine without IPv6 has no such sockets.
        let Ok(socket) = socket else { return };
        list.restrict(&socket, true).unwrap();
    }
}
