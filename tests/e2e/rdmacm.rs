//! Programs that connect by librdmacm: the distribution's own library over Weir's `/dev/infiniband/rdma_cm`.

use crate::bed::{Bed, FAULTS, Topology};
use crate::fork::{compile, compile_with};
use crate::trial;
use crate::ucx::{exchanged, used_weir};
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use weir_stage::pair::{self, Outcome};
use weir_stage::{Child, Finished, Side, Stage};

/// Port spaces of service ids.
pub const TCP: u32 = 0x0106;
const UDP: u32 = 0x0111;
const UDADDY_PORT: u16 = 7174;
/// Of a pair of programs.
const TIMEOUT: Duration = Duration::from_secs(60);
/// So that the programs say what went over Weir.
const LOG: [&str; 2] = ["--log", "info"];
/// Time for a server to listen.
const LISTEN: Duration = Duration::from_secs(15);

/// A server and its client. `{address}` is the server's address, `{port}` a free port.
struct Program {
    space: u32,
    server: &'static str,
    client: &'static str,
    /// What the client prints if the data is right.
    says: &'static str,
}

const PROGRAMS: &[Program] = &[
    Program {
        space: TCP,
        server: "rping -s -a {address} -p {port} -v -V -C 20",
        client: "rping -c -a {address} -p {port} -v -V -C 20",
        says: "ping data: rdma-ping-19: ",
    },
    Program {
        space: TCP,
        server: "ucmatose -b {address} -p {port} -c 20 -C 10",
        client: "ucmatose -s {address} -p {port} -c 20 -C 10",
        says: "return status 0",
    },
    Program {
        space: UDP,
        // Its port is fixed.
        server: "udaddy -b {address} -c 4 -C 8",
        client: "udaddy -s {address} -c 4 -C 8",
        says: "return status 0",
    },
    Program {
        space: TCP,
        server: "rstream -b {address} -p {port} -S 4096 -I 10 -T v",
        client: "rstream -s {address} -p {port} -S 4096 -I 10 -T v",
        says: "custom ",
    },
    Program {
        space: TCP,
        server: "riostream -b {address} -p {port} -S 4096 -I 10 -T v",
        client: "riostream -s {address} -p {port} -S 4096 -I 10 -T v",
        says: "custom ",
    },
    Program {
        space: TCP,
        server: "ib_write_bw -R -F -p {port} -n 100",
        client: "ib_write_bw -R -F -p {port} -n 100 {address}",
        says: "BW average",
    },
    Program {
        space: TCP,
        server: "ib_send_bw -R -F -c UD -p {port} -n 100",
        client: "ib_send_bw -R -F -c UD -p {port} -n 100 {address}",
        says: "BW average",
    },
    Program {
        space: TCP,
        server: "ib_read_lat -R -F -p {port} -n 100",
        client: "ib_read_lat -R -F -p {port} -n 100 {address}",
        says: "t_typical",
    },
];

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![];
    for topology in Topology::ALL {
        for program in PROGRAMS {
            let name = format!("librdmacm: {}", program.client.replace(['{', '}'], ""));
            trials.push(apart(topology, &name, move |bed| runs(bed, program, &[])));
        }
        trials.push(apart(topology, "librdmacm: rping and ucmatose on a lossy link", |bed| {
            PROGRAMS[..2].iter().try_for_each(|program| runs(bed, program, &["--faults", FAULTS]))
        }));
        trials.push(apart(topology, "librdmacm: a thousand connections", many));
        trials.push(apart(topology, "librdmacm: a multicast group is joined, and gets its datagrams", multicast));
        trials.push(apart(topology, "librdmacm: cmtime sets up and tears down 2,000 connections", times));
        trials.push(apart(topology, "librdmacm: rcopy copies a file", copies));
        trials.push(apart(topology, "librdmacm: librspreload.so takes the sockets of a program for TCP", |bed| {
            preloaded(bed, "server")
        }));
        trials.push(apart(topology, "librdmacm: librspreload.so takes the sockets of a server that forks", |bed| {
            preloaded(bed, "forking")
        }));
        trials.push(apart(topology, "librdmacm: a port without a listener refuses", refused));
    }
    trials.push(apart(
        Topology::Loopback,
        "librdmacm: event channels: cancellation, signals, O_NONBLOCK, fork",
        channels,
    ));
    trials.push(trial(Topology::Veth, "librdmacm: a capture has the messages of a connection", captured));
    trials
}

/// A trial that has its namespaces for itself on one host too, where root can make them: some of the programs have a
/// fixed port.
fn apart(topology: Topology, name: &str, test: impl FnOnce(&Bed) -> Result<()> + Send + 'static) -> Trial {
    trial(topology, name, move |bed| match topology {
        Topology::Loopback => test(&Bed { stage: Stage::same_host()? }),
        Topology::Veth | Topology::Links | Topology::Bridged => test(bed),
    })
}

fn command(bed: &Bed, side: Side, options: &[&str], line: &str, port: u16) -> Command {
    let line = line.replace("{address}", &bed.stage.address(Side::A).to_string()).replace("{port}", &port.to_string());
    bed.weir(side, options, line.split_whitespace())
}

/// Starts a server, and waits until it listens.
fn serve(bed: &Bed, options: &[&str], program: (u32, &str), port: u16) -> Result<Child> {
    let (space, line) = program;
    let mut server = Child::spawn(&mut command(bed, Side::A, options, line, port), line)?;
    wait_for_service(&mut server, space << 16 | u32::from(port))?;
    Ok(server)
}

/// Waits until a process of the child's network namespace has claimed a service.
pub fn wait_for_service(child: &mut Child, service: u32) -> Result<()> {
    let name = format!("@weir/service/{service:x}");
    // The socket accepts connections from the time on at which the program listens: __SO_ACCEPTCON.
    let listens = |line: &str| line.ends_with(&name) && line.split(' ').nth(3) == Some("00010000");
    wait_for_socket(child, "unix", listens)
}

/// Waits until a process of the child's network namespace listens on a port of TCP.
fn wait_for_tcp(child: &mut Child, port: u16) -> Result<()> {
    let (port, listen) = (format!(":{port:04X}"), "0A");
    wait_for_socket(child, "tcp", |line| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|local| local.ends_with(&port)) && words.nth(1) == Some(listen)
    })
}

/// Waits for a line in the kernel's list of sockets of a protocol.
fn wait_for_socket(child: &mut Child, protocol: &str, listens: impl Fn(&str) -> bool) -> Result<()> {
    let end = Instant::now() + LISTEN;
    loop {
        let sockets = std::fs::read_to_string(format!("/proc/{}/net/{protocol}", child.pid())).unwrap_or_default();
        if sockets.lines().any(&listens) {
            return Ok(());
        }
        ensure!(child.poll()?.is_none() && Instant::now() < end, "it does not listen: {}", child.printed()?);
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn pair(bed: &Bed, options: &[&str], program: &Program) -> Result<Outcome> {
    let port = if program.server.contains("{port}") { bed.stage.free_port(Side::A)? } else { UDADDY_PORT };
    let server = serve(bed, options, (program.space, program.server), port)?;
    let client = Child::spawn(&mut command(bed, Side::B, options, program.client, port), program.client)?;
    let outcome = pair::finish(server, client, TIMEOUT)?;
    let late = program.server.starts_with("rping ") && outcome.client.status.success() && late(&outcome.server);
    if late { Ok(outcome) } else { outcome.success() }
}

/// Whether a server of rping failed at its end only: its thread for events may ask for another one after its main thread
/// has closed the channel, on any adapter.
pub fn late(server: &Finished) -> bool {
    server.stderr.contains("rdma_get_cm_event: Bad file descriptor")
}

fn runs(bed: &Bed, program: &Program, options: &[&str]) -> Result<()> {
    let outcome = pair(bed, &[&LOG, options].concat(), program)?;
    ensure!(outcome.client.stdout.contains(program.says), "{}", outcome.client.printed());
    for side in [&outcome.server, &outcome.client] {
        exchanged(side, &bed.stage.device())?;
    }
    Ok(())
}

fn many(bed: &Bed) -> Result<()> {
    let program = Program {
        space: TCP,
        server: "ucmatose -b {address} -p {port} -c 1000 -C 1",
        client: "ucmatose -s {address} -p {port} -c 1000 -C 1",
        says: "return status 0",
    };
    runs(bed, &program, &[])
}

/// The receiver polls until all ten messages have come.
fn multicast(bed: &Bed) -> Result<()> {
    const GROUP: &str = "239.77.3.3";
    let member = |side: Side, role: &[&str]| {
        let address = bed.stage.address(side).to_string();
        let words = [&["stdbuf", "-oL", "mckey", "-m", GROUP, "-b", &address], role].concat();
        Child::spawn(&mut bed.weir(side, &LOG, words), format!("mckey {role:?}"))
    };
    let mut receiver = member(Side::A, &[])?;
    let end = Instant::now() + LISTEN;
    while !receiver.printed()?.contains("receiving data transfers") {
        ensure!(Instant::now() < end && receiver.poll()?.is_none(), "{}", receiver.printed()?);
        std::thread::sleep(Duration::from_millis(20));
    }
    let sender = member(Side::B, &["-s"])?;
    let outcome = pair::finish(receiver, sender, TIMEOUT)?.success()?;
    ensure!(outcome.server.stdout.contains("return status 0"), "{}", outcome.server.printed());
    for side in [&outcome.server, &outcome.client] {
        exchanged(side, &bed.stage.device())?;
    }
    Ok(())
}

/// cmtime's server runs until it is killed.
fn times(bed: &Bed) -> Result<()> {
    let port = bed.stage.free_port(Side::A)?;
    let server = serve(bed, &[], (TCP, "cmtime -b {address} -p {port} -c 2000"), port)?;
    let mut client = command(bed, Side::B, &LOG, "cmtime -s {address} -p {port} -c 2000", port);
    let client = Child::spawn(&mut client, "cmtime")?.wait(TIMEOUT)?.success()?;
    exchanged(&client, &bed.stage.device())?;
    let steps = ["resolve addr", "resolve route", "create qp", "connect", "disconnect", "destroy"];
    let lacks = |step: &&str| !client.stdout.contains(*step);
    ensure!(!steps.iter().any(lacks), "{}", client.printed());
    drop(server);
    Ok(())
}

/// rcopy has a port of its own, and its server runs until it is killed.
fn copies(bed: &Bed) -> Result<()> {
    const PORT: u16 = 7427;
    let folder = tempfile::tempdir()?;
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let bytes: Vec<u8> = (0..3_000_000u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&from, &bytes)?;
    let server = serve(bed, &[], (TCP, "rcopy"), PORT)?;
    let target = format!("{}:{}", bed.stage.address(Side::A), to.display());
    let words = ["rcopy", from.to_str().context("a path")?, &target];
    let client = Child::spawn(&mut bed.weir(Side::B, &LOG, words), "rcopy")?.wait(TIMEOUT)?.success()?;
    ensure!(used_weir(&client, &bed.stage.device())? > bytes.len() as u64, "{}", client.printed());
    ensure!(std::fs::read(Path::new(&to))? == bytes, "the copy differs");
    drop(server);
    Ok(())
}

/// A server that echoes, and a client that compares. Neither knows of RDMA. For a server that forks, the library takes a
/// socket of TCP at first: the child that uses the connection makes it one of RDMA.
fn preloaded(bed: &Bed, kind: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = compile("e2e/plain_tcp.c", folder.path())?;
    let preload = Path::new("/usr/lib").join(format!("{}-linux-gnu/rsocket/librspreload.so", std::env::consts::ARCH));
    ensure!(preload.exists(), "no {} (`make test` installs librdmacm1)", preload.display());
    let port = bed.stage.free_port(Side::A)?;
    let forks = kind == "forking";
    let start = |side: Side, role: &str| {
        let line = format!("{} {role} {{address}} {{port}}", program.display());
        let mut command = command(bed, side, &LOG, &line, port);
        if forks {
            command.env("RDMAV_FORK_SAFE", "1");
        }
        Child::spawn(command.env("LD_PRELOAD", &preload), line)
    };
    let mut server = start(Side::A, kind)?;
    if forks {
        wait_for_tcp(&mut server, port)?;
    } else {
        wait_for_service(&mut server, TCP << 16 | u32::from(port))?;
    }
    let client = start(Side::B, "client")?;
    let outcome = pair::finish(server, client, TIMEOUT)?.success()?;
    for side in [&outcome.server, &outcome.client] {
        ensure!(used_weir(side, &bed.stage.device())? > 20_000_000 && side.stdout == "ok\n", "{}", side.printed());
    }
    Ok(())
}

/// The program connects to itself.
fn channels(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = compile_with("e2e/event_channel.c", folder.path(), &["-lrdmacm"])?;
    let line = format!("{} {{address}}", program.display());
    let ended = Child::spawn(&mut command(bed, Side::A, &[], &line, 0), "event_channel.c")?.wait(TIMEOUT)?.success()?;
    ensure!(ended.stdout == "ok\n", "{}", ended.printed());
    Ok(())
}

/// The other server has the device open, so that its process refuses.
fn refused(bed: &Bed) -> Result<()> {
    let port = bed.stage.free_port(Side::A)?;
    let server = serve(bed, &[], (TCP, PROGRAMS[0].server), port)?;
    let other = if port == u16::MAX { port - 1 } else { port + 1 };
    let client = command(bed, Side::B, &[], "ucmatose -s {address} -p {port}", other);
    let ended = Child::spawn(&mut { client }, "ucmatose")?.wait(Duration::from_secs(20))?;
    // RDMA_CM_EVENT_REJECTED, invalid service id.
    ensure!(ended.stdout.contains("event: RDMA_CM_EVENT_REJECTED, error: 8"), "{}", ended.printed());
    drop(server);
    Ok(())
}

/// REQ, REP, RTU, DREQ and DREP are in the captures of both sides, with right ICRCs. ucmatose waits for the end of its
/// connections; rping may end before the DREP comes.
fn captured(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("weir-%p.pcapng");
    pair(bed, &["--capture", file.to_str().context("a path")?], &PROGRAMS[1])?;
    for entry in std::fs::read_dir(folder.path())? {
        let path = entry?.path();
        let comparison = weir_tshark::compare(&path)?;
        ensure!(comparison.failures.is_empty() && comparison.skipped == 0, "{}", comparison.failures.join("\n"));
        let fields = ["-T", "fields", "-e", "infiniband.mad.attributeid"];
        let shown = Command::new("tshark").arg("-r").arg(&path).args(fields).output().context("tshark")?;
        let shown = String::from_utf8(shown.stdout)?;
        for attribute in ["0x0010", "0x0013", "0x0014", "0x0015", "0x0016"] {
            ensure!(shown.lines().any(|line| line == attribute), "no {attribute} in {}: {shown}", path.display());
        }
    }
    Ok(())
}
