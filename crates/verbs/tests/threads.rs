//! Runs `tests/c/threads.c`: verbs from many threads of one process on the same objects. The end-to-end tests run it for
//! longer, and with two processes.

mod system;

use std::process::Command;

#[test]
fn four_threads_call_random_verbs_on_shared_rc_objects() {
    run("stress");
}

#[test]
fn four_threads_call_random_verbs_on_ud_qps_multicast_groups_and_an_srq() {
    run("others");
}

fn run(kind: &str) {
    let program = system::compile("threads.c", &format!("threads-{kind}"), &["-libverbs", "-pthread"]);
    let mut command = Command::new(&program);
    command.args([kind, "-d", "weir_lo", "-t", "4", "-T", "1"]);
    command.env("LD_LIBRARY_PATH", system::linked()).env("WEIR_INTERFACE", "lo");
    let out = system::run(&mut command);
    assert!(out.lines().any(|line| line.starts_with("4 threads: ")), "{out}");
}
