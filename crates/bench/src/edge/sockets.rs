//! What as many UDP sockets as links carry, with datagrams as long as Weir's packets and without a protocol: nothing goes
//! again, and nothing is put in order.

use super::configuration::payload;
use super::control::Control;
use super::sides::AREA;
use crate::raw::framing::Burst;
use crate::raw::socket::{self, Incoming, Outgoing};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

/// Headers of IPv4 and UDP.
const IP_UDP: u32 = 20 + 8;
/// Bytes of a UDP_SEGMENT send, and datagrams in it, at most.
const MOST_BYTES: usize = 65_507;
const MOST_DATAGRAMS: usize = 64;
/// Sends of one system call.
const BATCH: usize = 4;
/// Buffers of one receive call.
const SLOTS: usize = 8;
/// A wait of either side, milliseconds.
const TICK: i32 = 2;
/// After the sender's end the receiver waits so long for datagrams that are on their way.
const DRAIN: Duration = Duration::from_millis(100);

/// What went over the sockets.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// Datagrams.
    pub sent: u64,
    pub received: u64,
    /// From the first that was received to the last.
    pub seconds: f64,
}

impl Traffic {
    /// Gbit/s of operations' bytes that the received datagrams have room for.
    pub fn gigabits(&self, mtu: u32) -> f64 {
        self.received as f64 * payload(mtu) as f64 * 8e-9 / self.seconds
    }

    /// The share of the datagrams that were lost.
    pub fn lost(&self) -> f64 {
        1.0 - self.received as f64 / self.sent as f64
    }
}

/// The receiver, with a socket at each of its addresses.
pub fn serve(address: SocketAddr, links: &[IpAddr], mtu: u32) -> Result<()> {
    let listener = TcpListener::bind(address)?;
    let mut control = Control::new(listener.accept()?.0)?;
    let sockets = bind(links)?;
    let ports: Vec<u16> = sockets.iter().map(|socket| Ok(socket.local_addr()?.port())).collect::<Result<_>>()?;
    control.send(&ports)?;
    let mut asked = descriptors(&sockets);
    asked.push(control.stream().as_raw_fd());
    let (mut incoming, mut bytes) = (Incoming::new(SLOTS), 0u64);
    let (mut first, mut last, mut drains): (Option<Instant>, Instant, Option<Instant>) = (None, Instant::now(), None);
    let mut sent = None;
    while drains.is_none_or(|since: Instant| since.elapsed() < DRAIN) {
        let ready = socket::wait(&asked, libc::POLLIN, TICK)?;
        for (socket, _) in sockets.iter().zip(&ready).filter(|(_, ready)| **ready) {
            for slot in 0..incoming.receive(socket)? {
                bytes += incoming.slot(slot).len() as u64;
                last = Instant::now();
                first.get_or_insert(last);
            }
        }
        if drains.is_none() && ready[sockets.len()] {
            sent = Some(control.receive::<u64>()?.context("the sender has ended")?);
            drains = Some(Instant::now());
            asked.pop();
        }
    }
    let first = first.context("no datagram has come")?;
    let received = bytes / u64::from(mtu - IP_UDP);
    control.send(&Traffic { sent: sent.unwrap_or_default(), received, seconds: (last - first).as_secs_f64() })
}

/// The sender.
pub fn run(address: SocketAddr, servers: &[IpAddr], own: &[IpAddr], mtu: u32, seconds: f64) -> Result<Traffic> {
    let mut control = Control::new(TcpStream::connect(address)?)?;
    let ports: Vec<u16> = control.receive()?.context("the receiver has ended")?;
    ensure!(ports.len() == own.len(), "{} sockets for {} links", ports.len(), own.len());
    let sockets = bind(own)?;
    let segment = (mtu - IP_UDP) as usize;
    let datagrams = (MOST_BYTES / segment).clamp(1, MOST_DATAGRAMS);
    // As much memory as operations have: what is sent is not in the caches either.
    let calls = (AREA / MOST_BYTES / own.len().max(1) / BATCH).max(1);
    let bursts = vec![Burst { len: datagrams * segment, segment }; calls * BATCH];
    let to = servers.iter().zip(&ports).map(|(address, port)| SocketAddr::new(*address, *port));
    let mut outgoing: Vec<Outgoing> = to.map(|to| Outgoing::spread(to, &bursts)).collect();
    let mut call = vec![0; outgoing.len()];
    let (asked, begin, mut sent) = (descriptors(&sockets), Instant::now(), 0);
    let time = Duration::from_secs_f64(seconds);
    while begin.elapsed() < time {
        let mut any = 0;
        for ((socket, outgoing), call) in sockets.iter().zip(&mut outgoing).zip(&mut call) {
            let sent = outgoing.send(socket, *call * BATCH, BATCH)?;
            *call = (*call + usize::from(sent > 0)) % calls;
            any += sent;
        }
        sent += any * datagrams;
        if any == 0 {
            socket::wait(&asked, libc::POLLOUT, TICK)?;
        }
    }
    control.send(&(sent as u64))?;
    control.receive()?.context("the receiver has ended")
}

fn bind(addresses: &[IpAddr]) -> Result<Vec<UdpSocket>> {
    addresses.iter().map(|address| socket::bind(*address)).collect()
}

fn descriptors(sockets: &[UdpSocket]) -> Vec<RawFd> {
    sockets.iter().map(AsRawFd::as_raw_fd).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_of_several_sockets_are_counted() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let links = [address.ip(); 2];
        let server = std::thread::spawn(move || serve(address, &links, 1500));
        let end = Instant::now() + Duration::from_secs(10);
        let traffic = loop {
            match run(address, &links, &links, 1500, 0.05) {
                // The receiver does not listen yet.
                Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
                done => break done.unwrap(),
            }
        };
        server.join().unwrap().unwrap();
        assert!(traffic.received > 0 && traffic.received <= traffic.sent, "{traffic:?}");
        assert!(traffic.gigabits(1500) > 0.0 && (0.0..1.0).contains(&traffic.lost()), "{traffic:?}");
    }
}
