//! Runs `tests/c/extended.c`: extended CQs and work requests built call by call. Runs `ibv_asyncwatch`, unchanged, on
//! an interface that changes.

mod system;

use std::path::Path;
use std::process::Command;

#[test]
fn the_extended_program_passes() {
    system::check("extended", &["1"], &[]);
}

#[test]
#[ignore = "needs root"]
fn a_port_reports_changes_of_its_interface() {
    asyncwatch(
        "lo",
        "ip link set lo up; watch
        ip addr add 10.9.8.7/32 dev lo && wait_for GID_CHANGE
        ip link set lo down && wait_for PORT_ERR
        ip link set lo up && wait_for PORT_ACTIVE",
    );
}

/// The interface is one end of a veth; the other end goes down, up, and is removed.
#[test]
#[ignore = "needs root"]
fn a_port_follows_its_peer_end_and_a_device_its_interface() {
    asyncwatch(
        "near",
        "ip link add near type veth peer name far
        ip addr add 10.9.8.6/24 dev near; ip link set near up; ip link set far up
        for i in $(seq 100); do ip link show near | grep -q LOWER_UP && break; sleep 0.05; done; watch
        ip link set far down && wait_for PORT_ERR
        ip link set far up && wait_for PORT_ACTIVE
        ip link del near && wait_for FATAL",
    );
}

/// A program that starts at once after an interface came up, as in a script, gets that interface and not loopback. The
/// kernel marks the interface as running up to a second later. The speed is not that which the driver of veth invents.
#[test]
#[ignore = "needs root"]
fn an_interface_is_shown_and_active_as_soon_as_it_passes_packets() {
    system::installed("/usr/bin/ibv_devinfo", "ibverbs-utils");
    let mut shell = Command::new("unshare");
    shell.args(["-n", "sh", "-ec"]).env("LD_LIBRARY_PATH", system::linked()).arg(
        "ip link set lo up
        unshare -n sleep 30 & other=$!; trap 'kill $other' EXIT
        until [ \"$(readlink /proc/$other/ns/net)\" != \"$(readlink /proc/$$/ns/net)\" ]; do sleep 0.02; done
        ip link add near type veth peer name far netns $other
        nsenter -t $other -n ip link set far up
        ip addr add 10.9.8.5/24 dev near; ip link set near up
        ibv_devinfo -v",
    );
    let output = shell.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("PORT_ACTIVE") && text.contains("weir_near"), "{output:?}");
    assert!(text.contains("4X (2)") && text.contains("50.0 Gbps (64)"), "{text}");
    assert!(!text.contains("weir_lo"), "{text}");
}

/// Checks that `ibv_asyncwatch` prints each event, in a network namespace that ends with the shell.
fn asyncwatch(interface: &str, happens: &str) {
    const HOW: &str =
        "wait_for() { for i in $(seq 100); do grep -q \"$1\" \"$out\" && return; sleep 0.05; done; exit 1; }
        watch() { timeout 30 stdbuf -oL ibv_asyncwatch -d weir_$on > \"$out\" 2>&1 & wait_for 'event FD'; }";
    system::installed("/usr/bin/ibv_asyncwatch", "ibverbs-utils");
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("asyncwatch-{interface}"));
    let mut shell = Command::new("unshare");
    shell.args(["-n", "sh", "-c"]).arg(format!("{HOW}\n{happens}\nkill $!")).env("on", interface);
    shell.env("out", &output).env("LD_LIBRARY_PATH", system::linked());
    let status = shell.status().unwrap();
    assert!(status.success(), "{}", std::fs::read_to_string(output).unwrap_or_default());
}
