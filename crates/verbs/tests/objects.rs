//! `tests/c/objects.c`: shared queues, XRC domains, resized CQs, failed sends, replies, addresses and limits.

mod system;

use std::path::Path;
use std::process::Command;

#[test]
fn queues_domains_replies_and_limits() {
    if !system::has_headers() {
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/c/objects.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("objects");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source);
    system::run(compiler.args(["-libverbs", "-lpthread"]));
    let v6 = std::fs::read_to_string("/proc/net/if_inet6").is_ok_and(|addresses| addresses.contains(" lo"));
    for gid in ["1", "0"].into_iter().take(if v6 { 2 } else { 1 }) {
        let mut objects = Command::new(&program);
        let out = system::run(objects.args(["weir_lo", gid]).env("LD_LIBRARY_PATH", system::linked()));
        assert!(out.ends_with("0 failed\n"), "GID {gid}: {out}");
    }
}
