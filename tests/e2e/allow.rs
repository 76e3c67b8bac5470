//! `weir run --allow`: packets of addresses that it leaves out do not arrive, and nothing goes to them.

use crate::bed::{Bed, Topology, WEIR, library};
use crate::verify::verify;
use crate::{killed, trial};
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use weir_stage::flood::{Forger, packet, slot_ports};
use weir_stage::{Child, Protocol, Side, THIRD, pair};

pub fn trials() -> Vec<Trial> {
    vec![
        trial(Topology::Veth, "--allow with the prefixes of the peer changes nothing", |bed| {
            verify(bed, &["--allow", "198.18.0.0/24,2001:db8::/32"], "-s 32", false)?;
            verify(bed, &["--allow", "192.0.2.1,fd77::/64"], "-s 33", true)
        }),
        trial(Topology::Loopback, "--allow never leaves out this host", |bed| {
            verify(bed, &["--allow", "192.0.2.1", "--local", "off"], "-s 34", false)
        }),
        trial(Topology::Bridged, "the kernel drops packets of a host that --allow leaves out", dropped),
        trial(
            Topology::Veth,
            "a QP towards an address that --allow leaves out gets EACCES, and the log says why",
            refused,
        ),
        trial(
            Topology::Veth,
            "requests of rdma_cm that another process hands over are dropped if --allow leaves their host out",
            handed_over,
        ),
        trial(Topology::Veth, "rdma_resolve_addr of an address that --allow leaves out is EACCES", unresolved),
        trial(Topology::Loopback, "a wrong prefix is refused by `weir run`, and by the library", wrong),
    ]
}

/// A third host sends to the server of a running transfer: all its packets are in the count of drops of the server's
/// socket. The client's are not: the transfer goes on.
fn dropped(bed: &Bed) -> Result<()> {
    const PACKETS: u64 = 100;
    let options: [&[&str]; 2] = [&["--allow", "198.18.0.2"], &["--allow", "198.18.0.1"]];
    let (_server, mut client) = killed::running_pair_with(bed, options, "ib_write_bw", 18)?;
    let forger = Forger::new(&bed.stage)?;
    let IpAddr::V4(to) = bed.stage.address(Side::A) else { anyhow::bail!("this stage has no IPv4 addresses") };
    let port = *slot_ports(&bed.stage, Side::A)?.first().context("the server has no port")?;
    let before = drops(bed, port)?;
    for _ in 0..PACKETS {
        forger.send(&packet((THIRD, 20480), (to, port), b"not for this process"));
    }
    let end = Instant::now() + Duration::from_secs(10);
    while drops(bed, port)? < before + PACKETS {
        ensure!(Instant::now() < end, "{} of {PACKETS} packets were dropped", drops(bed, port)? - before);
        std::thread::sleep(Duration::from_millis(10));
    }
    ensure!(client.poll()?.is_none(), "the client has ended: {}", client.printed()?);
    Ok(())
}

/// The datagrams that the kernel has dropped at a port of side A that takes them from any address.
fn drops(bed: &Bed, port: u16) -> Result<u64> {
    let table = bed.stage.enter(Side::A, || std::fs::read_to_string("/proc/thread-self/net/udp"))??;
    let wildcard = format!("00000000:{port:04X}");
    let line = table.lines().find(|line| line.split_whitespace().nth(1) == Some(&wildcard));
    let count = line.and_then(|line| line.split_whitespace().last()).context("no socket at the port")?;
    Ok(count.parse()?)
}

fn refused(bed: &Bed) -> Result<()> {
    let port = bed.stage.free_port(Side::A)?;
    let line = format!("ib_write_bw -F -d {} -p {port} -u 12 -n 100", bed.stage.device());
    let options = ["--allow", "192.0.2.0/24", "--log", "warn"];
    let mut server = bed.weir(Side::A, &options, line.split_whitespace());
    let mut server = Child::spawn(&mut server, "the server")?;
    server.wait_listening(Protocol::Tcp, port, Duration::from_secs(15))?;
    let mut client = bed.weir(Side::B, &[], line.split_whitespace());
    client.arg(bed.stage.address(Side::A).to_string());
    let client = Child::spawn(&mut client, "the client")?;
    let outcome = pair::finish(server, client, Duration::from_secs(60))?;
    let log = outcome.server.printed();
    ensure!(!outcome.server.status.success(), "{log}");
    let (device, address) = (bed.stage.device(), bed.stage.address(Side::B));
    let why = format!("{address} is not an allowed address: WEIR_ALLOW is 192.0.2.0/24");
    ensure!(log.contains(&format!("{device}, QP 0x")) && log.contains(&why), "{log}");
    Ok(())
}

/// The first server holds port 4791, and allows all hosts.
fn handed_over(bed: &Bed) -> Result<()> {
    let start = |options: &[&str]| -> Result<(Child, u16)> {
        let port = bed.stage.free_port(Side::A)?;
        let line = format!("rping -s -P -a {} -p {port}", bed.stage.address(Side::A));
        let mut server = Child::spawn(&mut bed.weir(Side::A, options, line.split(' ')), "server")?;
        let open = || crate::stat::json(&[&server.pid().to_string()]);
        crate::stat::until("the server's device", || Ok(open().ok()))?;
        ensure!(server.poll()?.is_none(), "{}", server.printed()?);
        Ok((server, port))
    };
    let client = |port: u16| {
        let line = format!("rping -c -C 1 -a {} -p {port}", bed.stage.address(Side::A));
        Child::spawn(&mut bed.weir(Side::B, &[], line.split(' ')), "client")
    };
    let (_holder, first) = start(&[])?;
    client(first)?.wait(Duration::from_secs(20))?.success()?;
    let (_server, second) = start(&["--allow", "192.0.2.0/24"])?;
    let mut refused = client(second)?;
    std::thread::sleep(Duration::from_secs(3));
    ensure!(refused.poll()?.is_none(), "the request was answered: {}", refused.printed()?);
    client(first)?.wait(Duration::from_secs(20))?.success()?;
    Ok(())
}

fn unresolved(bed: &Bed) -> Result<()> {
    let line = format!("rping -c -C 1 -a {} -p 7174", bed.stage.address(Side::A));
    let mut client = bed.weir(Side::B, &["--allow", "192.0.2.0/24", "--log", "warn"], line.split(' '));
    let ended = Child::spawn(&mut client, "client")?.wait(Duration::from_secs(10))?;
    let why = format!("rdma_resolve_addr of {}: it is not an allowed address", bed.stage.address(Side::A));
    ensure!(!ended.status.success() && ended.stderr.contains(&why), "{}", ended.printed());
    Ok(())
}

fn wrong(bed: &Bed) -> Result<()> {
    let limit = Duration::from_secs(20);
    let mut run = bed.bare(Side::A, WEIR);
    let ended = Child::spawn(run.args(["run", "--allow", "192.0.2.7/24", "--", "true"]), "weir run")?.wait(limit)?;
    let said = ended.stderr.contains("--allow: `192.0.2.7/24`") && ended.stderr.contains("write 192.0.2.0/24");
    ensure!(ended.status.code() == Some(125) && said, "{}", ended.printed());
    let mut program = bed.bare(Side::A, "ibv_devinfo");
    program.env("LD_LIBRARY_PATH", library()).envs([("WEIR_ALLOW", "eth0"), ("WEIR_LOG", "error")]);
    let ended = Child::spawn(program.args(["-d", &bed.stage.device()]), "ibv_devinfo")?.wait(limit)?;
    let said = ended.stderr.contains("WEIR_ALLOW=eth0: `eth0` is not a prefix");
    ensure!(!ended.status.success() && said, "{}", ended.printed());
    Ok(())
}
