//! Impostors: hellos that a third host forges, and programs that bind the slot port of a foreign adapter's QPN or of a
//! dead peer.

use crate::bed::{Bed, Topology};
use crate::foreign::{MESSAGES, Server};
use crate::roce_peer::bind;
use crate::{fork, killed, trial};
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_stage::flood::{hello, sealed, slot_ports};
use weir_stage::{Child, Side};

/// UDP port of slot 0, and the number of slots.
const FIRST_PORT: u16 = 20480;
const SLOTS: u16 = 1024;
/// How long the trial sends forged hellos.
const FLOOD: Duration = Duration::from_secs(2);

pub fn trials() -> Vec<Trial> {
    vec![
        trial(Topology::Veth, "forged hellos of a third host do not disturb a transfer", forged_hellos),
        trial(Topology::Veth, "a program at the slot port of a foreign adapter's QPN gets no packet", impostor),
        trial(Topology::Loopback, "ACKs of a program at a dead peer's port are ignored", |bed| {
            dead_peer(bed, &["--local", "off"], "takeover")
        }),
        trial(Topology::Loopback, "with ICRC, a program that binds a dead peer's port later gets no packet", |bed| {
            dead_peer(bed, &["--icrc", "always"], "late-takeover")
        }),
        trial(
            Topology::Veth,
            "a process in a dead peer's slot is reachable, and not mistaken for the dead peer",
            |bed| successor(bed, "successor"),
        ),
        trial(Topology::Veth, "a process in a dead peer's slot is reachable after the old QP is destroyed", |bed| {
            successor(bed, "successor-after-destroy")
        }),
    ]
}

/// Sends UDP datagrams with any source address, as a third host does if its network does not filter forged sources.
struct Forger(OwnedFd);

impl Forger {
    fn new(bed: &Bed, side: Side) -> Result<Forger> {
        // SAFETY: `socket` returns a new descriptor or -1; no other code owns the new descriptor.
        let socket = bed.stage.enter(side, || unsafe {
            match libc::socket(libc::AF_INET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_RAW) {
                -1 => Err(std::io::Error::last_os_error()),
                socket => Ok(OwnedFd::from_raw_fd(socket)),
            }
        })?;
        Ok(Forger(socket.context("cannot open a raw socket")?))
    }

    fn send(&self, from: (IpAddr, u16), to: (IpAddr, u16), payload: &[u8]) -> Result<()> {
        let (IpAddr::V4(source), IpAddr::V4(target)) = (from.0, to.0) else { anyhow::bail!("IPv4 only") };
        let mut packet = vec![0u8; 28];
        // The kernel fills in length and checksum.
        (packet[0], packet[8], packet[9]) = (0x45, 64, libc::IPPROTO_UDP as u8);
        packet[12..16].copy_from_slice(&source.octets());
        packet[16..20].copy_from_slice(&target.octets());
        packet[20..22].copy_from_slice(&from.1.to_be_bytes());
        packet[22..24].copy_from_slice(&to.1.to_be_bytes());
        packet[24..26].copy_from_slice(&(8 + payload.len() as u16).to_be_bytes());
        packet.extend(payload);
        let to = socket2::SockAddr::from(SocketAddr::new(to.0, 0));
        // SAFETY: the packet and the address are valid during the call.
        let sent = unsafe {
            libc::sendto(self.0.as_raw_fd(), packet.as_ptr().cast(), packet.len(), 0, to.as_ptr().cast(), to.len())
        };
        ensure!(sent == packet.len() as isize, "sendto: {}", std::io::Error::last_os_error());
        Ok(())
    }
}

/// The server of a running transfer gets hellos with the source address and port of the client.
fn forged_hellos(bed: &Bed) -> Result<()> {
    let (server, mut client) = killed::running_pair(bed, &[], "ib_write_bw", 14)?;
    let (forger, until) = (Forger::new(bed, Side::B)?, Instant::now() + FLOOD);
    let (here, there) = (slot_ports(&bed.stage, Side::B)?, slot_ports(&bed.stage, Side::A)?);
    ensure!(!here.is_empty() && !there.is_empty(), "no bound slot ports: {here:?}, {there:?}");
    let (address, other) = (bed.stage.address(Side::B), bed.stage.address(Side::A));
    let mut number = 0;
    while Instant::now() < until {
        for (from, to) in here.iter().flat_map(|from| there.iter().map(move |to| (*from, *to))) {
            number += 1;
            forger.send((address, from), (other, to), &hello(number))?;
        }
        // A few thousand per second: this tests the content of the hellos, not their rate.
        std::thread::sleep(Duration::from_micros(200));
    }
    ensure!(client.poll()?.is_none(), "the client has ended: {}", client.printed()?);
    let before = bed.stage.sent_by(Side::B, bed.stage.interface())?;
    std::thread::sleep(Duration::from_secs(1));
    let moved = bed.stage.sent_by(Side::B, bed.stage.interface())? - before;
    ensure!(client.poll()?.is_none() && moved > 1 << 20, "{moved} bytes in a second: {}", client.printed()?);
    drop(server);
    Ok(())
}

/// On the host of a foreign adapter, a program binds the port that the slot of the peer's QPN maps to.
fn impostor(bed: &Bed) -> Result<()> {
    const SLOT: u16 = 7;
    let server = Server::start(bed, false)?;
    let address = server.peer_address;
    let socket = bind(&bed.stage, Side::B, address)?;
    let trap = bed.stage.enter(Side::B, || UdpSocket::bind((address, FIRST_PORT + SLOT)))??;
    trap.set_read_timeout(Some(Duration::from_millis(20)))?;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let caught = scope.spawn(|| answer_hellos(&trap, &done));
        let result = server.connect(bed, &socket, u32::from(SLOT) << 14 | 0x71).and_then(|mut connection| {
            connection.messages(0..MESSAGES)?;
            connection.end()
        });
        done.store(true, Ordering::Relaxed);
        let (hellos, packets) = caught.join().expect("the impostor thread does not panic");
        result?;
        ensure!(hellos > 0, "the impostor got no hello: the trial watches the wrong port");
        ensure!(packets == 0, "the impostor got {packets} packets");
        Ok(())
    })
}

/// Answers every hello with its nonce, as a Weir process without that QP does. Returns the number of hellos and of
/// other packets.
fn answer_hellos(trap: &UdpSocket, done: &AtomicBool) -> (usize, usize) {
    let (mut hellos, mut packets) = (0, 0);
    let mut bytes = [0; 2048];
    while !done.load(Ordering::Relaxed) {
        let Ok((len, from)) = trap.recv_from(&mut bytes) else { continue };
        if !bytes.starts_with(b"WEIR") {
            packets += 1;
            continue;
        }
        hellos += 1;
        let mut answer = hello(0);
        answer.truncate(64);
        // The boot id of this machine, no ICRC, the largest window.
        answer[5..24].copy_from_slice(&bytes[5..24]);
        answer[6] = 0;
        answer[32..40].copy_from_slice(&bytes[24..32]);
        answer[24..32].copy_from_slice(&9u64.to_be_bytes());
        answer[48..52].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(len >= 72);
        let _ = trap.send_to(&sealed(answer), from);
    }
    (hellos, packets)
}

fn dead_peer(bed: &Bed, options: &[&str], case: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = fork::compile("e2e/dead_peer.c", folder.path())?;
    let gid = bed.gid_index(Side::A, bed.stage.address(Side::A))?;
    let words = [program.into_os_string(), bed.stage.device().into(), gid.to_string().into(), case.into()];
    let ended = Child::spawn(&mut bed.weir(Side::A, options, words), "dead_peer.c")?
        .wait(Duration::from_secs(90))?
        .success()?;
    ensure!(ended.stdout == "ok\n", "{}", ended.printed());
    Ok(())
}

/// Only two slots of the namespace are free, so that a new process gets the slot of the dead one.
fn successor(_: &Bed, case: &str) -> Result<()> {
    let bed = Bed::new(Topology::Veth)?;
    let taken: Vec<UdpSocket> = bed.stage.enter(Side::A, || {
        (1..SLOTS - 3).map(|slot| UdpSocket::bind(("0.0.0.0", FIRST_PORT + slot))).collect::<std::io::Result<_>>()
    })??;
    dead_peer(&bed, &[], case)?;
    drop(taken);
    Ok(())
}
