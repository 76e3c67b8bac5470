//! UCX, unmodified, over RC and UD, and with memory that is registered on demand. UCX_TLS leaves it no other
//! transport, and the log says what went over Weir.

use crate::bed::{Bed, Topology};
use crate::stat::{json, until};
use crate::trial;
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use std::time::Duration;
use weir_stage::{Child, Finished, Protocol, Side};

/// Transport of UCX, test of ucx_perftest, message size, and how often.
const RUNS: [(&str, &str, u32, u32); 14] = [
    ("rc", "tag_lat", 8, 1000),
    ("rc", "tag_bw", 262_144, 200),
    ("rc", "ucp_put_bw", 65_536, 500),
    ("rc", "ucp_get", 65_536, 300),
    ("rc", "stream_bw", 8192, 1000),
    ("rc", "ucp_am_bw", 1_048_576, 50),
    ("rc", "ucp_add", 8, 1000),
    ("rc", "ucp_fadd", 4, 1000),
    ("rc", "ucp_cswap", 8, 1000),
    ("ud", "tag_lat", 8, 1000),
    ("ud", "tag_bw", 262_144, 100),
    ("ud", "ucp_put_bw", 4096, 500),
    ("ud", "stream_bw", 8192, 500),
    ("ud", "ucp_am_bw", 65_536, 100),
];

pub fn trials(whole: bool) -> Vec<Trial> {
    let mut trials = vec![];
    for (number, (transport, test, size, count)) in RUNS.into_iter().enumerate() {
        for (at, topology) in Topology::ALL.into_iter().enumerate() {
            // Every test in one of the topologies.
            if whole || number % 2 == at {
                trials.push(trial(topology, &format!("UCX over {transport}: {test}, {size} bytes"), move |bed| {
                    runs(bed, &[], &format!("UCX_TLS={transport},self"), test, size, count)
                }));
            }
        }
    }
    trials.push(trial(Topology::Veth, "UCX over rc with 1 % loss", |bed| {
        runs(bed, &["--faults", "loss=0.01"], "UCX_TLS=rc,self", "tag_bw", 65_536, 200)
    }));
    for test in ["ucp_get", "ucp_put_bw"] {
        trials.push(trial(Topology::Veth, &format!("UCX over rc with all memory on demand: {test}"), move |bed| {
            on_demand(bed, test)
        }));
    }
    trials.push(trial(Topology::Veth, "UCX prefers Weir to TCP between two hosts", by_default));
    trials
}

pub fn runs(bed: &Bed, options: &[&str], transport: &str, test: &str, size: u32, count: u32) -> Result<()> {
    let options = [&["--log", "info"], options].concat();
    let device = bed.stage.device();
    let line = format!(
        "env {transport} UCX_NET_DEVICES={device}:1 ucx_perftest -p {{port}} -t {test} -s {size} -n {count} -w 20"
    );
    let outcome = bed.pair(&options, &line, Duration::from_secs(60))?;
    for side in [&outcome.server, &outcome.client] {
        used_weir(side, &device)?;
    }
    ensure!(outcome.client.stdout.contains("Final:"), "{}", outcome.client.printed());
    Ok(())
}

/// One implicit ODP region for all of the process's memory. Both sides meet page faults. At its end UCX 1.13
/// may crash in `uct_ib_md_close`, by the bits of the region's key: it takes the region for a list of parameters.
fn on_demand(bed: &Bed, test: &str) -> Result<()> {
    let port = bed.stage.free_port(Side::A)?;
    let device = bed.stage.device();
    let line = format!(
        "env UCX_TLS=rc,self UCX_NET_DEVICES={device}:1 UCX_IB_REG_METHODS=odp \
         ucx_perftest -p {port} -t {test} -s 262144 -n 5000 -w 20"
    );
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut server = Child::spawn(&mut bed.weir(Side::A, &[], &words), line.as_str())?;
    server.wait_listening(Protocol::Tcp, port, Duration::from_secs(15))?;
    let mut client = bed.weir(Side::B, &[], &words);
    let client = Child::spawn(client.arg(bed.stage.address(Side::A).to_string()), line.as_str())?;
    // Either may end while the other one is looked at.
    let mut seen = [false; 2];
    until("page faults on both sides", || {
        for (seen, child) in seen.iter_mut().zip([&server, &client]) {
            *seen = *seen || pages_on_demand(child);
        }
        Ok(seen.iter().all(|seen| *seen).then_some(()))
    })?;
    // Not `pair::finish`, which ends the peer of a program that has crashed.
    let (client, server) = (client.wait(Duration::from_secs(60))?, server.wait(Duration::from_secs(60))?);
    ensure!(client.stdout.contains("Final:"), "{}", client.printed());
    for side in [&server, &client] {
        ensure!(side.status.success() || side.stderr.contains("(uct_ib_md_close+"), "{}", side.printed());
    }
    Ok(())
}

/// Whether a process has met page faults in its only region.
fn pages_on_demand(child: &Child) -> bool {
    json(&[&child.pid().to_string()]).is_ok_and(|process| {
        process["paging"]["page_faults_handled"].as_u64() > Some(0) && process["region_count"] == 1
    })
}

/// UCX compares its transports. Without shared memory, which two namespaces of one host have and two hosts do not.
fn by_default(bed: &Bed) -> Result<()> {
    let line = "env UCX_TLS=rc,ud,tcp,self ucx_perftest -p {port} -t tag_bw -s 65536 -n 2000 -w 20";
    let outcome = bed.pair(&["--log", "info"], line, Duration::from_secs(60))?;
    // In this direction; the client sends.
    ensure!(used_weir(&outcome.client, &bed.stage.device())? > 2000 * 65_536, "{}", outcome.client.printed());
    Ok(())
}

/// The bytes that a program sent over Weir: more than none.
pub fn used_weir(program: &Finished, device: &str) -> Result<u64> {
    let bytes = traffic(&program.stderr, device).map(|[_, sent, ..]| sent).sum();
    ensure!(bytes > 0, "nothing went over {device}: {}", program.printed());
    Ok(bytes)
}

/// A program has sent or received packets over Weir: some programs only receive.
pub fn exchanged(program: &Finished, device: &str) -> Result<()> {
    let packets: u64 = traffic(&program.stderr, device).map(|[sent, _, received, _]| sent + received).sum();
    ensure!(packets > 0, "nothing went over {device}: {}", program.printed());
    Ok(())
}

/// What each process said at its end with `--log info`: packets and bytes sent, packets and bytes received.
pub fn traffic<'a>(log: &'a str, device: &str) -> impl Iterator<Item = [u64; 4]> + use<'a> {
    let mark = format!(" {device}: ");
    log.lines().filter_map(move |line| {
        let (_, counts) = line.split_once(&mark)?;
        let (sent, received) = counts.split_once(" bytes sent, ")?;
        let (packets_sent, bytes_sent) = sent.split_once(" packets with ")?;
        let (packets_received, rest) = received.split_once(" with ")?;
        let bytes_received = rest.split(' ').next()?;
        let [a, b, c, d] =
            [packets_sent, bytes_sent, packets_received, bytes_received].map(|number| number.parse().ok());
        Some([a?, b?, c?, d?])
    })
}

/// The side that a rank runs on, for programs that start their own processes.
pub fn namespace(bed: &Bed, side: Side) -> Result<std::fs::File> {
    bed.stage.enter(side, || std::fs::File::open("/proc/thread-self/ns/net"))?.context("no network namespace")
}
