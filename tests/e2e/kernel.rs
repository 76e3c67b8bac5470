//! Old kernels and kernels that refuse features: every fallback, forced by `--without`, or detected under a seccomp
//! filter that refuses every system call newer than Linux 4.18. Also the log message about packets that the kernel
//! does not send.

use crate::bed::{Bed, Topology, WEIR};
use crate::killed::running_pair;
use crate::trial;
use crate::verify::verify_with;
use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use std::process::Command;
use std::time::Duration;
use weir_stage::{Child, Side, old_kernel, pair, perftest};

/// All features that `--without` accepts.
const ALL: &str = "udp-segment,udp-gro,ipv6,userfaultfd,madv-populate,udp-connect";

pub fn trials() -> Vec<Trial> {
    // Over veth both peers omit the ICRC and send payload in place, unless --icrc always is given.
    let forced: [(&str, &[&str], &str); 4] = [
        ("without any feature", &["--without", ALL], "-s 31"),
        ("without any feature, with ODP memory", &["--without", ALL], "-s 32 -o 1"),
        ("without udp-segment", &["--without", "udp-segment"], "-s 33"),
        ("without udp-segment, with every ICRC", &["--without", "udp-segment", "--icrc", "always"], "-s 34"),
    ];
    let mut trials: Vec<Trial> = forced
        .into_iter()
        .map(|(name, weir, options)| {
            let name = format!("every byte and status {name}");
            trial(Topology::Veth, &name, move |bed| verify_with(bed, weir, options, false, |_| ()))
        })
        .collect();
    for (name, ipv6, options) in [("", true, "-s 35"), (" without IPv6, with ODP memory", false, "-s 36 -o 1")] {
        let name = format!("every byte and status on an old kernel{name}");
        let old = move |command: &mut Command| old_kernel::run_on_old_kernel(command, ipv6);
        trials.push(trial(Topology::Veth, &name, move |bed| verify_with(bed, &[], options, false, old)));
    }
    trials.push(trial(Topology::Veth, "perftest ib_write_bw without any feature", perftest_without));
    trials.push(trial(Topology::Veth, "perftest ib_write_bw on an old kernel", perftest_on_an_old_kernel));
    trials.push(trial(Topology::Loopback, "weir devices lists the features in use, and why others are not", features));
    trials.push(trial(Topology::Veth, "an MTU that shrinks below the path MTU of a QP is logged once", shrunken_mtu));
    trials
}

const PERFTEST: &str = "ib_write_bw -F -d {dev} -p {port} -n 200";

fn perftest_without(bed: &Bed) -> Result<()> {
    let outcome = bed.pair(&["--without", ALL, "--patience", "5"], PERFTEST, Duration::from_secs(60))?;
    ensure!(perftest::rows(&outcome.client.stdout).len() == 1, "{}", outcome.client.printed());
    Ok(())
}

fn perftest_on_an_old_kernel(bed: &Bed) -> Result<()> {
    let port = bed.stage.free_port(Side::A)?;
    let command = |side: Side| {
        let line = PERFTEST.replace("{dev}", &bed.stage.device()).replace("{port}", &port.to_string());
        let mut command = bed.weir(side, &["--patience", "5"], line.split_whitespace());
        old_kernel::run_on_old_kernel(&mut command, false);
        command
    };
    let mut client = command(Side::B);
    client.arg(bed.stage.address(Side::A).to_string());
    let outcome = pair::run(&mut command(Side::A), &mut client, port, Duration::from_secs(60))?.success()?;
    ensure!(perftest::rows(&outcome.client.stdout).len() == 1, "{}", outcome.client.printed());
    Ok(())
}

fn features(bed: &Bed) -> Result<()> {
    let devices = |without: &str| {
        let mut command = bed.bare(Side::A, WEIR);
        command.args(["devices"]).env("WEIR_WITHOUT", without);
        Child::spawn(&mut command, "weir devices")?.wait(Duration::from_secs(10))
    };
    let ended = devices("udp-gro,madv-populate")?.success()?;
    for line in
        ["not udp-gro (WEIR_WITHOUT): ", "not udp-segment (udp-gro is switched off: ", "not madv-populate (WEIR_"]
    {
        ensure!(ended.stdout.contains(line), "`{line}` is missing\n{}", ended.printed());
    }
    let wrong = devices("udp-gso")?;
    ensure!(!wrong.status.success() && wrong.stderr.contains("udp-segment"), "{}", wrong.printed());
    let json = bed.devices(Side::A)?;
    let names: Vec<&str> =
        json[0]["features"].as_array().into_iter().flatten().filter_map(|feature| feature["name"].as_str()).collect();
    ensure!(names.join(",") == ALL, "{json}");
    let mut command = bed.weir(Side::A, &["--without", "udp-gso"], ["true"]);
    let refused = Child::spawn(&mut command, "weir run")?.wait(Duration::from_secs(10))?;
    let names_both = ["--without", "udp-gso", "udp-segment"].iter().all(|part| refused.stderr.contains(part));
    ensure!(refused.status.code() == Some(125) && names_both, "{}", refused.printed());
    Ok(())
}

/// The MTU of the interface shrinks below the packet size of connected QPs. The QPs fail, and the log says why.
fn shrunken_mtu(_: &Bed) -> Result<()> {
    // New namespaces, because other trials depend on the MTU of the shared ones.
    let bed = &Bed::new(Topology::Veth)?;
    let (_server, client) = running_pair(bed, &["--log", "warn"], "ib_write_bw -m 4096", 14)?;
    let interface = bed.stage.interface();
    let mut shrink = bed.stage.command(Side::B, "ip");
    shrink.args(["link", "set", "dev", interface, "mtu", "1500"]);
    Child::spawn(&mut shrink, "ip link set mtu")?.wait(Duration::from_secs(10))?.success()?;
    let ended = client.wait(Duration::from_secs(30))?;
    let text = ended.printed();
    ensure!(text.contains("Failed status 12"), "no status 12 (retry exceeded)\n{text}");
    let lost: Vec<&str> = ended.stderr.lines().filter(|line| line.contains("are lost")).collect();
    let [line] = lost[..] else { anyhow::bail!("{} log lines about lost packets, not one\n{text}", lost.len()) };
    let to = bed.stage.address(Side::A).to_string();
    for part in ["WARN", &bed.stage.device(), &to, "interface eth0 has an MTU of 1500", "path MTU of 1024"] {
        ensure!(line.contains(part), "`{part}` is missing from the log line\n{text}");
    }
    Ok(())
}
