//! Programs on a device that joins several interfaces: `weir run --links`.

use crate::bed::{Bed, FAULTS, Topology, WEIR};
use crate::matrix::{self, WITHIN};
use crate::{analyze, pingpong, stat, trial, ucx, verify};
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use std::time::Duration;
use weir_capture::OwnedFrame;
use weir_stage::{Child, Protocol, Side, pair, perftest};

pub fn trials(whole: bool) -> Vec<Trial> {
    let mut trials = matrix::over_links(whole);
    // In every run, or only in the whole matrix.
    for (every, name, options, verified) in [
        (true, "", &[][..], "-s 31"),
        (false, "with long messages", &[], "-s 32 -m 8388608 -n 100"),
        (true, "with faults", &["--faults", FAULTS], "-l -s 33"),
        (false, "over XRC", &[], "-c XRC -s 34"),
        (false, "with ODP memory", &[], "-s 35 -o 1"),
        (true, "with the parameters of MultiEdge", &["--profile", "multiedge"], "-s 37"),
    ] {
        if !every && !whole {
            continue;
        }
        let name = format!("every byte and status {name}");
        trials.push(trial(Topology::Links, name.trim_end(), move |bed| {
            verify::verify(bed, &[options, &["--local", "off"]].concat(), verified, false)
        }));
    }
    trials
        .push(trial(Topology::Links, "every byte and status over IPv6", |bed| verify::verify(bed, &[], "-s 36", true)));
    trials.push(pingpong::pingpong(Topology::Links, &[], "-c", false));
    trials.push(pingpong::pingpong(Topology::Links, &[], "-c -e -r 1", true));
    for program in ["ibv_uc_pingpong", "ibv_ud_pingpong -s 2048"] {
        trials.push(trial(Topology::Links, program, move |bed| pings(bed, program)));
    }
    for (transport, test, size, count) in [("rc", "tag_bw", 262_144, 200), ("ud", "ucp_am_bw", 65_536, 100)] {
        trials.push(trial(Topology::Links, &format!("UCX over {transport}: {test}"), move |bed| {
            ucx::runs(bed, &[], &format!("UCX_TLS={transport},self"), test, size, count)
        }));
    }
    trials.push(trial(Topology::Links, "rping by an address of the second link", connects));
    trials.push(trial(Topology::Links, "all links carry packets", all_carry));
    trials.push(trial(Topology::Links, "links go down and come back in mid-transfer", links_fail));
    trials.push(trial(Topology::Links, "a peer with one link", one_link));
    trials.push(trial(Topology::Links, "two processes of one host, without shared memory", one_host));
    trials.push(trial(Topology::Links, "weir stat shows the share of each link", shares));
    trials.push(trial(Topology::Links, "a capture has all interfaces, and weir analyze sees one connection", captured));
    trials.push(trial(Topology::Links, "a list of interfaces is checked", checked));
    trials
}

fn pings(bed: &Bed, program: &str) -> Result<()> {
    let port = bed.stage.free_port(Side::A)?;
    let gid = bed.gid_index(Side::A, bed.stage.address(Side::A))?;
    let line = format!("{program} -d {{dev}} -p {port} -g {gid} -n 2000");
    let line = line.replace("{dev}", &bed.stage.device());
    let mut client = bed.weir(Side::B, &[], line.split_whitespace());
    client.arg(bed.stage.address(Side::A).to_string());
    let mut server = bed.weir(Side::A, &[], line.split_whitespace());
    pair::run(&mut server, &mut client, port, Duration::from_secs(30))?.success()?;
    Ok(())
}

/// Three links of 1 Gbit/s. Links that are memory have no rate: how they share is a matter of chance.
fn of_a_rate() -> Result<Bed> {
    let bed = Bed::new(Topology::Links)?;
    (0..3).try_for_each(|link| bed.stage.shape(link, 1))?;
    Ok(bed)
}

fn all_carry(_: &Bed) -> Result<()> {
    let bed = &of_a_rate()?;
    let before = bed.stage.sent_by_links(Side::B)?;
    bed.pair(&[], "ib_write_bw -F -d {dev} -p {port} -s 65536 -n 2000", WITHIN)?;
    let carried: Vec<u64> =
        bed.stage.sent_by_links(Side::B)?.iter().zip(before).map(|(after, before)| after - before).collect();
    let all: u64 = carried.iter().sum();
    ensure!(carried.len() == 3 && all > 2000 * 65536, "{carried:?}");
    ensure!(carried.iter().all(|bytes| *bytes > all / 5), "a link carries next to nothing: {carried:?}");
    Ok(())
}

/// Its own links, because it breaks them.
fn links_fail(_: &Bed) -> Result<()> {
    let bed = Bed::new(Topology::Links)?;
    let port = bed.stage.free_port(Side::A)?;
    let line = format!("ib_write_bw -F -d {} -p {port} -s 65536 -D 5", bed.stage.device());
    let warns = ["--log", "warn"];
    let mut server = Child::spawn(&mut bed.weir(Side::A, &warns, line.split_whitespace()), line.as_str())?;
    server.wait_listening(Protocol::Tcp, port, Duration::from_secs(15))?;
    let mut client = bed.weir(Side::B, &warns, line.split_whitespace());
    let client = Child::spawn(client.arg(bed.stage.address(Side::A).to_string()), line.as_str())?;
    // The second, with the carrier of both sides; then the first too, by which the programs have found each other; then
    // the third alone.
    let steps: [&[(usize, &str)]; 5] =
        [&[(1, "down")], &[(0, "down")], &[(1, "up"), (0, "up")], &[(2, "down")], &[(2, "up")]];
    for step in steps {
        std::thread::sleep(Duration::from_millis(700));
        for (link, state) in step {
            bed.stage.ip(Side::A, &format!("link set eth{link} {state}"))?;
            if *state == "up" {
                // A link that goes down loses its IPv6 addresses, but keeps those of IPv4.
                bed.stage.ip(Side::A, &format!("address show dev eth{link}"))?;
            }
        }
    }
    let outcome = pair::finish(server, client, WITHIN)?.success()?;
    let rate = perftest::row_of(&outcome.client.stdout)?.gigabytes()?;
    ensure!(rate > 0.0, "{}", outcome.client.printed());
    let log = format!("{}{}", outcome.client.stderr, outcome.server.stderr);
    ensure!(!log.contains("RetryExceeded"), "{log}");
    for link in 0..3 {
        let line =
            format!("weir_links0: interface eth{link} is down and passes no packets: `ip link set eth{link} up`");
        let lines = outcome.server.stderr.lines().filter(|l| l.contains(&line) && l.contains("The other interfaces"));
        ensure!(lines.count() == 1, "eth{link}: {log}");
    }
    Ok(())
}

fn connects(bed: &Bed) -> Result<()> {
    let port = bed.stage.free_port(Side::A)?;
    let line = |role: &str| format!("rping -{role} -a 198.18.1.1 -p {port} -v -V -C 30");
    let mut server = Child::spawn(&mut bed.weir(Side::A, &[], line("s").split_whitespace()), "rping -s")?;
    crate::rdmacm::wait_for_service(&mut server, crate::rdmacm::TCP << 16 | u32::from(port))?;
    let client = Child::spawn(&mut bed.weir(Side::B, &["--log", "info"], line("c").split_whitespace()), "rping -c")?;
    let client = client.wait(Duration::from_secs(30))?.success()?;
    ensure!(client.stdout.contains("ping data: rdma-ping-29: "), "{}", client.printed());
    ucx::used_weir(&client, &bed.stage.device())?;
    server.wait(Duration::from_secs(30))?;
    Ok(())
}

/// One side uses three links, the other the first alone.
fn one_link(bed: &Bed) -> Result<()> {
    for [server, client] in [["weir_links0", "weir_eth0"], ["weir_eth0", "weir_links0"]] {
        let port = bed.stage.free_port(Side::A)?;
        let command = |side: Side, device: &str| {
            let line = format!("ib_send_bw -F -d {device} -p {port} -s 65536 -n 2000 -x 1");
            let mut command = bed.weir(side, &[], line.split_whitespace());
            if device == "weir_eth0" {
                command.env_remove("WEIR_LINKS");
            }
            command
        };
        let mut client = command(Side::B, client);
        client.arg(bed.stage.address(Side::A).to_string());
        pair::run(&mut command(Side::A, server), &mut client, port, WITHIN)?.success()?;
    }
    Ok(())
}

fn one_host(bed: &Bed) -> Result<()> {
    let bed = Bed { stage: bed.stage.one_side() };
    let line = "ib_write_bw -F -d {dev} -p {port} -s 65536 -n 2000";
    bed.pair(&["--local", "off", "--links", "auto"], line, WITHIN)?;
    Ok(())
}

fn shares(_: &Bed) -> Result<()> {
    let bed = &of_a_rate()?;
    let (server, port) = stat::server(bed)?;
    let (device, address) = (bed.stage.device(), bed.stage.address(Side::A));
    let line = format!("ib_write_bw -F -d {device} -p {port} -u 18 -D 3 {address}");
    let client = Child::spawn(&mut bed.weir(Side::B, &[], line.split(' ')), "client")?;
    let pid = client.pid().to_string();
    let links = stat::until("traffic over all links", || {
        let process = stat::json(&[&pid])?;
        let links = process["devices"][0]["links"].as_array().cloned().unwrap_or_default();
        let carries = |link: &Value| link["bytes_sent"].as_u64() > Some(1 << 20);
        Ok((links.len() == 3 && links.iter().all(carries)).then_some(links))
    })?;
    for (n, link) in links.iter().enumerate() {
        ensure!(link["interface"] == format!("eth{n}") && link["state"] == "up", "{link}");
    }
    let share: f64 = links.iter().filter_map(|link| link["share"].as_f64()).sum();
    ensure!((share - 1.0).abs() < 1e-6, "{links:?}");
    pair::finish(server, client, WITHIN)?.success()?;
    Ok(())
}

fn captured(_: &Bed) -> Result<()> {
    let bed = &of_a_rate()?;
    for options in [&[][..], &["--capture-snap", "headers"]] {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("%p.pcapng");
        let options = [&["--capture", file.to_str().context("UTF-8")?], options].concat();
        bed.pair(&options, "ib_write_bw -F -d {dev} -p {port} -s 65536 -n 500", WITHIN)?;
        for file in std::fs::read_dir(folder.path())? {
            let file = file?.path();
            let frames: Vec<OwnedFrame> = weir_capture::open(&file)?.owned_frames().collect::<Result<_, _>>()?;
            for interface in 0..3 {
                let count = frames.iter().filter(|frame| frame.interface == interface).count();
                ensure!(count > frames.len() / 10, "{count} of {} datagrams at interface {interface}", frames.len());
            }
            let ended = analyze::analyze(&["--json", file.to_str().context("UTF-8")?])?.success()?;
            let report: Value = serde_json::from_str(&ended.stdout)?;
            let connections = report["connections"].as_array().map_or(0, Vec::len);
            let findings = report["findings"].as_array().context("findings")?;
            ensure!(connections == 1 && findings.is_empty(), "{options:?}: {connections} connections, {findings:?}");
        }
    }
    Ok(())
}

fn checked(bed: &Bed) -> Result<()> {
    let devices = bed.devices(Side::A)?;
    let names: Vec<&str> =
        devices.as_array().into_iter().flatten().filter_map(|device| device["name"].as_str()).collect();
    ensure!(names == ["weir_links0"], "{names:?}");
    for (list, says) in [
        ("eth0,eth9", "there is no interface `eth9` in this network namespace; there are: "),
        ("eth0,eth0", "`eth0` is named twice"),
        ("eth0=fast", "the weight `fast` is not a number"),
        ("lo,", "no interface is named"),
    ] {
        let mut command = bed.bare(Side::A, WEIR);
        let child = Child::spawn(command.args(["run", "--links", list, "--", "true"]), "weir run --links")?;
        let ended = child.wait(Duration::from_secs(10))?;
        ensure!(!ended.status.success() && ended.stderr.contains(says), "{}", ended.printed());
    }
    Ok(())
}
