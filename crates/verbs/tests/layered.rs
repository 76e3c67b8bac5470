//! Programs with the layer of `weir doctor` between them and Weir's library: what the layer sees, and that it changes
//! nothing.

mod system;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use weir_doctor::detect::detect;
use weir_doctor::finding::Kind;
use weir_doctor::layout;
use weir_doctor::trace::{self, Trace};

/// The layer, which cargo builds for this test.
fn layer() -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let path = deps.join("libweir_layer.so");
    assert!(path.is_file(), "{} does not exist", path.display());
    path
}

/// A program under the layer.
struct Watched {
    output: Output,
    traces: Vec<Trace>,
}

fn watch(program: &PathBuf, arguments: &[&str]) -> Watched {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("timeout");
    command.arg("120").arg(program).args(arguments);
    command.env("LD_LIBRARY_PATH", system::linked()).env("WEIR_INTERFACE", "lo");
    command.env("LD_PRELOAD", layer()).env(layout::VARIABLE, folder.path());
    let output = command.output().unwrap();
    // A process that a signal ends has run until now.
    let killed = output.status.signal().is_some() || output.status.code() == Some(137);
    let ended = killed.then(|| weir_device::now().0);
    let files = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut traces: Vec<Trace> = files.map(|path| trace::read(&fs::read(path).unwrap(), ended).unwrap()).collect();
    traces.sort_by_key(|trace| trace.start_unix_ns);
    Watched { output, traces }
}

fn passed(watched: &Watched) {
    let out = String::from_utf8_lossy(&watched.output.stdout);
    let error = String::from_utf8_lossy(&watched.output.stderr);
    assert!(system::passed(&out), "{out}{error} {}", watched.output.status);
    assert_eq!(error, "", "the layer prints nothing");
}

/// What each process of `layered.c` did.
fn as_posted(trace: &Trace) {
    let [sender, receiver] = &trace.qps[..] else { panic!("{} QPs", trace.qps.len()) };
    // 100 WRITEs without a completion of their own, as many READs, then 16 WRITEs that fit, and a SEND.
    assert_eq!((sender.posted, sender.completed, sender.failed), (217, 117, 0));
    assert_eq!((receiver.posted, receiver.received), (0, 1));
    assert_eq!((sender.number, sender.peer), (receiver.peer, receiver.number));
    assert_eq!((sender.min_rnr_timer, sender.timeout, sender.retry_cnt, sender.rnr_retry), (16, 14, 7, 7));
    assert_eq!((sender.device.as_str(), trace.unmatched, trace.pinned, trace.pinned_bytes), ("weir_lo", 0, 1, 65536));
    // The SEND waits for 60 ms until there is a receive.
    let sends: Vec<_> = trace.requests.iter().filter(|request| request.opcode == 2).collect();
    assert!(sends.len() == 1 && (50_000_000..5_000_000_000).contains(&sends[0].late()), "{sends:?}");
    assert!(trace.requests.iter().all(|request| request.odp == (request.opcode == 4)), "{:?}", trace.requests);
    let [source] = &trace.sources[..] else { panic!("{:?}", trace.sources) };
    assert_eq!((source.regions, source.bytes, source.implicit), (1, 65536, false));
    assert!(source.path.contains("layered"), "{}", source.path);
}

/// The program is linked with libibverbs, or opens it by itself.
fn programs() -> [PathBuf; 2] {
    let linked = system::compile("layered.c", "layered_linked", &["-libverbs", "-ldl"]);
    [linked, system::compile("layered.c", "layered_opened", &["-DOPENED", "-ldl"])]
}

#[test]
fn a_request_is_not_late_by_what_was_before_it_without_a_completion() {
    let [linked, _] = programs();
    let watched = watch(&linked, &["silent"]);
    passed(&watched);
    let trace = &watched.traces[0];
    assert_eq!((trace.qps[0].posted, trace.qps[0].completed), (219, 118));
    // The SEND of all modes waits for 60 ms, and a busy machine makes page faults longer.
    let findings = detect(trace);
    assert!(findings.iter().all(|finding| finding.cost_ns < 300_000_000), "{findings:?}");
    let late: Vec<_> = trace.requests.iter().filter(|request| request.done - request.begun >= 300_000_000).collect();
    assert!(late.is_empty(), "{late:?}");
}

#[test]
fn requests_completions_and_memory_are_seen_however_the_process_ends() {
    for program in programs() {
        for mode in ["exit", "_exit", "kill"] {
            let watched = watch(&program, &[mode]);
            if mode == "kill" {
                assert_eq!(watched.output.status.code().or(watched.output.status.signal().map(|s| 128 + s)), Some(137));
                assert!(system::passed(&String::from_utf8_lossy(&watched.output.stdout)), "{:?}", watched.output);
            } else {
                passed(&watched);
            }
            assert_eq!(watched.traces.len(), 1, "{mode}");
            as_posted(&watched.traces[0]);
        }
    }
}

#[test]
fn a_forked_child_has_a_file_of_its_own() {
    for program in programs() {
        let watched = watch(&program, &["fork"]);
        passed(&watched);
        assert_eq!(watched.traces.len(), 2);
        assert_ne!(watched.traces[0].pid, watched.traces[1].pid);
        watched.traces.iter().for_each(as_posted);
    }
}

#[test]
fn a_request_that_is_open_when_the_process_is_killed_is_seen() {
    for program in programs() {
        let trace = watch(&program, &["open"]).traces.remove(0);
        let open: Vec<_> = trace.requests.iter().filter(|request| request.open).collect();
        // The READ, not the earlier WRITE without a completion.
        assert!(open.len() == 1 && open[0].opcode == 4, "{open:?}");
        assert!((300_000_000..5_000_000_000).contains(&open[0].late()), "{open:?}");
        let findings = detect(&trace);
        assert!(findings.iter().any(|finding| finding.kind == Kind::Timeout), "{findings:?}");
    }
}

/// Programs that check every call by themselves.
#[test]
fn programs_behave_as_without_the_layer() {
    for (name, arguments, options) in [
        ("extended", &["weir_lo"][..], &["-libverbs", "-pthread"][..]),
        ("objects", &["weir_lo", "1"], &["-libverbs", "-pthread"]),
        ("answers", &["weir_lo"], &["-libverbs", "-pthread"]),
        ("tags", &["weir_lo", "1"], &["-libverbs", "-pthread"]),
        ("cancel", &["weir_lo", "1", "200"], &["-libverbs", "-pthread", "-rdynamic", "-ldl"]),
    ] {
        let program = system::compile(&format!("{name}.c"), &format!("layered_{name}"), options);
        let watched = watch(&program, arguments);
        let out = String::from_utf8_lossy(&watched.output.stdout);
        assert!(system::passed(&out), "{name}: {out}{}", String::from_utf8_lossy(&watched.output.stderr));
        assert!(watched.traces.iter().any(|trace| !trace.qps.is_empty()), "{name}: nothing was seen");
    }
}

#[test]
fn requests_that_are_built_call_by_call_are_seen() {
    let program = system::compile("extended.c", "layered_builder", &["-libverbs", "-pthread"]);
    let watched = watch(&program, &["weir_lo"]);
    let trace = &watched.traces[0];
    let posted: u64 = trace.qps.iter().map(|qp| qp.posted).sum();
    let completed: u64 = trace.qps.iter().map(|qp| qp.completed).sum();
    assert!(posted > 50 && completed > 50, "{posted} posted, {completed} completed");
    assert_eq!(trace.unmatched, 0);
}

#[test]
fn requests_that_the_library_refuses_are_refused_and_a_childs_too() {
    let [linked, _] = programs();
    let watched = watch(&linked, &["limits"]);
    passed(&watched);
    // The child has no file: it opened no device.
    let [trace] = &watched.traces[..] else { panic!("{} files", watched.traces.len()) };
    assert!(trace.qps.iter().all(|qp| qp.posted == qp.completed || qp.posted == 217), "{:?}", trace.qps);
}

#[test]
fn a_file_that_cannot_be_made_changes_nothing() {
    let [linked, _] = programs();
    let folder = tempfile::tempdir().unwrap();
    for (script, folder, files) in [
        // SIGXFSZ would end it.
        ("ulimit -f 1000; exec timeout 60 $PROGRAM exit", folder.path(), 1),
        ("exec timeout 60 $PROGRAM exit", std::path::Path::new("/no/such/folder"), 0),
    ] {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("PROGRAM", &linked).env("LD_PRELOAD", layer());
        command.env("LD_LIBRARY_PATH", system::linked()).env("WEIR_INTERFACE", "lo").env(layout::VARIABLE, folder);
        assert!(system::passed(&system::run(&mut command)), "{script}");
        let left = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().metadata().unwrap().len());
        assert_eq!(left.collect::<Vec<_>>(), vec![0; files], "an empty file says that there was no room");
    }
}

#[test]
fn without_the_variable_nothing_is_written() {
    let [linked, _] = programs();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("timeout");
    command.arg("60").arg(linked).arg("exit").current_dir(folder.path()).env_remove(layout::VARIABLE);
    command.env("LD_LIBRARY_PATH", system::linked()).env("WEIR_INTERFACE", "lo").env("LD_PRELOAD", layer());
    assert!(system::passed(&system::run(&mut command)));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
