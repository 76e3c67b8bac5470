//! Which links there are, and what they carry at most.

use anyhow::{Context, Result, ensure};
use std::str::FromStr;
use weir_wire::edge::{HEADER_LEN, PIECE_LEN};

const ETHERNET: usize = 14;
/// Headers of IPv4 and UDP.
const IP_UDP: usize = 20 + 8;
const MOST_LINKS: usize = 64;

/// Links, as the thesis names them: `4x1` are four of 1 Gbit/s, `1x10+4x1` have one of 10 Gbit/s beside them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    pub name: String,
    /// Gbit/s of each link.
    pub rates: Vec<u32>,
}

impl FromStr for Configuration {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Configuration> {
        let mut rates = vec![];
        for part in name.split('+') {
            let (count, rate) = part.split_once('x').context("write links as 4x1 or 1x10+4x1")?;
            let count: usize = count.parse().with_context(|| format!("`{count}` is not a number of links"))?;
            let rate: u32 = rate.parse().with_context(|| format!("`{rate}` is not a rate in Gbit/s"))?;
            ensure!((1..=MOST_LINKS).contains(&count) && (1..=400).contains(&rate), "give 1 to 64 links of 1 to 400");
            rates.extend(std::iter::repeat_n(rate, count));
        }
        ensure!(rates.len() <= MOST_LINKS, "{} links are more than {MOST_LINKS}", rates.len());
        Ok(Configuration { name: name.to_owned(), rates })
    }
}

impl Configuration {
    /// Gbit/s of operations' bytes that all links carry in one direction at most, for operations of `size` bytes.
    ///
    /// A token bucket counts each packet from its Ethernet header on (14 bytes), without preamble, FCS and gap. A packet
    /// carries at most MTU - 28 (IPv4, UDP) - 23 (header) - 21 (piece) bytes of an operation. With n packets for an operation,
    /// the nominal rate is rate × size / (size + n × (14 + 28 + 23 + 21)).
    pub fn nominal(&self, mtu: u32, size: usize) -> f64 {
        let each = ETHERNET + IP_UDP + HEADER_LEN + PIECE_LEN;
        let on_the_link = size + packets(mtu, size) as usize * each;
        f64::from(self.rates.iter().sum::<u32>()) * size as f64 / on_the_link as f64
    }
}

/// Packets of an operation that is sent once.
pub fn packets(mtu: u32, size: usize) -> u64 {
    size.div_ceil(payload(mtu)).max(1) as u64
}

/// Bytes of operations in a packet, at most.
pub fn payload(mtu: u32) -> usize {
    mtu as usize - IP_UDP - HEADER_LEN - PIECE_LEN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_thesis_are_links() {
        let rates = |name: &str| name.parse::<Configuration>().unwrap().rates;
        assert_eq!(rates("1x10+4x1"), [10, 1, 1, 1, 1]);
        assert_eq!(rates("2x1"), [1, 1]);
        for wrong in ["", "2", "0x1", "1x0", "65x1", "40x1+40x1", "1x1+", "ax1"] {
            assert!(wrong.parse::<Configuration>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_nominal_rate_is_without_headers() {
        let links: Configuration = "2x1".parse().unwrap();
        let most = 1500 - 28 - HEADER_LEN - PIECE_LEN;
        let full = links.nominal(1500, most);
        assert!((full - 2.0 * most as f64 / 1514.0).abs() < 1e-12, "{full}");
        assert_eq!((packets(1500, most), packets(1500, most + 1), packets(1500, 0)), (1, 2, 1));
        assert!(links.nominal(9000, 1 << 20) > links.nominal(1500, 1 << 20));
        assert!(links.nominal(1500, 4) < 0.1);
    }
}
