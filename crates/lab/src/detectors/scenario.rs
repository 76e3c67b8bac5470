//! Scenarios of the corpus, drawn from a seed: adapters, operations, memory, attributes, the network, and what goes
//! wrong.

use super::draw::Draw;
use super::family::Family;
use std::sync::OnceLock;
use std::time::Duration;
use weir_sim::Disorder;
use weir_transport::{Mtu, Profile};

/// All that decides on a run of the simulator; the same scenario gives the same packets.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub family: Family,
    /// Name of an embedded profile.
    pub profile: &'static str,
    /// Time of a page fault, in place of the profile's.
    pub slow_pages: Option<Duration>,
    pub qps: u32,
    /// Operations of each QP.
    pub ops: u32,
    pub mix: &'static [Operation],
    /// Bytes of an operation: the least and the most; their logarithm is uniformly distributed.
    pub sizes: [u32; 2],
    /// Operations begin at pages of their own; otherwise they follow each other.
    pub apart: bool,
    /// Work requests of a QP that are open at a time.
    pub depth: u32,
    /// Time between two posts of a QP.
    pub gap: Duration,
    /// The server posts the same operations, too.
    pub two_way: bool,
    /// Client and server have ODP memory.
    pub odp: [bool; 2],
    /// Share of the pages that are present at the beginning.
    pub touched: f64,
    pub mtu: Mtu,
    pub ack_timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub rnr_timer: u8,
    pub max_rd_atomic: u8,
    /// All connections begin at this PSN; `None`: each at another.
    pub psn: Option<u32>,
    /// The server posts a receive at each interval; `None`: all before the first message.
    pub receive_every: Option<Duration>,
    pub network: Network,
    pub end: Ending,
    /// Other connections of client and server send a message at this interval, until the capture ends.
    pub witness: Option<Duration>,
    /// The capture goes on for this time after the last operation.
    pub tail: Duration,
}

/// An operation of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
    Send,
    FetchAdd,
}

/// A switch with client, server and others; the client's link has the faults.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    pub gbit: f64,
    pub latency: Duration,
    /// Share of packets that the client's link loses.
    pub loss: f64,
    /// So many packets in a row are lost, each so often on average.
    pub burst: Option<(u64, u64)>,
    pub disorder: Disorder,
    /// Bytes that wait before an output of the switch, at most.
    pub buffer: u64,
    /// The switch marks packets before which more bytes wait.
    pub mark_above: Option<u64>,
    /// Hosts that send WRITEs to the server as fast as they can, so many each.
    pub load: (u32, u32),
}

/// How it ends, if not well.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ending {
    Well,
    /// The client sends to a QP that does not exist.
    WrongPeer,
    /// The server's QPs vanish after this share of the operations.
    PeerStops(f64),
    /// An operation of the first QP has a wrong key.
    WrongKey,
}

impl Scenario {
    /// Operations on any adapter, in pinned memory, over a network without faults.
    pub(super) fn plain(seed: u64, family: Family, draw: &mut Draw) -> Scenario {
        const MIXES: [&[Operation]; 7] = [
            &[Operation::Read],
            &[Operation::Write],
            &[Operation::Send],
            &[Operation::Read, Operation::Write],
            &[Operation::Write, Operation::Send],
            &[Operation::Read, Operation::Write, Operation::Send],
            &[Operation::Read, Operation::FetchAdd, Operation::Write],
        ];
        let mtu = draw.one_of(&[Mtu::M256, Mtu::M1024, Mtu::M1024, Mtu::M2048, Mtu::M4096, Mtu::M4096]);
        Scenario {
            seed,
            family,
            profile: draw.one_of(&adapters(|_| true)),
            slow_pages: None,
            qps: draw.log(1, 12) as u32,
            ops: draw.log(4, 60) as u32,
            mix: draw.one_of(&MIXES),
            sizes: draw.one_of(&[[8, 8], [1, 256], [100, 100], [512, 4096], [64, 20_000], [4096, 30_000]]),
            apart: draw.chance(0.3),
            depth: draw.log(1, 32) as u32,
            gap: draw.one_of(&[Duration::ZERO, Duration::ZERO, micros(5), micros(50), micros(400)]),
            two_way: draw.chance(0.25),
            odp: [false; 2],
            touched: 0.0,
            mtu,
            ack_timeout: draw.between(8, 18) as u8,
            retry_cnt: draw.one_of(&[7, 7, 7, 6, 5, 4]),
            rnr_retry: 7,
            rnr_timer: draw.one_of(&[12, 12, 14, 14, 1, 6, 16, 20]),
            max_rd_atomic: draw.one_of(&[1, 4, 8, 16]),
            psn: draw.chance(0.2).then(|| draw.one_of(&[0, 0xff_fff0])),
            receive_every: None,
            network: Network {
                gbit: draw.one_of(&[10.0, 25.0, 54.5, 100.0]),
                latency: draw.one_of(&[micros(1), micros(1), micros(3), micros(12)]),
                loss: 0.0,
                burst: None,
                disorder: Disorder::NONE,
                buffer: 16 << 20,
                mark_above: None,
                load: (0, 0),
            },
            end: Ending::Well,
            witness: draw.chance(0.5).then(|| millis(draw.between(2, 40))),
            tail: millis(draw.log(1, 60)),
        }
    }
}

/// The names of the embedded profiles for which `is` holds.
pub(super) fn adapters(is: impl Fn(&Profile) -> bool) -> Vec<&'static str> {
    static ALL: OnceLock<Vec<(&'static str, Profile)>> = OnceLock::new();
    let load = |name| (name, weir_profiles::load(name).expect("an embedded profile"));
    let all = ALL.get_or_init(|| weir_profiles::names().map(load).collect());
    all.iter().filter(|(_, profile)| is(profile)).map(|(name, _)| *name).collect()
}

pub(super) const fn micros(n: u64) -> Duration {
    Duration::from_micros(n)
}

pub(super) const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}
