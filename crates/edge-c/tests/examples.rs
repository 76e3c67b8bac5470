//! The examples in C and Rust are built and run, each with each; and what C programs can do wrong is an error.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn folder() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// Compiles a C program against the library of this build.
fn compiled(source: &Path, to: &Path) {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let libraries = folder();
    let status = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-I"])
        .arg(manifest.join("include"))
        .arg("-o")
        .args([to, source])
        .arg("-L")
        .arg(&libraries)
        .arg("-lweir_edge_c")
        .arg(format!("-Wl,-rpath,{}", to.parent().unwrap().display()))
        .status()
        .unwrap();
    assert!(status.success());
    // The name that the library has when it is installed.
    let name = to.parent().unwrap().join("libweir-edge.so.0");
    if !name.exists() {
        std::os::unix::fs::symlink(libraries.join("libweir_edge_c.so"), name).unwrap();
    }
}

fn free_port() -> u16 {
    std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn run(waiting: &Path, requesting: &Path) {
    let port = free_port().to_string();
    let spawn = |program: &Path, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.env("WEIR_LINKS", "lo").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let waiter = spawn(waiting, &[&port]);
    let requester = spawn(requesting, &[&port, "127.0.0.1"]);
    let outputs = [waiter, requester].map(|child| child.wait_with_output().unwrap());
    let [waiter, requester] = outputs.each_ref().map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    assert!(outputs.iter().all(|output| output.status.success()), "{outputs:?}");
    assert_eq!(waiter, format!("port {port}: the peer has written \"hello, memory\"\n"));
    assert!(
        requester.starts_with("read back \"hello, memory\"\nas it should be: the peer has no such memory"),
        "{requester}"
    );
}

#[test]
fn the_examples_work_each_with_each() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let scratch = tempfile::tempdir().unwrap();
    let c = scratch.path().join("edge");
    compiled(&manifest.join("../../examples/edge/edge.c"), &c);
    // Cargo builds it as an example of this crate, too.
    let rust = folder().parent().unwrap().join("examples/edge");
    assert!(rust.exists(), "{} is missing", rust.display());
    for (waiting, requesting) in [(&c, &c), (&c, &rust), (&rust, &c), (&rust, &rust)] {
        run(waiting, requesting);
    }
}

#[test]
fn what_c_programs_do_wrong_is_an_error() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let scratch = tempfile::tempdir().unwrap();
    let program = scratch.path().join("calls");
    compiled(&manifest.join("tests/calls.c"), &program);
    let output = Command::new(&program).env("WEIR_LINKS", "lo").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
