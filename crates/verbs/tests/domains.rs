//! `tests/c/domains.c`: parent and thread domains, imports, and what is refused with which error.

mod system;

use std::path::Path;
use std::process::Command;

#[test]
fn domains_imports_and_refusals() {
    if !system::has_headers() {
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/c/domains.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("domains");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source).arg("-libverbs");
    system::run(&mut compiler);
    let mut timed = Command::new("timeout");
    timed.arg("60").arg(&program).arg("weir_lo").env("LD_LIBRARY_PATH", system::linked());
    let out = system::run(&mut timed);
    assert!(out.trim_end().ends_with(" passed, 0 failed"), "{out}");
}
