//! Processes that pretend: forged hellos of a third host, a program at the port of a peer that is no Weir process or
//! that has died.

use crate::bed::{Bed, Place};
use crate::foreign::{MESSAGES, Server};
use crate::roce_peer::bind;
use crate::{fork, killed, trial};
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_cli::stage::{Child, Side};

/// UDP port of slot 0, and how many slots there are.
const FIRST_PORT: u16 = 20480;
const SLOTS: u16 = 1024;
/// How long forged packets are sent.
const FLOOD: Duration = Duration::from_secs(2);

pub fn trials() -> Vec<Trial> {
    vec![
        trial(Place::Veth, "forged hellos of a third host change nothing", forged_hellos),
        trial(Place::Veth, "a program at the slot's port of a foreign adapter's QP gets no packet", impostor),
        trial(Place::Loopback, "a program at a dead peer's port acknowledges nothing", |bed| lives(bed, &[], "theft")),
        trial(Place::Loopback, "a program that takes a dead peer's port later gets no packet with ICRC", |bed| {
            lives(bed, &["--icrc", "always"], "late-theft")
        }),
        trial(Place::Veth, "a process in a dead peer's slot is reached, and not taken for it", |bed| {
            successor(bed, "successor")
        }),
        trial(Place::Veth, "a process in a dead peer's slot is reached after the QP to that is destroyed", |bed| {
            successor(bed, "successor-after-destroy")
        }),
    ]
}

/// A hello that asks, answers a nonce that was never asked, and tells lies.
fn hello(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[..4].copy_from_slice(b"WEIR");
    bytes[4] = 2;
    for (at, value) in [(8, number), (24, number & 1), (32, number), (40, number)] {
        bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
    }
    bytes[48..52].copy_from_slice(&1u32.to_be_bytes());
    sealed(bytes)
}

/// With the checksum that ends a hello.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut hasher = SipHasher24::new();
    hasher.write(&bytes);
    bytes.extend(hasher.finish().to_be_bytes());
    bytes
}

/// The slots' ports that are bound on a side.
fn slot_ports(bed: &Bed, side: Side) -> Result<Vec<u16>> {
    // /proc/net is the process's, not the thread's that has entered the namespace.
    let table = bed.stage.enter(side, || std::fs::read_to_string("/proc/thread-self/net/udp"))??;
    let ports = table.lines().skip(1).filter_map(|line| {
        let (_, port) = line.split_whitespace().nth(1)?.split_once(':')?;
        u16::from_str_radix(port, 16).ok()
    });
    Ok(ports.filter(|port| (FIRST_PORT..FIRST_PORT + SLOTS).contains(port)).collect())
}

/// Sends UDP datagrams with any source: what a third host does whose network lets forged sources through.
struct Forger(OwnedFd);

impl Forger {
    fn new(bed: &Bed, side: Side) -> Result<Forger> {
        // SAFETY: makes a descriptor, which is owned from here on if it is one.
        let socket = bed.stage.enter(side, || unsafe {
            match libc::socket(libc::AF_INET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_RAW) {
                -1 => Err(std::io::Error::last_os_error()),
                socket => Ok(OwnedFd::from_raw_fd(socket)),
            }
        })?;
        Ok(Forger(socket.context("a raw socket")?))
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
        // SAFETY: bytes and address live during the call.
        let sent = unsafe {
            libc::sendto(self.0.as_raw_fd(), packet.as_ptr().cast(), packet.len(), 0, to.as_ptr().cast(), to.len())
        };
        ensure!(sent == packet.len() as isize, "sendto: {}", std::io::Error::last_os_error());
        Ok(())
    }
}

/// Both sides of a running transfer get hellos that seem to come from the other one.
fn forged_hellos(bed: &Bed) -> Result<()> {
    let (server, mut client) = killed::running_pair(bed, &[], "ib_write_bw", 14)?;
    let (forger, until) = (Forger::new(bed, Side::B)?, Instant::now() + FLOOD);
    let (here, there) = (slot_ports(bed, Side::B)?, slot_ports(bed, Side::A)?);
    ensure!(!here.is_empty() && !there.is_empty(), "no slots: {here:?}, {there:?}");
    let (address, other) = (bed.stage.address(Side::B), bed.stage.address(Side::A));
    let mut number = 0;
    while Instant::now() < until {
        for (from, to) in here.iter().flat_map(|from| there.iter().map(move |to| (*from, *to))) {
            number += 1;
            forger.send((address, from), (other, to), &hello(number))?;
        }
        // A few thousand a second: the transfer is to be disturbed by what they say, not by how many they are.
        std::thread::sleep(Duration::from_micros(200));
    }
    ensure!(client.poll()?.is_none(), "the client has ended: {}", client.printed()?);
    let before = sent_bytes(bed)?;
    std::thread::sleep(Duration::from_secs(1));
    let moved = sent_bytes(bed)? - before;
    ensure!(client.poll()?.is_none() && moved > 1 << 20, "{moved} bytes in a second: {}", client.printed()?);
    drop(server);
    Ok(())
}

/// What the client's interface has sent.
fn sent_bytes(bed: &Bed) -> Result<u64> {
    let table = bed.stage.enter(Side::B, || std::fs::read_to_string("/proc/thread-self/net/dev"))??;
    let name = format!("{}:", bed.stage.interface(Side::B));
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(&*name)).context("no interface")?;
    // Eight counters of what came in stand before it.
    line.split_whitespace().nth(8).and_then(|bytes| bytes.parse().ok()).context("no count of bytes")
}

/// A foreign adapter's host, on which a program waits at the port that a Weir process would have for this QPN.
fn impostor(bed: &Bed) -> Result<()> {
    const SLOT: u16 = 7;
    let server = Server::start(bed, false)?;
    let address = server.peer_address;
    let socket = bind(&bed.stage, Side::B, address)?;
    let trap = bed.stage.enter(Side::B, || UdpSocket::bind((address, FIRST_PORT + SLOT)))??;
    trap.set_read_timeout(Some(Duration::from_millis(20)))?;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let caught = scope.spawn(|| lie(&trap, &done));
        let talked = server.connect(bed, &socket, u32::from(SLOT) << 14 | 0x71).and_then(|mut talk| {
            talk.messages(0..MESSAGES)?;
            talk.end()
        });
        done.store(true, Ordering::Relaxed);
        let (hellos, packets) = caught.join().expect("the impostor does not panic");
        talked?;
        ensure!(hellos > 0, "the impostor was not asked: this test looks at the wrong port");
        ensure!(packets == 0, "the impostor got {packets} packets that were not for it");
        Ok(())
    })
}

/// Answers every hello by its nonce, as a Weir process would that knows nothing of the QP. How many hellos came, and
/// how many other packets.
fn lie(trap: &UdpSocket, done: &AtomicBool) -> (usize, usize) {
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
        // Of the same machine, without ICRC, all the window that there is.
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

fn lives(bed: &Bed, options: &[&str], case: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = fork::compile("e2e/lives.c", folder.path())?;
    let gid = bed.gid_index(Side::A, bed.stage.address(Side::A))?;
    let words = [program.into_os_string(), bed.stage.device(Side::A).into(), gid.to_string().into(), case.into()];
    let ended =
        Child::spawn(&mut bed.weir(Side::A, options, words), "lives.c")?.wait(Duration::from_secs(90))?.success()?;
    ensure!(ended.stdout == "ok\n", "{}", ended.printed());
    Ok(())
}

/// With all slots of the namespace taken but two, a process gets that of the one that died.
fn successor(_: &Bed, case: &str) -> Result<()> {
    let bed = Bed::new(Place::Veth)?;
    let taken: Vec<UdpSocket> = bed.stage.enter(Side::A, || {
        (1..SLOTS - 3).map(|slot| UdpSocket::bind(("0.0.0.0", FIRST_PORT + slot))).collect::<std::io::Result<_>>()
    })??;
    lives(&bed, &[], case)?;
    drop(taken);
    Ok(())
}
