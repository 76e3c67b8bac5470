//! Runs `tests/c/cancel.c`: `pthread_cancel` of threads inside verbs.

mod system;

#[test]
fn cancelled_threads_end_and_the_others_continue() {
    let options = ["-libverbs", "-pthread", "-rdynamic", "-ldl"];
    let program = system::compile("cancel.c", "cancel", &options);
    let folder = tempfile::tempdir().unwrap();
    for (log, count) in [("off", "1000"), ("debug", "200")] {
        let mut timed = std::process::Command::new("timeout");
        timed
            .arg("120")
            .arg(&program)
            .args(["weir_lo", "1", count])
            .env("LD_LIBRARY_PATH", system::linked())
            .env("WEIR_INTERFACE", "lo");
        // With a log, calls write to it in the middle of their work.
        timed.env("WEIR_LOG", log).env("WEIR_LOG_FILE", folder.path().join("log"));
        timed.env("WEIR_RUN_DIR", folder.path().join("run"));
        let out = system::run(&mut timed);
        assert!(system::passed(&out), "log {log}: {out}");
    }
}
