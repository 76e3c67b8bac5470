//! Connected processes without traffic use no CPU.

use crate::bed::{Bed, Topology};
use crate::trial;
use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use std::time::{Duration, Instant};
use weir_stage::{Child, Protocol, Side};

/// The exchange of the few messages is over when no CPU time was used for [`QUIET`]: at the latest after this time, on
/// a machine with cores that are busy with other work.
const SETTLE: Duration = Duration::from_secs(6);
const QUIET: Duration = Duration::from_millis(300);
const WATCH: Duration = Duration::from_secs(2);
/// 1% of [`WATCH`]: the cost of one or two wake-ups, and the resolution of the CPU clock.
const ALLOWED: Duration = Duration::from_millis(20);

pub fn trials() -> Vec<Trial> {
    let programs = ["ib_send_lat", "ib_write_bw -q 16", "ib_send_bw -e"];
    let name = |program| format!("{program}, connected and idle, uses no CPU");
    let each = programs.into_iter().flat_map(|program| Topology::ALL.map(|topology| (topology, program)));
    each.map(|(topology, program)| trial(topology, &name(program), move |bed| idle(bed, program))).collect()
}

fn idle(bed: &Bed, program: &str) -> Result<()> {
    let port = bed.stage.free_port(Side::A)?;
    let command = |side: Side| {
        // After its messages the program sleeps with its QPs still connected.
        let wait = (SETTLE + WATCH + Duration::from_secs(2)).as_secs();
        let line = format!("{program} -F -d {} -p {port} -n 5 --wait_destroy={wait}", bed.stage.device());
        bed.weir(side, &[], line.split_whitespace())
    };
    let mut server = Child::spawn(&mut command(Side::A), "server")?;
    server.wait_listening(Protocol::Tcp, port, Duration::from_secs(10))?;
    let mut command = command(Side::B);
    let client = Child::spawn(command.arg(bed.stage.address(Side::A).to_string()), "client")?;

    let used_within = |time: Duration| -> Result<[Duration; 2]> {
        let before = [server.cpu()?, client.cpu()?];
        std::thread::sleep(time);
        Ok([server.cpu()? - before[0], client.cpu()? - before[1]])
    };
    let started = Instant::now();
    std::thread::sleep(Duration::from_secs(1));
    while started.elapsed() < SETTLE && used_within(QUIET)?.iter().any(|used| *used > ALLOWED) {}
    let used = used_within(WATCH)?;
    ensure!(server.runs() && client.runs(), "a program ended while its CPU time was measured");
    ensure!(used.iter().all(|used| *used <= ALLOWED), "server and client used {used:?} of CPU time in {WATCH:?}");

    // Both must succeed, which shows that they exchanged their messages.
    let timeout = Duration::from_secs(20);
    weir_stage::pair::finish(server, client, timeout)?.success()?;
    Ok(())
}
