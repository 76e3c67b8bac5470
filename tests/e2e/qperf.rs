//! qperf, unmodified, on one host: its tests exchange LIDs, by which no RoCE adapter reaches another host, and its own
//! connection manager (`-cm 1`) crashes at the end of a test.

use crate::bed::{Bed, Topology};
use crate::trial;
use crate::ucx::{traffic, used_weir};
use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use std::time::Duration;
use weir_stage::{Child, Protocol, Side, pair};

/// Each takes a second.
const TESTS: &str = "rc_bw rc_rdma_read_bw ver_rc_fetch_add uc_lat";
const MORE: &str = "rc_bi_bw rc_lat rc_compare_swap_mr rc_fetch_add_mr rc_rdma_read_lat rc_rdma_write_bw rc_rdma_write_lat \
                    rc_rdma_write_poll_lat ver_rc_compare_swap uc_bi_bw uc_bw uc_rdma_write_bw uc_rdma_write_lat \
                    uc_rdma_write_poll_lat";

pub fn trials(whole: bool) -> Vec<Trial> {
    let tests = if whole { format!("{TESTS} {MORE}") } else { TESTS.to_owned() };
    vec![trial(Topology::Loopback, "qperf", move |bed| measures(bed, &tests))]
}

/// The server starts a process for each test. Every test prints a result, and every process has used Weir.
fn measures(bed: &Bed, tests: &str) -> Result<()> {
    let port = bed.stage.free_port(Side::A)?;
    let line = format!("qperf -lp {port}");
    let log = ["--log", "info"];
    let mut server = Child::spawn(&mut bed.weir(Side::A, &log, line.split(' ')), line.as_str())?;
    server.wait_listening(Protocol::Tcp, port, Duration::from_secs(10))?;
    let line = format!("qperf {} -lp {port} -t 1 {tests} quit", bed.stage.address(Side::A));
    let client = Child::spawn(&mut bed.weir(Side::B, &log, line.split_whitespace()), line.as_str())?;
    let outcome = pair::finish(server, client, Duration::from_secs(120))?.success()?;
    let device = bed.stage.device();
    let tests = tests.split_whitespace().count();
    used_weir(&outcome.client, &device)?;
    let processes: Vec<[u64; 4]> = traffic(&outcome.server.stderr, &device).collect();
    ensure!(processes.iter().all(|[sent, _, received, _]| sent + received > 0), "{}", outcome.server.printed());
    let results = outcome.client.stdout.lines().filter(|line| line.contains(" = ")).count();
    ensure!(processes.len() == tests && results >= tests, "{tests} tests: {}", outcome.client.printed());
    Ok(())
}
