//! `tests/c/answers.c`: what calls answer to masks and sizes of other releases, and to what there is not.

mod system;

use std::path::Path;
use std::process::Command;

#[test]
fn calls_answer_as_rdma_core_does() {
    if !system::has_headers() {
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/c/answers.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("answers");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source).arg("-libverbs");
    system::run(&mut compiler);
    let mut timed = Command::new("timeout");
    timed.arg("60").arg(&program).arg("weir_lo").env("LD_LIBRARY_PATH", system::linked());
    let out = system::run(&mut timed);
    assert!(out.trim_end().ends_with(" passed, 0 failed"), "{out}");
}
