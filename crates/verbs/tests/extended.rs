//! `tests/c/extended.c`: extended CQs and work requests built call by call.

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
