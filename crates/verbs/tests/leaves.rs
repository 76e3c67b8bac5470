//! Runs `tests/c/leaves.c`: the program takes away the library, or its root folder, while transfers run.

mod system;

use std::path::Path;
use std::process::Command;

fn passes(program: &Path, argument: &Path) {
    let mut command = Command::new("timeout");
    command.arg("120").arg(program).arg("weir_lo").arg(argument);
    let out = system::run(command.env("LD_LIBRARY_PATH", system::linked()).env("WEIR_INTERFACE", "lo"));
    assert!(system::passed(&out), "{out}");
}

#[test]
fn the_library_stays_while_its_threads_run() {
    let plugin = system::compile("leaves.c", "leaves.so", &["-DPLUGIN", "-shared", "-fPIC", "-libverbs"]);
    let program = system::compile("leaves.c", "unloads", &["-DUNLINKED", "-ldl"]);
    passes(&program, &plugin);
}

#[test]
fn a_device_works_in_another_root_folder() {
    let program = system::compile("leaves.c", "chroots", &["-libverbs"]);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("empty");
    std::fs::create_dir_all(&folder).unwrap();
    passes(&program, &folder);
}
