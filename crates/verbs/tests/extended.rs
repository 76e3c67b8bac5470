//! `tests/c/extended.c`: extended CQs and work requests built call by call; and `ibv_asyncwatch`, unchanged, on an
//! interface that changes.

mod system;

use std::path::Path;
use std::process::Command;

#[test]
fn extended_queues_and_built_requests() {
    if !system::has_headers() {
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/c/extended.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("extended");
    system::run(
        Command::new("cc")
            .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&program)
            .arg(source)
            .args(["-libverbs", "-pthread"]),
    );
    let mut timed = Command::new("timeout");
    timed.arg("120").arg(&program).args(["weir_lo", "1"]).env("LD_LIBRARY_PATH", system::linked());
    let out = system::run(&mut timed);
    assert!(out.trim_end().ends_with(" passed, 0 failed"), "{out}");
}

#[test]
fn a_port_tells_when_its_interface_changes() {
    // In a network namespace that ends with the shell.
    const SCRIPT: &str = "ip link set lo up
        timeout 30 stdbuf -oL ibv_asyncwatch -d weir_lo > \"$1\" 2>&1 &
        said() { for i in $(seq 100); do grep -q \"$2\" \"$1\" && return; sleep 0.05; done; exit 1; }
        said \"$1\" 'event FD'
        ip addr add 10.9.8.7/32 dev lo && said \"$1\" GID_CHANGE
        ip link set lo down && said \"$1\" PORT_ERR
        ip link set lo up && said \"$1\" PORT_ACTIVE
        kill $!";
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 || !Path::new("/usr/bin/ibv_asyncwatch").exists() {
        eprintln!("SKIPPED: a network namespace needs root, and ibv_asyncwatch is of ibverbs-utils");
        return;
    }
    let said = Path::new(env!("CARGO_TARGET_TMPDIR")).join("asyncwatch");
    let mut shell = Command::new("unshare");
    shell.args(["-n", "sh", "-c", SCRIPT, "sh"]).arg(&said).env("LD_LIBRARY_PATH", system::linked());
    let status = shell.status().unwrap();
    assert!(status.success(), "{}", std::fs::read_to_string(said).unwrap_or_default());
}
