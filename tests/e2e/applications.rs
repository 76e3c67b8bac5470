//! What ArgoDSM over MPI and SparkUCX do by UCX, in small: `ucx_applications.c`, unmodified UCX, with memory that is
//! registered on demand and without.

use crate::analyze::analyze;
use crate::bed::{Bed, Topology, WEIR};
use crate::stat::{json, until};
use crate::{fork, trial};
use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use weir_stage::{Child, Side};

/// More than any run takes.
const LIMIT: Duration = Duration::from_secs(60);
/// No ACK timeout of UCX's C_ACK of 18 is shorter, s.
const TIMEOUT: f64 = 1.0;
const TRIES: usize = 8;

/// ArgoDSM's READ in T fig 6.2 is repeated after 4.8 ms, by UCX's RNR delay of 0.96 ms. Its page comes after 7.18 ms.
/// Here the page comes after 15 ms, so that the READ is repeated before that even if a thread is late. A replay takes
/// 2 ms instead of 80 µs: the SEND of a process leaves later than that. `weir analyze` takes a second response for a
/// replay's only within 3 ms of the first.
const LATE_PAGE: &str = "about = \"ConnectX-4 with a late page\"\nbase = \"connectx4\"\n
[adapter]\nrepeated_read_us = 2000\n
[page_faults]\nresolve_us = 15000\n";

/// Pages that the client locks. With guards, more than there may be open dummies: those of a page must not stay open.
const PAGES: u64 = 2;
const GUARDED_PAGES: u64 = 24;
/// Threads of the shuffle, and blocks of each.
const THREADS: u64 = 4;
const BLOCKS: u64 = 8;

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial(Topology::Loopback, "UCX as ArgoDSM's locks use it: no timeout with pinned memory", pinned_lock),
        trial(Topology::Loopback, "UCX as ArgoDSM's locks use it: a SEND is dammed with ODP", dammed_lock),
        trial(Topology::Loopback, "UCX as ArgoDSM's locks use it: --guard auto with ODP", guarded_lock),
        trial(Topology::Loopback, "UCX as SparkUCX uses it: weir doctor names libuct_ib", doctor),
    ];
    for profile in ["connectx4", "connectx6", "ideal"] {
        let name = format!("UCX as SparkUCX uses it: every byte as {profile} with ODP");
        trials.push(trial(Topology::Loopback, &name, move |bed| shuffle(bed, profile)));
    }
    let has_headers = Path::new("/usr/include/ucp/api/ucp.h").exists();
    let needing = |trial: Trial| trial.with_kind("needs libucx-dev").with_ignored_flag(true);
    trials.into_iter().map(|trial| if has_headers { trial } else { needing(trial) }).collect()
}

/// The server may be off its core for as long as an ACK timeout, so one of eight tries must have none.
fn pinned_lock(bed: &Bed) -> Result<()> {
    one_of(TRIES, || {
        let lock = Lock::run(bed, PAGES, &[], &[])?;
        ensure!(lock.cost("damming").is_none(), "damming with pinned memory: {lock:?}");
        Ok((lock.cost("timeout").is_none(), lock))
    })
}

/// A thread that is late by more than the times of the profile leave avoids the flaw, and one that is late in a replay
/// hides it from `weir analyze`. So one of eight tries must show it.
fn dammed_lock(bed: &Bed) -> Result<()> {
    one_of(TRIES, || {
        let lock = Lock::run(bed, PAGES, &[], &[ON_DEMAND])?;
        Ok((lock.seconds > TIMEOUT && lock.cost("damming") > Some(TIMEOUT), lock))
    })
}

/// A SEND is lost, and a dummy READ reveals it, although UCX asks for a completion of one SEND in 64 only.
fn guarded_lock(bed: &Bed) -> Result<()> {
    one_of(TRIES, || {
        let lock = Lock::run(bed, GUARDED_PAGES, &["--guard", "auto"], &[ON_DEMAND])?;
        let is_revealed = lock.cost("damming").is_some_and(|cost| cost < TIMEOUT) && lock.cost("timeout").is_none();
        Ok((is_revealed, lock))
    })
}

/// Repeats a run until it shows what is expected.
fn one_of(tries: usize, run: impl Fn() -> Result<(bool, Lock)>) -> Result<()> {
    let mut all = vec![];
    for _ in 0..tries {
        let (shows, lock) = run()?;
        if shows {
            return Ok(());
        }
        all.push(lock);
    }
    bail!("none of {tries} tries: {all:?}")
}

fn shuffle(bed: &Bed, profile: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let run = Run { profile, environment: &[ON_DEMAND], ..Run::shuffle(folder.path()) };
    let mut both = run.start(bed)?;
    run.client_report(&mut both)?;
    for child in &both {
        // A process publishes its counters several times in a second.
        until("page faults, and a QP for each thread", || {
            let process = json(&[&child.pid().to_string()])?;
            let qps = process["devices"][0]["qps"].as_u64();
            let faults = process["paging"]["page_faults_handled"].as_u64();
            Ok((faults > Some(0) && qps > Some(THREADS) && process["region_count"] == 1).then_some(()))
        })?;
    }
    run.end(both)
}

fn doctor(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let report = folder.path().join("report");
    let watch = [WEIR, "doctor", "--json", "--output", report.to_str().context("UTF-8")?, "--"];
    let run = Run { around_client: &watch, environment: &[ON_DEMAND], ..Run::shuffle(folder.path()) };
    let mut both = run.start(bed)?;
    run.client_report(&mut both)?;
    run.end(both)?;
    let report: Value = serde_json::from_str(&std::fs::read_to_string(report)?)?;
    let process = &report["processes"][0];
    let findings = process["findings"].as_array().context("no findings")?;
    let finding = findings.iter().find(|finding| finding["kind"] == "on_demand").context("no finding on_demand")?;
    ensure!(finding["what"].as_str().is_some_and(|what| what.starts_with("libuct_ib.so")), "{finding}");
    ensure!(process["on_demand"][0]["implicit"] == true, "{process}");
    Ok(())
}

/// A run of the pattern `lock`.
#[derive(Debug)]
struct Lock {
    seconds: f64,
    /// What `weir analyze` finds in the client's capture: kind and cost, s.
    findings: Vec<(String, f64)>,
}

impl Lock {
    fn run(bed: &Bed, pages: u64, options: &[&str], environment: &[(&str, &str)]) -> Result<Lock> {
        let folder = tempfile::tempdir()?;
        let profile = folder.path().join("late.toml");
        std::fs::write(&profile, LATE_PAGE)?;
        let capture = folder.path().join("weir-%p.pcapng");
        let options = [&["--capture", capture.to_str().context("UTF-8")?], options].concat();
        let run = Run {
            pattern: "lock",
            count: pages,
            threads: 1,
            profile: profile.to_str().context("UTF-8")?,
            options: &options,
            environment,
            around_client: &[],
            folder: folder.path(),
        };
        let mut both = run.start(bed)?;
        let client = both[1].pid().to_string();
        let seconds = run.client_report(&mut both)?;
        run.end(both)?;
        let shown = analyze(&["--json", &capture.to_string_lossy().replace("%p", &client)])?;
        let document: Value = serde_json::from_str(&shown.stdout).with_context(|| shown.printed())?;
        let of = |finding: &Value| Some((finding["kind"].as_str()?.to_owned(), finding["cost_ns"].as_f64()? / 1e9));
        let findings = document["findings"].as_array().and_then(|all| all.iter().map(of).collect());
        Ok(Lock { seconds, findings: findings.with_context(|| shown.printed())? })
    }

    fn cost(&self, kind: &str) -> Option<f64> {
        self.findings.iter().find(|(found, _)| found == kind).map(|(_, cost)| *cost)
    }
}

/// UCX up to 1.14 makes all memory of the process one implicit ODP region.
const ON_DEMAND: (&str, &str) = ("UCX_IB_REG_METHODS", "odp");

/// A server and a client of `ucx_applications.c`.
struct Run<'a> {
    pattern: &'a str,
    /// Of a thread.
    count: u64,
    threads: u64,
    profile: &'a str,
    /// Of `weir run`.
    options: &'a [&'a str],
    environment: &'a [(&'a str, &'a str)],
    /// Words before the client's command.
    around_client: &'a [&'a str],
    /// For the files of both.
    folder: &'a Path,
}

impl<'a> Run<'a> {
    fn shuffle(folder: &'a Path) -> Run<'a> {
        Run {
            pattern: "shuffle",
            count: BLOCKS,
            threads: THREADS,
            profile: "ideal",
            options: &[],
            environment: &[],
            around_client: &[],
            folder,
        }
    }

    /// Starts the server and the client.
    fn start(&self, bed: &Bed) -> Result<[Child; 2]> {
        let program = program()?;
        let program = program.to_str().context("UTF-8")?;
        let options = [&["--mpi", "off", "--profile", self.profile], self.options].concat();
        let folder = self.folder.to_str().context("UTF-8")?;
        let numbers = [self.count, self.threads].map(|number| number.to_string());
        let server = [program, "server", self.pattern, folder];
        let client = [program, "client", self.pattern, folder, &numbers[0], &numbers[1]];
        let client = [self.around_client, &client].concat();
        let spawn = |side: Side, words: &[&str], name: &str| {
            let mut command = bed.weir(side, &options, words);
            command.envs(self.environment.iter().copied()).env("UCX_TLS", "rc,ud,self");
            Child::spawn(command.env("UCX_NET_DEVICES", format!("{}:1", bed.stage.device())), name)
        };
        Ok([spawn(Side::A, &server, "server")?, spawn(Side::B, &client, "client")?])
    }

    /// Waits for the client's line. Every byte must be right. Returns the seconds of the client's slowest thread.
    fn client_report(&self, both: &mut [Child; 2]) -> Result<f64> {
        let until = Instant::now() + LIMIT;
        let line = loop {
            let line = both[1].output(0)?;
            if line.ends_with(b"\n") {
                break line;
            }
            for child in both.iter_mut() {
                ensure!(child.poll()?.is_none() && Instant::now() < until, "{}", child.printed()?);
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let report: Value = serde_json::from_slice(&line)?;
        let operations = 2 * self.count * self.threads;
        ensure!(report["wrong"] == 0 && report["operations"] == operations, "{report}");
        report["seconds"].as_f64().with_context(|| report.to_string())
    }

    /// Lets both end, with status 0.
    fn end(&self, both: [Child; 2]) -> Result<()> {
        std::fs::write(self.folder.join("end"), "")?;
        for child in both {
            child.wait(LIMIT)?.success()?;
        }
        Ok(())
    }
}

/// The compiled program, the same for all trials.
fn program() -> Result<&'static Path> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let compiled = PROGRAM.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let compile = || -> Result<PathBuf> {
            // Another run of the tests may use the file at this moment.
            let own = tempfile::tempdir_in(folder)?;
            let made = fork::compile_with("e2e/ucx_applications.c", own.path(), &["-lucp", "-lucs"])?;
            let program = folder.join("ucx_applications");
            std::fs::rename(made, &program)?;
            Ok(program)
        };
        compile().map_err(|error| format!("{error:#}"))
    });
    compiled.as_deref().map_err(|error| anyhow::Error::msg(error.clone()))
}
