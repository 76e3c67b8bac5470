//! `tests/c/paging.c`: memory on demand, of every kind, and what is refused of it.

mod system;

use std::path::Path;
use std::process::Command;

#[test]
fn memory_on_demand() {
    if !system::has_headers() {
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/c/paging.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("paging");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source).arg("-libverbs");
    system::run(&mut compiler);
    // Where packets carry an ICRC, what is sent is copied first.
    for icrc in ["auto", "always"] {
        let mut timed = Command::new("timeout");
        timed.arg("120").arg(&program).args(["weir_lo", "1"]).env("LD_LIBRARY_PATH", system::linked());
        let out = system::run(timed.env("WEIR_ICRC", icrc));
        assert!(out.trim_end().ends_with(" passed, 0 failed"), "{out}");
        print!("{out}");
    }
}
