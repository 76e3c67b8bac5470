//! Processes in poor surroundings: without `/proc`, with few descriptors, in a container, with another allocator. Every
//! byte and status is right there.

use crate::bed::{Bed, Topology, WEIR};
use crate::verify::verify_with;
use crate::{needing_root, trial};
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use weir_stage::surroundings::{few_descriptors, in_container, read_only, without_capabilities, without_proc};
use weir_stage::{Child, Side, pair};

type Prepare = fn(&mut Command);

/// Descriptors that suffice for a program with one device, one peer and a channel of completions. Weir has 16 of them with
/// shared memory, and two less without.
const DESCRIPTORS: u64 = 24;

pub fn trials() -> Vec<Trial> {
    let root = nix::unistd::geteuid().is_root();
    let poor: [(&str, Prepare, bool); 4] = [
        ("without /proc", without_proc, true),
        ("with read-only file systems", read_only, true),
        ("without capabilities in a user namespace", without_capabilities, true),
        ("under a container's filter of system calls", in_container, false),
    ];
    let mut trials = vec![];
    for (name, prepare, needs_root) in poor {
        for (way, options) in [("shared memory", &[] as &[&str]), ("UDP", &["--local", "off"])] {
            let name = format!("every byte and status {name}, over {way}");
            let trial =
                trial(Topology::Loopback, &name, move |bed| verify_with(bed, options, "-s 51 -o 1", false, prepare));
            trials.push(needing_root(trial, root || !needs_root));
        }
    }
    for options in [&[] as &[&str], &["--local", "off"]] {
        let name = format!("perftest and ibv_rc_pingpong with {DESCRIPTORS} descriptors {}", options.join(" "));
        trials.push(trial(Topology::Loopback, name.trim_end(), move |bed| with_few_descriptors(bed, options)));
    }
    let name = "with fewer descriptors a device opens or fails with a reason";
    trials.push(trial(Topology::Loopback, name, too_few_descriptors));
    for allocator in ["libjemalloc.so.2", "libtcmalloc_minimal.so.4"] {
        let name = format!("every byte and status with {allocator} preloaded");
        trials.push(trial(Topology::Loopback, &name, move |bed| {
            let library = installed(allocator)?;
            let preload = |command: &mut Command| {
                command.env("LD_PRELOAD", &library);
            };
            verify_with(bed, &[], "-s 52 -o 1", false, preload)
        }));
    }
    let effective = trial(Topology::Loopback, "poor surroundings are in effect under weir run", in_effect);
    trials.push(needing_root(effective, root));
    trials
}

/// One device, one peer and a channel of completions fit.
fn with_few_descriptors(bed: &Bed, options: &[&str]) -> Result<()> {
    let device = bed.stage.device();
    let gid = bed.gid_index(Side::A, bed.stage.address(Side::A))?;
    for line in [
        format!("ib_write_bw -F -d {device} -n 1000"),
        format!("ib_send_bw -F -e -d {device} -n 1000"),
        format!("ibv_rc_pingpong -e -c -d {device} -g {gid}"),
        format!("ibv_rc_pingpong -o -c -d {device} -g {gid}"),
    ] {
        let port = bed.stage.free_port(Side::A)?;
        let line = format!("{line} -p {port}");
        let command = |side: Side| {
            let mut command = bed.weir(side, options, line.split_whitespace());
            few_descriptors(&mut command, DESCRIPTORS);
            command
        };
        let mut client = command(Side::B);
        client.arg(bed.stage.address(Side::A).to_string());
        pair::run(&mut command(Side::A), &mut client, port, Duration::from_secs(60))?.success().context(line)?;
    }
    Ok(())
}

/// At every limit `ibv_devinfo` works, or says that it cannot open the device and the log says why; it never crashes.
fn too_few_descriptors(bed: &Bed) -> Result<()> {
    let mut opened = vec![];
    for count in 4..DESCRIPTORS {
        let words = ["ibv_devinfo", "-d", &bed.stage.device()].map(str::to_owned);
        let mut command = bed.weir(Side::A, &["--log", "warn"], words);
        few_descriptors(&mut command, count);
        let ended = Child::spawn(&mut command, format!("ibv_devinfo with {count}"))?.wait(Duration::from_secs(20))?;
        let reason = ended.stderr.contains("no free file descriptor");
        ensure!(ended.status.code().is_some() && (ended.status.success() || reason), "{}", ended.printed());
        opened.push(ended.status.success());
    }
    ensure!(opened.contains(&true) && opened.contains(&false), "with 4 and more: {opened:?}");
    Ok(())
}

/// Path of a library of the distribution.
fn installed(name: &str) -> Result<String> {
    let output = Command::new("cc").arg(format!("-print-file-name={name}")).output()?;
    let path = String::from_utf8(output.stdout)?.trim().to_owned();
    ensure!(Path::new(&path).is_absolute(), "{name} is not installed: `make test` installs it");
    Ok(path)
}

/// Each of the surroundings is what its name says, for a program that `weir run` starts.
fn in_effect(bed: &Bed) -> Result<()> {
    let writes =
        "for folder in / /tmp /dev/shm; do touch $folder/weir-test 2>/dev/null && echo $folder; done; echo end";
    let cases: [(Prepare, &str, &str); 5] = [
        (without_proc, "ls /proc", ""),
        (read_only, writes, "end\n"),
        (without_capabilities, "id -u; grep CapEff /proc/self/status", "1000\nCapEff:\t0000000000000000\n"),
        (in_container, "unshare -r true 2>/dev/null || echo refused", "refused\n"),
        (|command| few_descriptors(command, DESCRIPTORS), "ulimit -n", "24\n"),
    ];
    for (prepare, script, wanted) in cases {
        let mut command = bed.bare(Side::A, WEIR);
        prepare(command.args(["run", "--", "sh", "-c", script]));
        let ended = Child::spawn(&mut command, script)?.wait(Duration::from_secs(20))?.success().context(script)?;
        ensure!(ended.stdout == wanted, "{}", ended.printed());
    }
    Ok(())
}
