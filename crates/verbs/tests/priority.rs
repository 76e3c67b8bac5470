//! `tests/c/priority.c`: a real-time thread and an ordinary one at one adapter, on one core.

mod system;

use std::process::Command;

/// What the program exits with where the system gives it no real-time priority.
const NO_PRIORITY: i32 = 77;

/// A poller with a real-time priority that never sleeps keeps the core from the thread that holds the engine until the
/// kernel throttles it: after 950 ms, for each of the transfers.
#[test]
#[ignore = "needs root"]
fn a_real_time_thread_lets_the_holder_of_the_engine_go_on() {
    let program = system::compile("priority.c", "priority", &["-libverbs", "-pthread"]);
    let folder = tempfile::tempdir().unwrap();
    let mut timed = Command::new("timeout");
    timed.arg("120").arg(&program).args(["weir_lo", "1", "fifo", "20"]).env("LD_LIBRARY_PATH", system::linked());
    let output = timed.env("WEIR_RUN_DIR", folder.path().join("run")).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_ne!(output.status.code(), Some(NO_PRIORITY), "root gets a real-time priority: {err}");
    assert!(output.status.success(), "{}: {out}{err}", output.status);
    let stalls: u32 = out.split_whitespace().next().and_then(|first| first.parse().ok()).expect("a number of stalls");
    assert!(stalls < 4, "{out}");
}
