//! Programs with the guards of `weir run --guard` between them and Weir's library: nothing changes for them.

mod system;

use std::path::{Path, PathBuf};
use std::process::Command;

/// The layer, which cargo builds for this test.
fn layer() -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let path = deps.join("libweir_layer.so");
    assert!(path.is_file(), "{} does not exist", path.display());
    path
}

/// A program under guards; `doctor`: `weir doctor` observes it, too.
fn guarded(program: &Path, arguments: &[&str], doctor: Option<&Path>) -> String {
    let mut command = Command::new("timeout");
    command.arg("120").arg(program).args(arguments);
    command.env("LD_LIBRARY_PATH", system::linked()).env("WEIR_INTERFACE", "lo");
    command.env("LD_PRELOAD", layer()).env("WEIR_GUARD", "auto");
    if let Some(folder) = doctor {
        command.env(weir_doctor::layout::VARIABLE, folder);
    }
    let output = command.output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(error, "", "the layer prints nothing");
    out
}

/// Programs that check every call by themselves.
#[test]
fn programs_behave_as_without_guards() {
    for (name, arguments, options) in [
        ("objects", &["weir_lo", "1"][..], &["-libverbs", "-pthread"][..]),
        ("answers", &["weir_lo"], &["-libverbs", "-pthread"]),
        ("tags", &["weir_lo", "1"], &["-libverbs", "-pthread"]),
        ("cancel", &["weir_lo", "1", "100"], &["-libverbs", "-pthread", "-rdynamic", "-ldl"]),
        ("layered", &["exit"], &["-libverbs", "-ldl"]),
        ("layered", &["fork"], &["-libverbs", "-ldl"]),
        ("layered", &["limits"], &["-libverbs", "-ldl"]),
        ("layered_opened", &["exit"], &["-DOPENED", "-ldl"]),
    ] {
        let source = name.strip_suffix("_opened").unwrap_or(name);
        let program = system::compile(&format!("{source}.c"), &format!("guarded_{name}"), options);
        let out = guarded(&program, arguments, None);
        assert!(system::passed(&out), "{name} {arguments:?}: {out}");
    }
}

/// The guards give a CQ more entries than the program asked for: only a program that overflows it can tell.
#[test]
fn requests_that_are_built_call_by_call_complete() {
    let program = system::compile("extended.c", "guarded_builder", &["-libverbs", "-pthread"]);
    let out = guarded(&program, &["weir_lo"], None);
    let failed: Vec<&str> = out.lines().filter(|line| line.starts_with("failed")).collect();
    let of_overflow =
        |line: &&str| line.contains("overfl") || line.contains(" came: success") || line.contains("state 3");
    assert!(failed.iter().all(of_overflow) && failed.len() == 7, "{out}");
}

#[test]
fn weir_doctor_sees_what_the_program_sees() {
    let folder = tempfile::tempdir().unwrap();
    let program = system::compile("layered.c", "guarded_observed", &["-libverbs", "-ldl"]);
    let out = guarded(&program, &["exit"], Some(folder.path()));
    assert!(system::passed(&out), "{out}");
    let files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let traces: Vec<_> =
        files.map(|path| weir_doctor::trace::read(&std::fs::read(path).unwrap(), None).unwrap()).collect();
    let [trace] = &traces[..] else { panic!("{} files", traces.len()) };
    assert_eq!(trace.unmatched, 0);
    let (posted, completed) = trace.qps.iter().fold((0, 0), |sum, qp| (sum.0 + qp.posted, sum.1 + qp.completed));
    assert!(posted > 200 && completed > 100, "{posted} posted, {completed} completed");
}
