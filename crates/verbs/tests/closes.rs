//! Runs `tests/c/closes.c`: the program closes descriptors that it has not opened.

mod system;

use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn functions_of_the_c_library_spare_the_descriptors_of_weir() {
    for way in ["range", "from", "loop", "dup"] {
        system::check("closes", &[way], &[]);
    }
}

/// The file of a capture stays open, and goes on to be written.
#[test]
fn a_capture_goes_on() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("closes.pcapng");
    let name = file.to_str().unwrap();
    let _ = fs::remove_file(&file);
    system::check("closes", &["range"], &[("WEIR_CAPTURE", name)]);
    let size = fs::metadata(&file).unwrap().len();
    assert!(size > 10_000_000, "{size} bytes of 20 MB of transfers");
}

#[test]
fn system_calls_that_close_the_descriptors_of_weir_make_the_device_fail() {
    let program = system::compile("closes.c", "closes_raw", &["-libverbs", "-pthread"]);
    for way in ["waits", "polls"] {
        let mut command = Command::new("timeout");
        command.arg("240").arg(&program).args(["weir_lo", way]);
        command.env("LD_LIBRARY_PATH", system::linked()).env("WEIR_INTERFACE", "lo").env("WEIR_LOG", "warn");
        // One more file that could be written to.
        command.env("WEIR_CAPTURE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("closes_raw.pcapng"));
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, log) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && system::passed(&out), "{way}: {}\n{out}{log}", output.status);
        let lines = log.lines().filter(|line| line.contains("the program has closed descriptors of Weir"));
        assert_eq!(lines.filter(|line| line.contains("weir_lo: DEVICE_FATAL")).count(), 1, "{way}: {log}");
    }
}
