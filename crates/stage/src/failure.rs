//! Links that fail for a while, and are mended.

use crate::{Side, Stage};
use anyhow::{Context, Result, bail, ensure};
use std::fmt;
use std::str::FromStr;

/// What becomes of a link, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Its interface is down on side A, so that side B has no carrier.
    Down,
    /// All packets are lost. Neither side is told.
    Silent,
    /// So many of 100 packets are lost.
    Lossy(u32),
    /// Its rate becomes so many times smaller.
    Slow(u32),
}

impl FromStr for Failure {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Failure> {
        let (name, number) = text.split_once(':').unwrap_or((text, ""));
        let number = || number.parse::<u32>().with_context(|| format!("`{text}` needs a number: loss:30, slow:20"));
        Ok(match name {
            "down" if name == text => Failure::Down,
            "silent" if name == text => Failure::Silent,
            "loss" => {
                let percent = number()?;
                ensure!((1..100).contains(&percent), "give 1 to 99 % of the packets, and `silent` for all");
                Failure::Lossy(percent)
            }
            "slow" => {
                let times = number()?;
                ensure!((2..=1000).contains(&times), "a link may become 2 to 1000 times slower");
                Failure::Slow(times)
            }
            _ => bail!("`{text}` is no failure: give down, silent, loss:30 (percent) or slow:20 (times)"),
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Down => f.write_str("down"),
            Failure::Silent => f.write_str("silent"),
            Failure::Lossy(percent) => write!(f, "loss:{percent}"),
            Failure::Slow(times) => write!(f, "slow:{times}"),
        }
    }
}

impl Stage {
    /// Lets a link of this rate fail, from now on.
    pub fn fail(&self, link: usize, gigabits: u32, failure: Failure) -> Result<()> {
        match failure {
            Failure::Down => self.ip(Side::A, &format!("link set eth{link} down")),
            Failure::Silent => self.drops(link, "-I", ""),
            Failure::Lossy(percent) => {
                // Otherwise packets that leave in one call are lost together.
                self.segments(link, 1)?;
                self.drops(link, "-I", &random(percent))
            }
            Failure::Slow(times) => self.shape_to(link, gigabits * 1000 / times),
        }
    }

    /// Ends a failure of a link of this rate.
    pub fn mend(&self, link: usize, gigabits: u32, failure: Failure) -> Result<()> {
        match failure {
            Failure::Down => self.ip(Side::A, &format!("link set eth{link} up")),
            Failure::Silent => self.drops(link, "-D", ""),
            Failure::Lossy(percent) => {
                self.drops(link, "-D", &random(percent))?;
                self.segments(link, 65_535)
            }
            Failure::Slow(_) => self.shape(link, gigabits),
        }
    }

    /// Inserts (`-I`) or deletes (`-D`) rules that drop what comes on a link.
    fn drops(&self, link: usize, action: &str, which: &str) -> Result<()> {
        let rule = format!("{action} INPUT -i eth{link} {which} -j DROP");
        [Side::A, Side::B].into_iter().try_for_each(|side| self.iproute(side, "iptables", rule.trim()))
    }

    /// So many packets of a link are handed to it at once, at most.
    fn segments(&self, link: usize, most: u32) -> Result<()> {
        let command = format!("link set eth{link} gso_max_segs {most}");
        [Side::A, Side::B].into_iter().try_for_each(|side| self.ip(side, &command))
    }
}

fn random(percent: u32) -> String {
    format!("-m statistic --mode random --probability {}", f64::from(percent) / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::missing;
    use std::net::UdpSocket;
    use std::time::Duration;

    #[test]
    fn failures_have_names() {
        for text in ["down", "silent", "loss:30", "slow:20"] {
            assert_eq!(text.parse::<Failure>().unwrap().to_string(), text);
        }
        for wrong in ["", "up", "loss", "loss:0", "loss:100", "slow:1", "slow:x", "down:1"] {
            assert!(wrong.parse::<Failure>().is_err(), "{wrong}");
        }
    }

    /// How many of 200 datagrams on the second link arrive. The first ones may wait for the peer's MAC address, and be lost.
    fn arrive(stage: &Stage) -> usize {
        let (to, from) = (stage.link_address(Side::A, 1), stage.link_address(Side::B, 1));
        let receiver = stage.enter(Side::A, || UdpSocket::bind((to, 0)).unwrap()).unwrap();
        let to = receiver.local_addr().unwrap();
        let sender = stage.enter(Side::B, || UdpSocket::bind((from, 0)).unwrap()).unwrap();
        receiver.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let arrived = |count: usize| {
            // A link without a carrier may refuse them.
            (0..count).for_each(|_| drop(sender.send_to(&[1; 100], to)));
            (0..count).take_while(|_| receiver.recv(&mut [0; 200]).is_ok()).count()
        };
        arrived(1);
        arrived(200)
    }

    /// What `tc` says of the link.
    fn rate(stage: &Stage) -> String {
        let shown = stage.command(Side::B, "tc").args(["qdisc", "show", "dev", "eth1"]).output().unwrap();
        String::from_utf8(shown.stdout).unwrap()
    }

    #[test]
    #[ignore = "needs root"]
    fn a_link_fails_and_is_mended() {
        assert!(missing(["tc", "iptables"]).is_empty(), "install iproute2 and iptables");
        let stage = Stage::with_links(2, 1500).unwrap();
        stage.shape(1, 1).unwrap();
        for failure in [Failure::Silent, Failure::Lossy(50), Failure::Slow(20)] {
            assert_eq!(arrive(&stage), 200);
            stage.fail(1, 1, failure).unwrap();
            let some = arrive(&stage);
            let expected = match failure {
                Failure::Slow(_) => {
                    assert!(rate(&stage).contains("rate 50Mbit"), "{}", rate(&stage));
                    200..=200
                }
                Failure::Lossy(_) => 40..=160,
                _ => 0..=0,
            };
            assert!(expected.contains(&some), "{failure}: {some}");
            stage.mend(1, 1, failure).unwrap();
        }
        assert_eq!(arrive(&stage), 200);
        assert!(rate(&stage).contains("rate 1Gbit"), "{}", rate(&stage));
        stage.fail(1, 1, Failure::Down).unwrap();
        assert_eq!(arrive(&stage), 0);
        stage.mend(1, 1, Failure::Down).unwrap();
        // The kernel sends on a link some time after it has a carrier.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while arrive(&stage) != 200 {
            assert!(std::time::Instant::now() < end, "the link does not come back");
        }
    }
}
