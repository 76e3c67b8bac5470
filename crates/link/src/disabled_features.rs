//! Features of the kernel that a user has switched off to test their fallbacks.

use std::fmt;
use std::str::FromStr;

bitflags::bitflags! {
    /// A set of kernel features. Each feature has a fallback, which is used where the kernel refuses the feature or
    /// the set contains it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct DisabledFeatures: u8 {
        /// Several datagrams in one send (UDP_SEGMENT, Linux 4.18). Without it each datagram is sent alone.
        const UDP_SEGMENT = 1 << 0;
        /// Several datagrams in one receive (UDP_GRO, Linux 5.0). Without it each datagram is received and sent
        /// alone.
        const UDP_GRO = 1 << 1;
        /// Sockets of AF_INET6, which `ipv6.disable=1` removes. Without them only IPv4 is used.
        const IPV6 = 1 << 2;
        /// userfaultfd(2) with write-protect mode (Linux 5.7). Without it only the interposed functions report
        /// unmapping.
        const USERFAULTFD = 1 << 3;
        /// MADV_POPULATE_READ and MADV_POPULATE_WRITE (Linux 5.14). Without them pages are touched one by one.
        const MADV_POPULATE = 1 << 4;
        /// A socket that is connected to the destination of most packets, at the port of another (SO_REUSEPORT, Linux
        /// 3.9). Without it all packets leave and come by the sockets that are not connected.
        const UDP_CONNECT = 1 << 5;
    }
}

/// User-visible names, in the order of the flags.
const NAMES: [(&str, DisabledFeatures); 6] = [
    ("udp-segment", DisabledFeatures::UDP_SEGMENT),
    ("udp-gro", DisabledFeatures::UDP_GRO),
    ("ipv6", DisabledFeatures::IPV6),
    ("userfaultfd", DisabledFeatures::USERFAULTFD),
    ("madv-populate", DisabledFeatures::MADV_POPULATE),
    ("udp-connect", DisabledFeatures::UDP_CONNECT),
];

impl DisabledFeatures {
    /// Each feature alone, with its name.
    pub fn each() -> impl Iterator<Item = (&'static str, DisabledFeatures)> {
        NAMES.into_iter()
    }

    /// All names, in the order of the flags.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::each().map(|(name, _)| name)
    }
}

/// The error for a name that is no feature.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no feature `{0}`; the features are: {list}",
    list = DisabledFeatures::names().collect::<Vec<_>>().join(", ")
)]
/// `WEIR_WITHOUT` or `--without` names a feature that does not exist.
pub struct UnknownFeature(pub String);

impl FromStr for DisabledFeatures {
    type Err = UnknownFeature;

    /// Comma-separated names; the empty string is the empty set.
    fn from_str(text: &str) -> Result<Self, UnknownFeature> {
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        names
            .map(|name| {
                let known = NAMES.iter().find(|(known, _)| *known == name);
                known.map(|(_, feature)| *feature).ok_or_else(|| UnknownFeature(name.to_owned()))
            })
            .collect()
    }
}

impl fmt::Display for DisabledFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> =
            NAMES.iter().filter(|(_, feature)| self.contains(*feature)).map(|(name, _)| *name).collect();
        f.write_str(&names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_has_a_name_that_is_read_back() {
        let all = DisabledFeatures::names().collect::<Vec<_>>().join(",");
        assert_eq!(all.parse(), Ok(DisabledFeatures::all()));
        assert_eq!(DisabledFeatures::all().to_string(), all);
        assert_eq!("".parse(), Ok(DisabledFeatures::empty()));
        assert_eq!(" udp-gro , ipv6,".parse(), Ok(DisabledFeatures::UDP_GRO | DisabledFeatures::IPV6));
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_list() {
        let error = "udp-gro,udp-gso".parse::<DisabledFeatures>().unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no feature `udp-gso`; the features are: udp-segment, udp-gro, ipv6, userfaultfd, madv-populate, \
             udp-connect"
        );
    }
}
