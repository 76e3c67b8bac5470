//! Runs `tests/c/changes.c`: which changes of ODP memory the adapter is notified of. The program is linked with
//! the library, with and without userfaultfd, or opens it later.

mod system;

use std::path::Path;
use std::process::Command;

#[test]
#[ignore = "needs userfaultfd"]
fn functions_and_events_notify_the_adapter() {
    let program = system::compile("changes.c", "changes", &["-libverbs", "-pthread"]);
    run(&program, &[], "functions, events", "auto");
}

#[test]
fn functions_alone_notify_the_adapter() {
    let program = system::compile("changes.c", "changes-alone", &["-libverbs", "-pthread"]);
    run(&program, &[], "functions", "off");
}

#[test]
#[ignore = "needs userfaultfd"]
fn events_notify_the_adapter_if_the_library_is_opened_later() {
    let library = ["-shared", "-fPIC", "-DCHANGES_LIBRARY", "-libverbs", "-pthread"];
    let library = system::compile("changes.c", "changes.so", &library);
    let program = system::compile("changes_opened.c", "changes-opened", &["-ldl"]);
    run(&program, &[&library], "events", "auto");
}

/// `seen`: the ways of notification that the program must find to work.
fn run(program: &Path, arguments: &[&Path], seen: &str, userfaultfd: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut timed = Command::new("timeout");
    timed.arg("120").arg(program).args(arguments).args(["-d", "weir_lo"]);
    timed
        .env("LD_LIBRARY_PATH", system::linked())
        .env("WEIR_INTERFACE", "lo")
        .env("WEIR_RUN_DIR", folder.path().join("run"));
    timed.env("CHANGES_SEEN", seen).env("WEIR_USERFAULTFD", userfaultfd);
    let out = system::run(&mut timed);
    assert_eq!(out, "changes of ODP memory: 0 wrong\n");
}
