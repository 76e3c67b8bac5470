//! Runs `tests/c/verify.c` as two processes over the loopback device: checks every byte and completion status of RC.

mod system;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

#[test]
fn every_byte_and_status_is_correct() {
    let program = compiled("good");
    run_pair(&program, &["-s", "11"], &[]);
}

#[test]
fn every_byte_and_status_is_correct_over_a_bad_link() {
    let program = compiled("bad");
    let faults = "loss=0.01,reorder=0.01,dup=0.01,corrupt=0.001,seed=5";
    run_pair(&program, &["-l", "-s", "12", "-n", "100", "-m", "65536", "-t", "30"], &[("WEIR_FAULTS", faults)]);
}

/// Both sides must succeed, and neither may write to stderr.
fn run_pair(program: &Path, options: &[&str], env: &[(&str, &str)]) {
    // This port is free now, and is assumed to be free still when the server binds it.
    let port =
        TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0")).unwrap().local_addr().unwrap().port();
    let side = |host: Option<&str>| -> Child {
        Command::new("timeout")
            .arg("120")
            .arg(program)
            .args(["-d", "weir_lo", "-p", &port.to_string()])
            .args(options)
            .args(host)
            .env("LD_LIBRARY_PATH", system::linked())
            .env("WEIR_INTERFACE", "lo")
            .envs(env.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let (server, client) = (side(None), side(Some("localhost")));
    for child in [client, server] {
        let output = child.wait_with_output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}\n{out}{err}", output.status);
        assert!(system::passed(&out), "{out}");
        assert_eq!(err, "");
    }
}

/// Compiles the program under a name per test, because the tests run in parallel.
fn compiled(test: &str) -> PathBuf {
    system::compile("verify.c", &format!("verify-{test}"), &["-libverbs"])
}
