//! Bytes that interfaces have sent, as the kernel counts them in /proc/net/dev.

use crate::{Side, Stage};
use anyhow::{Context, Result};

impl Stage {
    /// Bytes that each interface of a side has sent, all headers included: `eth0`, `eth1` and so on.
    pub fn sent_by_links(&self, side: Side) -> Result<Vec<u64>> {
        sent_by_links(&self.counters(side)?)
    }

    /// Bytes that an interface of a side has sent, all headers included.
    pub fn sent_by(&self, side: Side, interface: &str) -> Result<u64> {
        sent_bytes(&self.counters(side)?, interface).with_context(|| format!("no counters of {interface}"))
    }

    fn counters(&self, side: Side) -> Result<String> {
        self.enter(side, || std::fs::read_to_string("/proc/thread-self/net/dev"))?.context("/proc/thread-self/net/dev")
    }
}

/// Sent bytes of an interface in the text of /proc/net/dev.
pub fn sent_bytes(text: &str, interface: &str) -> Option<u64> {
    sent(text.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'))?)
}

/// The same of `eth0`, `eth1` and so on, in the order of their numbers.
pub fn sent_by_links(text: &str) -> Result<Vec<u64>> {
    by_links(text, sent)
}

/// Received bytes of these interfaces.
pub fn received_by_links(text: &str) -> Result<Vec<u64>> {
    by_links(text, |figures| figures.split_whitespace().next()?.parse().ok())
}

fn by_links(text: &str, bytes: impl Fn(&str) -> Option<u64>) -> Result<Vec<u64>> {
    let mut interfaces: Vec<(usize, u64)> = vec![];
    for (name, figures) in text.lines().filter_map(|line| line.trim().split_once(':')) {
        if let Some(number) = name.strip_prefix("eth").and_then(|number| number.parse().ok()) {
            interfaces.push((number, bytes(figures).context("no bytes in /proc/net/dev")?));
        }
    }
    interfaces.sort_unstable();
    Ok(interfaces.into_iter().map(|(_, bytes)| bytes).collect())
}

/// The figures of an interface: bytes packets errs drop fifo frame compressed multicast, received and then sent.
fn sent(figures: &str) -> Option<u64> {
    figures.split_whitespace().nth(8)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_bytes_of_the_interface_are_read() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets\n  eth01: 1 1 1 1 1 1 1 1 1 1\n  \
                    eth0: 10 2 0 0 0 0 0 0 2770 4 0 0 0 0 0 0\n    lo:5 0 0 0 0 0 0 0 7 0 0 0 0 0 0 0\n";
        assert_eq!(sent_bytes(text, "eth0"), Some(2770));
        assert_eq!(sent_bytes(text, "lo"), Some(7));
        assert_eq!(sent_bytes(text, "eth1"), None);
    }

    #[test]
    fn bytes_of_interfaces_are_in_the_order_of_their_numbers() {
        let text = "Inter-| Receive | Transmit\n face |bytes packets|bytes\n  lo: 1 0 0 0 0 0 0 0 2 0\n\
                    eth10: 1 0 0 0 0 0 0 0 30 0\n  eth9: 1 0 0 0 0 0 0 0 20 0\n";
        assert_eq!(sent_by_links(text).unwrap(), [20, 30]);
        assert_eq!(received_by_links(text).unwrap(), [1, 1]);
        assert!(sent_by_links("eth0: 1 2").is_err());
    }
}
