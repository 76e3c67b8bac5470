//! What a measurement finds.

use std::ops::{Add, Mul};

/// What is found for a setting.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Found {
    /// Gbit/s of operations' bytes: of both directions in a two-way test, of the direction in use in a ping-pong.
    pub gbits: f64,
    /// One-way time of an operation, µs, median; NaN but for a ping-pong.
    pub latency: f64,
    /// Time of the program's CPU to start an operation, µs.
    pub initiate: f64,
    /// CPU time of client and server.
    pub cpu: [Cpu; 2],
}

/// Where a side's CPU time goes, in the categories of E 3.1, each as a share of one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cpu {
    /// Interrupts, or polling.
    pub notice: f64,
    /// Copies of payload that is sent, or the translation of its addresses.
    pub send: f64,
    /// Copies of payload that has come.
    pub receive: f64,
    /// Remapping of pages, with the TLB.
    pub remap: f64,
    /// Headers, order and flow control.
    pub packet: f64,
    /// Access to network adapters.
    pub device: f64,
}

impl Found {
    /// Of what was not measured: NaN.
    pub const NONE: Found = {
        let (nan, none) = (f64::NAN, Cpu::NONE);
        Found { gbits: nan, latency: nan, initiate: nan, cpu: [none, none] }
    };

    /// MByte/s, which most figures of the thesis have.
    pub fn megabytes(&self) -> f64 {
        self.gbits * 125.0
    }
}

impl Cpu {
    /// Of what was not measured: NaN.
    pub const NONE: Cpu = {
        let nan = f64::NAN;
        Cpu { notice: nan, send: nan, receive: nan, remap: nan, packet: nan, device: nan }
    };
    /// Names of the parts, in the order of [`Cpu::parts`].
    pub const PARTS: [&str; 6] = ["interrupts, polling", "send copy", "receive copy", "remapping", "packets", "device"];

    /// All parts.
    pub fn parts(&self) -> [f64; 6] {
        [self.notice, self.send, self.receive, self.remap, self.packet, self.device]
    }

    /// Their sum: 1 is all of one CPU.
    pub fn total(&self) -> f64 {
        self.parts().iter().sum()
    }

    /// Both copies as a share of all.
    pub fn copies(&self) -> f64 {
        (self.send + self.receive) / self.total()
    }
}

impl Add for Cpu {
    type Output = Cpu;

    fn add(self, other: Cpu) -> Cpu {
        Cpu {
            notice: self.notice + other.notice,
            send: self.send + other.send,
            receive: self.receive + other.receive,
            remap: self.remap + other.remap,
            packet: self.packet + other.packet,
            device: self.device + other.device,
        }
    }
}

impl Mul<f64> for Cpu {
    type Output = Cpu;

    fn mul(self, by: f64) -> Cpu {
        Cpu {
            notice: self.notice * by,
            send: self.send * by,
            receive: self.receive * by,
            remap: self.remap * by,
            packet: self.packet * by,
            device: self.device * by,
        }
    }
}
