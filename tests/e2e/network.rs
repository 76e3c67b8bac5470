//! Networks as they are: interfaces that go down, addresses that come and go, NAT, firewalls, IPv6 alone, link-local
//! addresses, names with a dot as VLANs have them. Programs go on, or the log says why they cannot.

use crate::bed::{Bed, Topology, library};
use crate::killed::running_pair;
use crate::trial;
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use std::time::{Duration, Instant};
use weir_stage::pair;
use weir_stage::{Child, Protocol, Side, locate};

const LIMIT: Duration = Duration::from_secs(60);
const TOOL: &str = "iptables-legacy";
const WARN: [&str; 2] = ["--log", "warn"];
/// About 1 s for each try, so that no QP ends while a network is away for a moment.
const PATIENT: u32 = 18;
/// Some 70 ms for each try: long enough for a busy machine.
const HASTY: u32 = 14;
/// The UDP ports of the slots, and RoCE's.
const SLOTS: &str = "20480:21503";
const ROCE: &str = "4791";
/// As behind NAT: what the host has not asked for does not come in.
const ANSWERS_ONLY: &str = "-A INPUT -p udp -m conntrack --ctstate NEW -j DROP";

pub fn trials() -> Vec<Trial> {
    let has_tool = locate(TOOL).is_ok();
    let veth = |name: &str, test: fn(&Bed) -> Result<()>| {
        // Each changes its network.
        trial(Topology::Veth, name, move |_| test(&Bed::new(Topology::Veth)?))
    };
    let filtered = |name: &str, test: fn(&Bed) -> Result<()>| {
        let trial = veth(name, test);
        if has_tool { trial } else { trial.with_kind("needs iptables").with_ignored_flag(true) }
    };
    vec![
        veth("the log says that a killed peer does not answer", killed_peer),
        veth("an interface that is down for a moment: the transfer goes on", down_and_up),
        veth("an address that is away for a moment: the transfer goes on", address_away),
        veth("an address that is removed: the log says so", address_removed),
        filtered("behind NAT the log names the other address", translated_address),
        filtered("behind a translation of ports the log says that ICRCs are wrong", translated_port),
        filtered("with all ports blocked the log names them", all_blocked),
        filtered("with port 4791 blocked, Weir's own ports suffice", roce_blocked),
        veth("a path that is narrower than the interface: the log says how narrow", narrow_path),
        veth("hosts with IPv6 alone", ipv6_alone),
        veth("link-local addresses", link_local),
        veth("a second address of an interface", second_address),
        veth("an interface named as a VLAN", named_as_vlan),
    ]
}

/// Where packets carry an ICRC, a process asks whether its peer is still there.
fn killed_peer(bed: &Bed) -> Result<()> {
    let (server, mut client) = running_pair(bed, &["--log", "warn", "--icrc", "always"], "ib_write_bw", HASTY)?;
    drop(server);
    until_printed(&mut client, &["weir_eth0, QP 0x", "RetryExceeded", "does not answer any more"])
}

fn down_and_up(bed: &Bed) -> Result<()> {
    let (_server, mut client) = running_pair(bed, &WARN, "ib_write_bw", PATIENT)?;
    bed.stage.ip(Side::B, "link set eth0 down")?;
    until_printed(&mut client, &["weir_eth0", "eth0 is down"])?;
    bed.stage.ip(Side::B, "link set eth0 up")?;
    moves(&mut client)
}

fn address_away(bed: &Bed) -> Result<()> {
    let (_server, mut client) = running_pair(bed, &WARN, "ib_write_bw", PATIENT)?;
    let address = bed.stage.address(Side::B);
    bed.stage.ip(Side::B, &format!("address del {address}/24 dev eth0"))?;
    until_printed(&mut client, &["weir_eth0", &address.to_string()])?;
    bed.stage.ip(Side::B, &format!("address add {address}/24 dev eth0"))?;
    moves(&mut client)
}

fn address_removed(bed: &Bed) -> Result<()> {
    let (_server, mut client) = running_pair(bed, &WARN, "ib_write_bw", HASTY)?;
    let address = bed.stage.address(Side::B).to_string();
    bed.stage.ip(Side::B, &format!("address del {address}/24 dev eth0"))?;
    until_printed(&mut client, &["weir_eth0", &format!("address {address} is gone"), "ip addr add"])?;
    until_printed(&mut client, &["weir_eth0, QP 0x", "is in the error state", "RetryExceeded"])
}

/// The client's packets have another source address when they arrive, and the server cannot begin.
fn translated_address(bed: &Bed) -> Result<()> {
    bed.stage.ip(Side::B, "address add 198.18.0.77/24 dev eth0")?;
    filter(bed, Side::B, ANSWERS_ONLY)?;
    filter(bed, Side::B, "-t nat -A POSTROUTING -p udp -j SNAT --to-source 198.18.0.77")?;
    fails(bed, |server, client| {
        until_printed(
            server,
            &["weir_eth0, QP 0x", "come from 198.18.0.77", "peer is at 198.18.0.2", "NAT", "tunnel"],
        )?;
        until_printed(client, &["weir_eth0, QP 0x", "RetryExceeded", "UDP port"])
    })
}

/// The client's packets have other source ports when they arrive, and the server cannot begin.
fn translated_port(bed: &Bed) -> Result<()> {
    filter(bed, Side::B, ANSWERS_ONLY)?;
    filter(bed, Side::B, "-t nat -A POSTROUTING -p udp -j SNAT --to-source 198.18.0.2:30000-30100")?;
    fails(bed, |server, client| {
        until_printed(server, &["weir_eth0, QP 0x", "from 198.18.0.2:300", "wrong ICRC", "NAT", "tunnel"])?;
        let stat = crate::stat::json(&[&server.pid().to_string()])?;
        ensure!(stat["devices"][0]["wrong_icrc"].as_u64() > Some(0), "{stat}");
        until_printed(client, &["weir_eth0, QP 0x", "RetryExceeded"])
    })
}

fn all_blocked(bed: &Bed) -> Result<()> {
    for side in [Side::A, Side::B] {
        for ports in [SLOTS, ROCE] {
            filter(bed, side, &format!("-A INPUT -p udp --dport {ports} -j DROP"))?;
        }
    }
    fails(bed, |_, client| until_printed(client, &["weir_eth0, QP 0x", "nothing ever came", "4791 and 20480 to 21503"]))
}

fn roce_blocked(bed: &Bed) -> Result<()> {
    for side in [Side::A, Side::B] {
        filter(bed, side, &format!("-A INPUT -p udp --dport {ROCE} -j DROP"))?;
    }
    let outcome = bed.pair(&WARN, "ibv_rc_pingpong -d {dev} -g 1 -p {port} -n 200", LIMIT)?;
    ensure!(outcome.client.stdout.contains("200 iters"), "{}", outcome.client.printed());
    ensure!(!outcome.client.stderr.contains("weir_eth0, QP"), "{}", outcome.client.printed());
    Ok(())
}

/// As after a router's "fragmentation needed": the kernel knows an MTU of the path.
fn narrow_path(bed: &Bed) -> Result<()> {
    let (_server, mut client) = running_pair(bed, &WARN, "ib_write_bw", HASTY)?;
    let address = bed.stage.address(Side::B);
    bed.stage.ip(Side::B, &format!("route change 198.18.0.0/24 dev eth0 src {address} mtu 1500"))?;
    let line = ["weir_eth0", "the path there carries 1500 (MTU), though eth0 carries", "path MTU of 1024"];
    until_printed(&mut client, &line)
}

fn ipv6_alone(bed: &Bed) -> Result<()> {
    for side in [Side::A, Side::B] {
        bed.stage.ip(side, "-4 address flush dev eth0")?;
    }
    let gids = [Side::A, Side::B].map(|side| bed.gid_index(side, bed.stage.address6(side).into()));
    let [server, client] = gids;
    verified(bed, "weir_eth0", [server?, client?])
}

fn link_local(bed: &Bed) -> Result<()> {
    let gid = |side: Side| -> Result<u64> {
        let devices = bed.devices(side)?;
        let gids = devices[0]["gids"].as_array().into_iter().flatten();
        let is_local = |gid: &&Value| gid["address"].as_str().is_some_and(|address| address.starts_with("fe80:"));
        gids.clone().find(is_local).and_then(|gid| gid["index"].as_u64()).with_context(|| devices.to_string())
    };
    verified(bed, "weir_eth0", [gid(Side::A)?, gid(Side::B)?])
}

fn second_address(bed: &Bed) -> Result<()> {
    let mut gids = [0; 2];
    for (side, host) in [(Side::A, 1), (Side::B, 2)] {
        let address = format!("198.18.9.{host}");
        bed.stage.ip(side, &format!("address add {address}/24 dev eth0"))?;
        gids[side as usize] = bed.gid_index(side, address.parse()?)?;
    }
    verified(bed, "weir_eth0", gids)
}

/// The kernel of this machine may have no VLANs, but their names are as any other's.
fn named_as_vlan(bed: &Bed) -> Result<()> {
    for (side, host) in [(Side::A, 1), (Side::B, 2)] {
        bed.stage.ip(side, "link set eth0 down")?;
        bed.stage.ip(side, "link set eth0 name eth0.5")?;
        bed.stage.ip(side, "link set eth0.5 up")?;
        // An interface loses its IPv6 addresses when it goes down.
        bed.stage.ip(side, &format!("address replace fd77::{host}/64 dev eth0.5 nodad"))?;
    }
    // GID 0 is the link-local address, GID 1 that of IPv4.
    verified(bed, "weir_eth0.5", [1, 1])
}

/// Two processes that compare every byte, by the GIDs of both sides. Their own messages go by IPv6.
fn verified(bed: &Bed, device: &str, gids: [u64; 2]) -> Result<()> {
    let port = bed.stage.free_port(Side::A)?;
    let program = library().join("weir-verify");
    let command = |side: Side| {
        let mut command = bed.weir(side, &WARN, [&program]);
        let line = format!("-d {device} -g {} -p {port} -k sizes,random -n 50", gids[side as usize]);
        command.args(line.split_whitespace());
        command
    };
    let mut client = command(Side::B);
    client.arg(bed.stage.address6(Side::A).to_string());
    let outcome = pair::run(&mut command(Side::A), &mut client, port, LIMIT)?.success()?;
    ensure!(outcome.client.stdout.contains("bytes verified, 0 wrong"), "{}", outcome.client.printed());
    Ok(())
}

/// A ping-pong that cannot work. `check` looks at the server and the client.
fn fails(bed: &Bed, check: impl Fn(&mut Child, &mut Child) -> Result<()>) -> Result<()> {
    let port = bed.stage.free_port(Side::A)?;
    let command = |side: Side| {
        let line = format!("ibv_rc_pingpong -d {} -g 1 -p {port}", bed.stage.device());
        bed.weir(side, &WARN, line.split_whitespace())
    };
    let mut server = Child::spawn(&mut command(Side::A), "server")?;
    server.wait_listening(Protocol::Tcp, port, Duration::from_secs(10))?;
    let mut client = command(Side::B);
    client.arg(bed.stage.address(Side::A).to_string());
    let mut client = Child::spawn(&mut client, "client")?;
    check(&mut server, &mut client)?;
    let ended = client.wait(LIMIT)?;
    ensure!(!ended.status.success(), "{}", ended.printed());
    Ok(())
}

fn filter(bed: &Bed, side: Side, rule: &str) -> Result<()> {
    let mut command = bed.stage.command(side, locate(TOOL)?);
    Child::spawn(command.args(rule.split(' ')), TOOL)?.wait(Duration::from_secs(10))?.success()?;
    Ok(())
}

/// Waits until one line of a program's output has all these parts.
fn until_printed(child: &mut Child, parts: &[&str]) -> Result<()> {
    let until = Instant::now() + LIMIT;
    loop {
        let printed = child.printed()?;
        if printed.lines().any(|line| parts.iter().all(|part| line.contains(part))) {
            return Ok(());
        }
        ensure!(Instant::now() < until, "no line has {parts:?}: {printed}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until a process has received 100 packets from now on.
fn moves(child: &mut Child) -> Result<()> {
    let received = |child: &Child| -> Result<u64> {
        let process = crate::stat::json(&[&child.pid().to_string()])?;
        process["devices"][0]["packets_received"].as_u64().with_context(|| process.to_string())
    };
    let (before, until) = (received(child)?, Instant::now() + LIMIT);
    while received(child)? < before + 100 {
        ensure!(child.poll()?.is_none(), "the program has ended: {}", child.printed()?);
        ensure!(Instant::now() < until, "nothing moves: {}", child.printed()?);
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
