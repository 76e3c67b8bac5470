//! Another user of the same host floods the sockets of a transfer: its UDP ports with garbage and hellos, and its Unix
//! sockets with connections and messages. Every byte is right.

use crate::bed::{Bed, Topology};
use crate::trial;
use crate::users::UNPRIVILEGED_USER;
use crate::verify::verify;
use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use libtest_mimic::Trial;
use socket2::{Domain, SockAddr, Socket, Type};
use std::collections::HashMap;
use std::io::Error;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weir_stage::Side;
use weir_stage::flood::{hello, slot_ports};
use weir_wire::ROCE_PORT;

/// Messages to a UDP port, and connections to a Unix socket, between two looks for new sockets.
const BATCH: usize = 200;
/// The longest garbage, bytes.
const LONGEST: usize = 3000;
/// Open connections to Unix sockets.
const CONNECTIONS: usize = 200;

pub fn trials() -> Vec<Trial> {
    // Shared memory first, UDP only second.
    let options: [(&str, &[&str]); 2] = [("by shared memory", &[]), ("by UDP", &["--local", "off"])];
    let trials = options.map(|(how, options)| {
        let name = format!("every byte is right {how} under a flood of another local user");
        let trial = trial(Topology::Loopback, &name, move |bed| flooded(bed, options));
        crate::needing_root(trial, nix::unistd::geteuid().is_root())
    });
    trials.into()
}

fn flooded(bed: &Bed, options: &[&str]) -> Result<()> {
    let ends = AtomicBool::new(false);
    let seed = fastrand::u64(..);
    let sent = std::thread::scope(|scope| {
        let thread = scope.spawn(|| flood(bed, seed, &ends));
        let verified = verify(bed, options, "-l -t 20 -s 51", false);
        ends.store(true, Ordering::Relaxed);
        let sent = thread.join().expect("the flood does not panic");
        verified.and(sent)
    });
    let Sent { datagrams, connections } = sent.with_context(|| format!("with seed {seed}"))?;
    eprintln!("{datagrams} datagrams, {connections} connections");
    ensure!(datagrams > 5000 && connections > 50, "only {datagrams} datagrams and {connections} connections");
    Ok(())
}

#[derive(Default)]
struct Sent {
    datagrams: u64,
    connections: u64,
}

/// Floods all sockets of Weir that there are, as an unprivileged user, until `ends`.
fn flood(bed: &Bed, seed: u64, ends: &AtomicBool) -> Result<Sent> {
    become_unprivileged()?;
    let mut random = Rng::with_seed(seed);
    let mut sent = Sent::default();
    // Open connections hold their places at the listener.
    let mut open = HashMap::new();
    let address = bed.stage.address(Side::A);
    while !ends.load(Ordering::Relaxed) {
        let mut ports = slot_ports(&bed.stage, Side::A)?;
        ports.push(ROCE_PORT);
        for port in ports {
            let socket = UdpSocket::bind((address, 0))?;
            for _ in 0..BATCH {
                let bytes = datagram(&mut random);
                // A closed port refuses.
                sent.datagrams += u64::from(socket.send_to(&bytes, (address, port)).is_ok());
            }
        }
        for name in names()? {
            for _ in 0..BATCH / 10 {
                if let Ok(socket) = connect(&name) {
                    let _ = socket.send(&datagram(&mut random));
                    sent.connections += 1;
                    open.insert(random.usize(..CONNECTIONS), socket);
                }
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(sent)
}

/// This thread alone changes its user: the C library's function would change all threads.
fn become_unprivileged() -> Result<()> {
    let user = UNPRIVILEGED_USER;
    // SAFETY: system calls with numbers.
    let changed = unsafe {
        libc::syscall(libc::SYS_setresgid, user, user, user) == 0
            && libc::syscall(libc::SYS_setresuid, user, user, user) == 0
    };
    ensure!(changed, "cannot change the user of a thread: {}", Error::last_os_error());
    Ok(())
}

fn datagram(random: &mut Rng) -> Vec<u8> {
    match random.usize(..4) {
        0 => hello(random.u64(..)),
        1 => [b"WEIR", &garbage(random)[..]].concat(),
        _ => garbage(random),
    }
}

fn garbage(random: &mut Rng) -> Vec<u8> {
    let length = random.usize(..LONGEST);
    (0..length).map(|_| random.u8(..)).collect()
}

/// The names of Weir's sockets in the abstract namespace.
fn names() -> Result<Vec<String>> {
    let table = std::fs::read_to_string("/proc/thread-self/net/unix")?;
    let mut names: Vec<String> = table.lines().filter_map(|line| Some(line.split_once('@')?.1.to_owned())).collect();
    names.retain(|name| name.starts_with("weir/"));
    names.sort();
    names.dedup();
    Ok(names)
}

fn connect(name: &str) -> Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(format!("\0{name}"))?)?;
    Ok(socket)
}
