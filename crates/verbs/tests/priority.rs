//! Runs `tests/c/priority.c`: a real-time thread and an ordinary thread use one adapter on one core.

mod system;

use std::process::Command;

/// The program's exit status if the system allows no real-time priority.
const NO_PRIORITY: i32 = 77;

/// A polling thread with a real-time priority that never sleeps takes the core from the holder of the engine, until
/// the kernel throttles it: after 950 ms, for each of the transfers.
#[test]
#[ignore = "needs root"]
fn a_real_time_poller_does_not_stall_the_holder_of_the_engine() {
    let program = system::compile("priority.c", "priority", &["-libverbs", "-pthread"]);
    let folder = tempfile::tempdir().unwrap();
    let mut timed = Command::new("timeout");
    timed
        .arg("120")
        .arg(&program)
        .args(["weir_lo", "1", "fifo", "20"])
        .env("LD_LIBRARY_PATH", system::linked())
        .env("WEIR_INTERFACE", "lo");
    let output = timed.env("WEIR_RUN_DIR", folder.path().join("run")).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_ne!(output.status.code(), Some(NO_PRIORITY), "root gets a real-time priority: {err}");
    assert!(output.status.success(), "{}: {out}{err}", output.status);
    let stalls: u32 = out.split_whitespace().next().and_then(|first| first.parse().ok()).expect("a number of stalls");
    assert!(stalls < 4, "{out}");
}
