//! A peer without Weir: its packets arrive at port 4791. One process of the host holds this port and hands packets to
//! the others.
//!
//! The peer does the TCP exchange of `ibv_rc_pingpong`, then sends hand-made RoCEv2 packets; the pingpong echoes them.

use crate::bed::{Bed, Topology};
use crate::roce_peer::{End, RocePeer, bind};
use crate::trial;
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};
use weir_stage::{Child, Protocol, Side};
use weir_wire::ROCE_PORT;

const SOON: Duration = Duration::from_secs(10);
/// Bytes of a message: several packets, the last one with padding.
const SIZE: usize = 4001;
pub const MESSAGES: u32 = 60;
/// Bytes of a message in a burst: 1024 packets.
const BURST: usize = 1 << 20;
/// Bytes of a datagram.
const DATAGRAM: usize = 999;

pub fn trials() -> Vec<Trial> {
    vec![
        trial(Topology::Veth, "a peer without Weir reaches a process", |bed| one_process(bed, false)),
        trial(Topology::Veth, "a peer without Weir reaches a process over IPv6", |bed| one_process(bed, true)),
        trial(Topology::Veth, "datagrams of an unbound peer without Weir reach a process", |bed| datagrams(bed, false)),
        trial(Topology::Veth, "datagrams of an unbound peer without Weir reach a process over IPv6", |bed| {
            datagrams(bed, true)
        }),
        trial(Topology::Veth, "packets on 4791 reach another process of the address", handed_over),
        trial(Topology::Veth, "port 4791 is open before the first packet of a peer without Weir", first_packets),
        trial(Topology::Veth, "a burst on 4791 reaches another process of the address without loss", burst),
        trial(Topology::Veth, "the log says once that another program holds port 4791", logged_once),
        trial(Topology::Veth, "another process takes over port 4791 of a killed process", taken_over),
    ]
}

fn one_process(bed: &Bed, ipv6: bool) -> Result<()> {
    let server = Server::start(bed, ipv6)?;
    let socket = bind(&bed.stage, Side::B, server.peer_address)?;
    let mut connection = server.connect(bed, &socket, 0x71)?;
    connection.messages(0..MESSAGES)?;
    connection.end()
}

/// A UD QP has no peer, so any adapter may send to it first. Only one of the two processes can hold the port.
fn datagrams(bed: &Bed, ipv6: bool) -> Result<()> {
    let servers = [
        Server::run(bed, ipv6, "ibv_ud_pingpong", &["-s", &DATAGRAM.to_string()])?,
        Server::run(bed, ipv6, "ibv_ud_pingpong", &["-s", &DATAGRAM.to_string()])?,
    ];
    let socket = bind(&bed.stage, Side::B, servers[0].peer_address)?;
    for (server, qpn) in servers.into_iter().zip(0x71..) {
        let mut connection = server.connect(bed, &socket, qpn)?;
        for number in 0..MESSAGES {
            let message: Vec<u8> = (0..DATAGRAM as u32).map(|i| (i * 31 + number * 97) as u8).collect();
            let echo =
                connection.peer.datagram(&message, 0x1111_1111, SOON).with_context(|| format!("datagram {number}"))?;
            ensure!(echo == message, "the echo of datagram {number} differs");
        }
        drop(connection.tcp);
        connection.child.wait(SOON)?.success()?;
    }
    Ok(())
}

fn handed_over(bed: &Bed) -> Result<()> {
    let servers = [Server::start(bed, false)?, Server::start(bed, false)?, Server::start(bed, false)?];
    let socket = bind(&bed.stage, Side::B, servers[0].peer_address)?;
    // Only one of the three can hold the port.
    for (server, qpn) in servers.into_iter().zip(0x71..) {
        let mut connection = server.connect(bed, &socket, qpn)?;
        connection.messages(0..MESSAGES)?;
        connection.end()?;
    }
    Ok(())
}

/// UC does not retransmit: a packet that arrives at a closed port is lost, and with it the message.
fn first_packets(bed: &Bed) -> Result<()> {
    let server = Server::unreliable(bed, SIZE)?;
    let socket = bind(&bed.stage, Side::B, server.peer_address)?;
    let mut connection = server.connect(bed, &socket, 0x71)?;
    connection.peer.send_without_retransmission(&[7; SIZE])?;
    connection.has_received()
}

fn burst(bed: &Bed) -> Result<()> {
    let owner = Server::start(bed, false)?;
    let servers = [Server::unreliable(bed, BURST)?, Server::unreliable(bed, BURST)?];
    let socket = bind(&bed.stage, Side::B, owner.peer_address)?;
    let mut first = owner.connect(bed, &socket, 0x71)?;
    first.messages(0..10)?;
    for (server, qpn) in servers.into_iter().zip(0x72..) {
        let mut connection = server.connect(bed, &socket, qpn)?;
        connection.peer.send_without_retransmission(&[7; BURST])?;
        connection.has_received()?;
    }
    Ok(())
}

fn logged_once(bed: &Bed) -> Result<()> {
    let other = bed.stage.enter(Side::A, || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, ROCE_PORT)))??;
    let server = Server::run_with(bed, &["--log", "warn"], false, "ibv_rc_pingpong", &[])?;
    let socket = bind(&bed.stage, Side::B, server.peer_address)?;
    let mut connection = server.connect(bed, &socket, 0x71)?;
    let warning = "another program has UDP port 4791";
    let until = Instant::now() + SOON;
    while !connection.child.printed()?.contains(warning) {
        ensure!(Instant::now() < until, "no warning about port 4791: {}", connection.child.printed()?);
        std::thread::sleep(Duration::from_millis(10));
    }
    // The process tries to bind the port every 50 ms.
    std::thread::sleep(Duration::from_millis(300));
    let printed = connection.child.printed()?;
    ensure!(printed.matches(warning).count() == 1, "more than one warning about port 4791: {printed}");
    drop(other);
    Ok(())
}

fn taken_over(bed: &Bed) -> Result<()> {
    let owner = Server::start(bed, false)?;
    let server = Server::start(bed, false)?;
    let socket = bind(&bed.stage, Side::B, server.peer_address)?;
    let mut first = owner.connect(bed, &socket, 0x71)?;
    first.messages(0..10)?;
    let mut second = server.connect(bed, &socket, 0x72)?;
    second.messages(0..MESSAGES / 2)?;
    drop(first);
    second.messages(MESSAGES / 2..MESSAGES)?;
    second.end()
}

/// A pingpong that waits for its client.
pub struct Server {
    child: Child,
    port: u16,
    pub peer_address: IpAddr,
}

/// A pingpong and the hand-made peer that is connected to it.
pub struct ConnectedServer<'s> {
    child: Child,
    tcp: TcpStream,
    peer: RocePeer<'s>,
}

impl Server {
    pub fn start(bed: &Bed, ipv6: bool) -> Result<Server> {
        Server::run(bed, ipv6, "ibv_rc_pingpong", &["-s", &SIZE.to_string(), "-m", "1024"])
    }

    /// A UC pingpong that waits for one message of `size` bytes.
    fn unreliable(bed: &Bed, size: usize) -> Result<Server> {
        Server::run(bed, false, "ibv_uc_pingpong", &["-s", &size.to_string(), "-m", "1024", "-n", "1"])
    }

    fn run(bed: &Bed, ipv6: bool, program: &str, arguments: &[&str]) -> Result<Server> {
        Server::run_with(bed, &[], ipv6, program, arguments)
    }

    fn run_with(bed: &Bed, options: &[&str], ipv6: bool, program: &str, arguments: &[&str]) -> Result<Server> {
        let address = |side| if ipv6 { bed.stage.address6(side).into() } else { bed.stage.address(side) };
        let port = bed.stage.free_port(Side::A)?;
        let gid = bed.gid_index(Side::A, address(Side::A))?;
        let device = bed.stage.device();
        let line = format!("{program} -d {device} -g {gid} -p {port} -n {MESSAGES}");
        let words = line.split_whitespace().chain(arguments.iter().copied());
        let mut child = Child::spawn(&mut bed.weir(Side::A, options, words), line.as_str())?;
        child.wait_listening(Protocol::Tcp, port, SOON)?;
        Ok(Server { child, port, peer_address: address(Side::B) })
    }

    /// Exchanges addresses as the client of the pingpong does: LID, QPN, PSN and GID in hexadecimal, then "done".
    pub fn connect<'s>(self, bed: &Bed, socket: &'s UdpSocket, qpn: u32) -> Result<ConnectedServer<'s>> {
        let to = (bed.stage.address(Side::A), self.port);
        let mut tcp = bed.stage.enter(Side::B, || TcpStream::connect(to))??;
        tcp.set_read_timeout(Some(SOON))?;
        let local = End { address: self.peer_address, qpn, psn: 0xff_fff0 };
        let gid = match local.address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let hello = format!("0000:{qpn:06x}:{:06x}:{:032x}\0", local.psn, u128::from(gid));
        tcp.write_all(hello.as_bytes())?;
        let mut answer = vec![0; hello.len()];
        tcp.read_exact(&mut answer).context("no address from the pingpong")?;
        tcp.write_all(b"done\0")?;

        let answer = String::from_utf8(answer)?;
        let fields: Vec<&str> = answer.trim_end_matches('\0').split(':').collect();
        ensure!(fields.len() == 4, "a malformed address {answer}");
        let gid = Ipv6Addr::from(u128::from_str_radix(fields[3], 16)?);
        let remote = End {
            address: gid.to_canonical(),
            qpn: u32::from_str_radix(fields[1], 16)?,
            psn: u32::from_str_radix(fields[2], 16)?,
        };
        Ok(ConnectedServer { child: self.child, tcp, peer: RocePeer::new(socket, local, remote) })
    }
}

impl ConnectedServer<'_> {
    /// Sends messages and compares their echoes.
    pub fn messages(&mut self, numbers: std::ops::Range<u32>) -> Result<()> {
        for number in numbers {
            // Drops the last packet of every tenth echo, so that the pingpong has to retransmit it.
            self.peer.drop_last = u32::from(number % 10 == 7);
            let message: Vec<u8> = (0..SIZE as u32).map(|i| (i * 31 + i / 256 + number * 97) as u8).collect();
            let echo = match self.peer.exchange(&message, SOON) {
                Ok(echo) => echo,
                Err(error) => return Err(error.context(format!("message {number}\n{}", self.child.printed()?))),
            };
            ensure!(echo == message, "the echo of message {number} differs");
        }
        Ok(())
    }

    /// The pingpong has received its message and sent its own: it exits with status 0.
    fn has_received(self) -> Result<()> {
        drop(self.tcp);
        self.child.wait(SOON)?.success()?;
        Ok(())
    }

    /// The pingpong has received all messages and exits with status 0; it has retransmitted all dropped packets.
    pub fn end(self) -> Result<()> {
        let (dropped, again) = (self.peer.dropped, self.peer.retransmitted);
        ensure!(
            dropped == MESSAGES / 10 && again == dropped,
            "{dropped} packets were dropped, {again} of them were retransmitted"
        );
        drop(self.tcp);
        self.child.wait(SOON)?.success()?;
        Ok(())
    }
}
