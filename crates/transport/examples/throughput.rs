//! The speed of the protocol alone: small WRITEs from one QP to another in one thread, without memory.
//!
//! `cargo run --release -p weir-transport --features testing --example throughput [SECONDS]`

use std::time::{Duration, Instant as Clock};
use weir_transport::testing::{NullHost, Setup, connected};
use weir_transport::*;
use weir_wire::Packet;

/// Writes headers into one buffer, as a carrier does, and leaves the payload bytes in the buffer unchanged.
struct Burst {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Egress for Burst {
    fn push(&mut self, packet: &Outgoing<'_>) -> Result<(), Refused> {
        let start = self.ends.last().copied().unwrap_or(0);
        let end = start + packet.headers.len() + packet.payload.len() + usize::from(packet.headers.bth.pad) + 4;
        if end > self.bytes.len() {
            return Err(Refused::Full);
        }
        packet.headers.emit(&mut self.bytes[start..end]);
        self.ends.push(end);
        Ok(())
    }
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(1.0);
    for (name, len) in [("64 B WRITE", 64), ("4 KiB WRITE, MTU 4096", 4096), ("1 MiB WRITE, MTU 4096", 1 << 20)] {
        let rate = measure(len, Duration::from_secs_f64(seconds));
        println!("{name}: {:.2} M messages/s, {:.2} M packets/s", rate.0 / 1e6, rate.1 / 1e6);
    }
}

/// Messages and data packets per second.
fn measure(len: u32, time: Duration) -> (f64, f64) {
    let setup = Setup { mtu: Mtu::M4096, ..Setup::default() };
    let caps = QpCaps { max_send_wr: 128, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let mut qps = [0, 1].map(|node| connected(node, caps, false, &setup));
    let mut host = NullHost::default();
    let mut burst = Burst { bytes: vec![0; 64 << 10], ends: Vec::with_capacity(4096) };
    let limits = Limits { request_bytes: 1 << 20, read_bytes: 1 << 20 };
    let sges = [Sge { addr: 0, length: len, lkey: 0 }];
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Write { remote_addr: 0, rkey: 0 },
        flags: SendFlags::SIGNALED,
        data: Data::Gather(&sges),
    };
    let started = Clock::now();
    let mut packets = 0u64;
    while started.elapsed() < time {
        for _ in 0..64 {
            let now = Instant(started.elapsed().as_nanos() as u64);
            while qps[0].post_send(&wr).is_ok() {}
            for from in 0..2 {
                burst.ends.clear();
                qps[from].poll_transmit(now, limits, &mut host, &mut burst);
                let mut start = 0;
                for &end in &burst.ends {
                    let packet = Packet::parse(&burst.bytes[start..end]).expect("a packet that was sent parses");
                    qps[1 - from].handle_packet(now, &packet, &mut host);
                    start = end;
                }
                packets += if from == 0 { burst.ends.len() as u64 } else { 0 };
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    (host.sent as f64 / seconds, packets as f64 / seconds)
}
