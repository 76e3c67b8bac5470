//! The network address of a sender or receiver.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The network address of a sender or receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    Ipv4(Ipv4Addr),
    /// Also a GID, of which IPv4-mapped ones stay IPv6 addresses.
    Ipv6(Ipv6Addr),
    /// The local identifier (LID) of a port in an InfiniBand subnet.
    Lid(u16),
}

impl Address {
    /// The IP address or GID.
    pub fn ip(self) -> Option<IpAddr> {
        match self {
            Address::Ipv4(address) => Some(address.into()),
            Address::Ipv6(address) => Some(address.into()),
            Address::Lid(_) => None,
        }
    }
}

// Two words: the derived code would hash byte arrays and their lengths.
impl Hash for Address {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let bits = match self {
            Address::Ipv4(address) => 1 << 64 | u128::from(address.to_bits()),
            Address::Ipv6(address) => address.to_bits(),
            Address::Lid(lid) => 2 << 64 | u128::from(*lid),
        };
        state.write_u64((bits >> 64) as u64);
        state.write_u64(bits as u64);
    }
}

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Address::Ipv4(address),
            IpAddr::V6(address) => Address::Ipv6(address),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Ipv4(address) => address.fmt(f),
            Address::Ipv6(address) => address.fmt(f),
            Address::Lid(lid) => f.pad(&format!("LID {lid}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn addresses_of_different_kinds_differ_in_text_and_in_a_set() {
        let all = ["0.0.0.7", "::7", "::ffff:0.0.0.7"].map(|text| Address::from(text.parse::<IpAddr>().unwrap()));
        let all: HashSet<Address> = all.into_iter().chain([Address::Lid(7), Address::Lid(7)]).collect();
        let mut texts: Vec<String> = all.iter().map(Address::to_string).collect();
        texts.sort();
        assert_eq!(texts, ["0.0.0.7", "::7", "::ffff:0.0.0.7", "LID 7"]);
        assert_eq!(Address::Lid(7).ip(), None);
    }
}
