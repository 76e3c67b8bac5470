//! Multicast: `tests/c/multicast.c` in one process, between processes of one host, and between two hosts.

use crate::bed::{Bed, Topology};
use crate::{fork, roce_peer, trial};
use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};
use weir_stage::{Child, Side};
use weir_wire::icrc::{self, Verdict};
use weir_wire::ip::Envelope;
use weir_wire::{Bth, Deth, Headers, ImmDt, Opcode, Operation, Packet, Psn, ROCE_PORT, Service};

/// One group of each address family.
const GROUPS: [&str; 2] = ["239.77.1.9", "ff15::4d:109"];
/// Messages between processes: no more than a member has receives, because UD has no flow control.
const COUNT: &str = "500";
/// The Q_Key of `multicast.c`, and the destination QPN of multicast (IBTA: 0xffffff).
const QKEY: u32 = 0x2222_2222;
const MULTICAST_QPN: u32 = 0xff_ffff;

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![];
    for topology in Topology::ALL {
        for group in GROUPS {
            // Linux carries no IPv6 multicast on the loopback interface.
            if topology == Topology::Loopback && group.contains(':') {
                continue;
            }
            let name = format!("multicast to {group}: delivery rules and errors");
            trials.push(trial(topology, &name, move |bed| rules(bed, group)));
            for receivers in [&[Side::A, Side::A][..], &[Side::A, Side::B, Side::B]] {
                let name = format!("multicast to {group} reaches {} processes, two QPs each", receivers.len());
                trials.push(trial(topology, &name, move |bed| all_members(bed, group, receivers, &[])));
            }
        }
    }
    for group in GROUPS {
        let name = format!("multicast to {group} reaches processes of the host itself, in spite of --allow");
        trials.push(trial(Topology::Veth, &name, move |bed| {
            all_members(bed, group, &[Side::B, Side::B], &["--allow", "192.0.2.1"])
        }));
    }
    trials.push(trial(Topology::Veth, "multicast from and to an adapter without Weir", without_weir));
    trials
}

fn rules(bed: &Bed, group: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = fork::compile("c/multicast.c", folder.path())?;
    let ended = start(bed, (Side::A, &[]), &program, &["rules"], group)?.wait(Duration::from_secs(70))?.success()?;
    ensure!(ended.stdout.ends_with("0 failed\n"), "{}", ended.printed());
    Ok(())
}

/// The sender runs on B, so that a receiver on B shares its host.
fn all_members(bed: &Bed, group: &str, receivers: &[Side], options: &[&str]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = fork::compile("c/multicast.c", folder.path())?;
    let mut listening = vec![];
    for side in receivers {
        listening.push(ready(start(bed, (*side, options), &program, &["receive", COUNT], group)?)?);
    }
    start(bed, (Side::B, options), &program, &["send", COUNT], group)?.wait(Duration::from_secs(30))?.success()?;
    for child in listening {
        child.wait(Duration::from_secs(30))?.success()?;
    }
    Ok(())
}

/// Datagrams of a foreign adapter reach both QPs; datagrams of a QP have the format that a foreign adapter expects.
fn without_weir(bed: &Bed) -> Result<()> {
    const GROUP: Ipv4Addr = Ipv4Addr::new(239, 77, 1, 12);
    let folder = tempfile::tempdir()?;
    let program = fork::compile("c/multicast.c", folder.path())?;
    let IpAddr::V4(address) = bed.stage.address(Side::B) else { bail!("the address of the stage is not IPv4") };
    let receiver = ready(start(bed, (Side::A, &[]), &program, &["receive", COUNT], &GROUP.to_string())?)?;
    let socket = roce_peer::bind(&bed.stage, Side::B, address.into())?;
    leave_by(&socket, address)?;
    let envelope = |src: IpAddr, src_port: u16| {
        let (dst, dst_port) = (GROUP.into(), ROCE_PORT);
        Envelope { src, dst, src_port, dst_port, ip_id: 0, dont_fragment: true }
    };
    for number in 0..COUNT.parse()? {
        let bth = Bth::new(Opcode::new(Service::Ud, Operation::SendOnlyImm), MULTICAST_QPN, Psn::new(number));
        let mut headers = Headers::new(bth);
        headers.put(Deth { qkey: QKEY.into(), src_qp: 0x71.into() });
        headers.put(ImmDt { imm: number.into() });
        let mut bytes = vec![0; headers.len()];
        headers.emit(&mut bytes);
        bytes.extend(message(number));
        let icrc = icrc::compute(&envelope(address.into(), ROCE_PORT), &bytes);
        bytes.extend(icrc.to_le_bytes());
        socket.send_to(&bytes, (GROUP, ROCE_PORT))?;
        if number % 16 == 15 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    receiver.wait(Duration::from_secs(30))?.success()?;

    let listener = bed.stage.enter(Side::B, || UdpSocket::bind((GROUP, ROCE_PORT)))??;
    listener.join_multicast_v4(&GROUP, &address)?;
    listener.set_read_timeout(Some(Duration::from_secs(10)))?;
    let sender = start(bed, (Side::A, &[]), &program, &["send", "100"], &GROUP.to_string())?;
    for number in 0..100 {
        let mut bytes = [0; 2048];
        let (length, from) = listener.recv_from(&mut bytes)?;
        ensure!(from.ip() == bed.stage.address(Side::A), "a packet from {from}");
        let verdict = icrc::verify(&envelope(from.ip(), from.port()), &bytes[..length]);
        ensure!(verdict != Verdict::Bad, "a wrong ICRC");
        let packet = Packet::parse(&bytes[..length])?;
        let deth = packet.headers.get::<Deth>().context("no DETH")?;
        let imm = packet.headers.get::<ImmDt>().context("no immediate")?.imm.get();
        let got = (packet.headers.bth.dest_qp, deth.qkey.get(), imm);
        ensure!(got == (MULTICAST_QPN, QKEY, number), "QPN, Q_Key, immediate {got:x?} in message {number}");
        ensure!(packet.payload == message(number), "message {number} has a wrong payload");
    }
    sender.wait(Duration::from_secs(30))?.success()?;
    Ok(())
}

/// The payload that `multicast.c` sends and expects.
fn message(number: u32) -> Vec<u8> {
    const LENGTH: u32 = 1000;
    let words = (0..LENGTH / 4).map(|word| number.wrapping_add(1).wrapping_mul(2_654_435_761).wrapping_add(4 * word));
    let mut bytes: Vec<u8> = words.flat_map(u32::to_ne_bytes).collect();
    bytes[..4].copy_from_slice(&number.to_ne_bytes());
    bytes
}

/// Sends the multicast of a socket through the interface with this address.
fn leave_by(socket: &UdpSocket, address: Ipv4Addr) -> Result<()> {
    let interface = libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) };
    // SAFETY: the option takes an in_addr, and the call passes its address and size.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_MULTICAST_IF,
            (&raw const interface).cast(),
            size_of_val(&interface) as libc::socklen_t,
        )
    };
    ensure!(result == 0, "IP_MULTICAST_IF: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Waits until a receiver has printed "ready".
fn ready(mut child: Child) -> Result<Child> {
    let since = Instant::now();
    while !child.printed()?.contains("ready") {
        ensure!(child.poll()?.is_none() && since.elapsed() < Duration::from_secs(20), "{}", child.printed()?);
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(child)
}

/// `multicast WHAT DEVICE GID GROUP [COUNT]`.
/// The program on a side, with options of `weir run`.
fn start(bed: &Bed, run: (Side, &[&str]), program: &Path, words: &[&str], group: &str) -> Result<Child> {
    let (side, options) = run;
    let v6 = group.parse::<IpAddr>()?.is_ipv6();
    let address = if v6 { bed.stage.address6(side).into() } else { bed.stage.address(side) };
    let gid = bed.gid_index(side, address)?.to_string();
    let mut command = bed.weir(side, options, [program]);
    command.args([words[0], &bed.stage.device(), &gid, group]).args(&words[1..]);
    Child::spawn(&mut command, format!("multicast {}", words[0]))
}
