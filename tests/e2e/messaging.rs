//! libfabric's provider `weir-odp`: found and chosen by `weir run`, under fi_pingpong and Open MPI, with each scheme.
//!
//! `tests/c/mpi.c` and `tests/c/mpi_random.c` check every byte. The summary that each rank prints shows that its messages
//! went by the provider.

use crate::bed::{Bed, Topology, WEIR};
use crate::trial;
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use weir_stage::pair;
use weir_stage::{Child, Side};

const TIMEOUT: Duration = Duration::from_secs(60);
/// All ranks end with the launcher: they have process groups of their own.
const ALONE: [&str; 4] = ["unshare", "--pid", "--fork", "--kill-child"];
/// The tests run as root in containers; ranks share two cores.
const MPIRUN: [&str; 4] = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np"];

/// A run of `mpi_random.c`.
#[derive(Clone, Copy)]
struct Run {
    scheme: &'static str,
    rendezvous: &'static str,
    ranks: u32,
    faults: Option<&'static str>,
}

pub fn trials(whole: bool) -> Vec<Trial> {
    let mut trials = vec![
        trial(Topology::Loopback, "weir-odp: fi_info shows it", shown),
        trial(Topology::Loopback, "weir-odp: Open MPI, every operation, 2 ranks", |bed| every_operation(bed, 2)),
        trial(Topology::Loopback, "weir-odp: a wrong setting is named", wrong_setting),
        trial(Topology::Loopback, "weir-odp: each endpoint its own scheme", own_schemes),
        trial(Topology::Loopback, "weir-odp: a program with all schemes side by side", side_by_side),
    ];
    for (mode, topology) in [("msg", Topology::Loopback), ("tagged", Topology::Veth)] {
        trials.push(trial(topology, &format!("weir-odp: fi_pingpong, {mode}"), move |bed| pingpong(bed, mode)));
    }
    for run in runs(whole) {
        let Run { scheme, rendezvous, ranks, faults } = run;
        let faulty = faults.map(|faults| format!(", {faults}")).unwrap_or_default();
        let name = format!("weir-odp: Open MPI, random, {scheme} by {rendezvous}, {ranks} ranks{faulty}");
        trials.push(trial(Topology::Loopback, &name, move |bed| random(bed, &run)));
    }
    trials
}

/// Each scheme, each way of rendezvous, loss and 2 to 8 ranks; if not `whole`, a representative of each.
fn runs(whole: bool) -> Vec<Run> {
    let run = |scheme, rendezvous, ranks, faults| Run { scheme, rendezvous, ranks, faults };
    const LOSS: Option<&str> = Some("loss=0.01,seed=5");
    if !whole {
        return vec![
            run("pin-down", "write", 2, None),
            run("odp-native", "write", 2, LOSS),
            run("odp-enhanced", "read", 2, None),
            run("odp-optimal", "read", 4, None),
            run("odp-optimal", "write", 2, LOSS),
        ];
    }
    let mut runs = Vec::new();
    for scheme in ["pin-down", "odp-native", "odp-enhanced", "odp-optimal"] {
        for rendezvous in ["read", "write"] {
            runs.extend([2, 4, 8].map(|ranks| run(scheme, rendezvous, ranks, None)));
            runs.push(run(scheme, rendezvous, 2, LOSS));
        }
    }
    runs
}

fn shown(bed: &Bed) -> Result<()> {
    let mut command = bed.weir(Side::A, &[], ["fi_info", "-p", "weir-odp"]);
    let ended = Child::spawn(&mut command, "fi_info")?.wait(TIMEOUT)?.success()?;
    for line in ["provider: weir-odp", &format!("domain: {}", bed.stage.device()), "type: FI_EP_RDM"] {
        ensure!(ended.stdout.lines().any(|printed| printed.trim() == line), "no {line}: {}", ended.printed());
    }
    Ok(())
}

fn wrong_setting(bed: &Bed) -> Result<()> {
    let mut command = bed.weir(Side::A, &[], ["fi_info", "-p", "weir-odp"]);
    command.env("WEIR_ODP_SCHEME", "pinned");
    let ended = Child::spawn(&mut command, "fi_info")?.wait(TIMEOUT)?;
    ensure!(!ended.status.success() && ended.stderr.contains("WEIR_ODP_SCHEME"), "{}", ended.printed());
    ensure!(ended.stderr.contains("pin-down, odp-enhanced, odp-optimal, odp-native"), "{}", ended.printed());
    Ok(())
}

/// Two endpoints of a process that choose schemes by `fi_setopt`.
fn own_schemes(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = compile("cc", "fabric_schemes.c", folder.path())?;
    let mut command = bed.weir(Side::A, &[], [program]);
    command.env("WEIR_ODP_SUMMARY", "1");
    let ended = Child::spawn(&mut command, "fabric_schemes")?.wait(TIMEOUT)?.success()?;
    ensure!(ended.stdout.trim() == "ok", "{}", ended.printed());
    for scheme in ["pin-down", "odp-native"] {
        ensure!(ended.stderr.contains(&format!("scheme {scheme},")), "no {scheme}: {}", ended.printed());
    }
    Ok(())
}

/// `weir bench schemes` with LAMMPS: all schemes have the same atoms, on-demand paging pins less, and only `odp-native`
/// leaves pages to be faulted in.
fn side_by_side(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let input = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/src/schemes/in.lj");
    let root = nix::unistd::geteuid().is_root();
    let mut command = bed.bare(Side::A, WEIR);
    command.args(["bench", "schemes", "--json", "--rounds", "1", "--after", "Loop time of", "--"]);
    command.args(ALONE.iter().filter(|_| root)).args(MPIRUN).args(["4", "lmp", "-log", "none", "-var", "steps", "10"]);
    command.arg("-in").arg(input).env("TMPDIR", folder.path()).env("WEIR_RUN_DIR", folder.path());
    let ended = Child::spawn(&mut command, "weir bench schemes")?.wait(Duration::from_secs(240))?.success()?;
    let reports: serde_json::Value = serde_json::from_str(&ended.stdout)?;
    let of = |scheme: &str, name: &str| {
        let rows = reports[0]["rows"].as_array()?;
        rows.iter().find(|row| row["scheme"] == scheme)?["runs"][0][name].as_f64()
    };
    for scheme in ["pin-down", "odp-native", "odp-enhanced", "odp-optimal"] {
        let ran = of(scheme, "processes") == Some(4.0) && of(scheme, "seconds") > Some(0.0);
        ensure!(ran && of(scheme, "rendezvous") > Some(0.0), "{scheme}: {}", ended.printed());
        let pins_less = of(scheme, "pinned_peak") < of("pin-down", "pinned_peak");
        ensure!(pins_less == (scheme != "pin-down"), "{scheme} pins: {}", ended.printed());
        let prefetches = scheme == "odp-enhanced" || scheme == "odp-optimal";
        ensure!((of(scheme, "prefetches") > Some(0.0)) == prefetches, "{scheme} prefetches: {}", ended.printed());
    }
    let faults = |scheme: &str| of(scheme, "page_faults").unwrap_or(f64::NAN);
    let (native, optimal) = (faults("odp-native"), faults("odp-optimal"));
    ensure!(faults("pin-down") == 0.0 && native > 20.0 && optimal < native / 2.0, "page faults: {}", ended.printed());
    Ok(())
}

/// fi_pingpong checks the bytes of all sizes that it sends.
fn pingpong(bed: &Bed, mode: &str) -> Result<()> {
    let bed = &Bed { stage: bed.stage.unpinned() };
    let (port, address) = (bed.stage.free_port(Side::A)?, bed.stage.address(Side::A).to_string());
    let line = format!("fi_pingpong -p weir-odp -e rdm -m {mode} -c -I 30");
    let words = |port: [&str; 2], address: &[&str]| -> Vec<String> {
        line.split(' ').chain(port).chain(address.iter().copied()).map(str::to_owned).collect()
    };
    let number = port;
    let port = port.to_string();
    let mut server = bed.weir(Side::A, &[], words(["-B", &port], &[]));
    let mut client = bed.weir(Side::B, &[], words(["-P", &port], &[&address]));
    let outcome = pair::run(&mut server, &mut client, number, TIMEOUT)?.success()?;
    for size in ["64", "4k", "64k", "1m"] {
        let line = outcome.client.stdout.lines().find(|line| line.starts_with(&format!("{size} ")));
        ensure!(line.is_some(), "no line for {size}: {}", outcome.client.printed());
    }
    Ok(())
}

fn every_operation(bed: &Bed, ranks: u32) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = compile("mpicc.openmpi", "mpi.c", folder.path())?;
    let printed = launch(bed, folder.path(), &[], ranks, &[program.to_str().context("a path in UTF-8")?], &[])?;
    check(&printed, ranks, "odp-optimal")
}

fn random(bed: &Bed, run: &Run) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = compile("mpicc.openmpi", "mpi_random.c", folder.path())?;
    // A failure names the seed.
    let seed = std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), 0u8) as u32;
    let faults: Vec<&str> = run.faults.iter().flat_map(|faults| ["--faults", faults]).collect();
    let variables = [("WEIR_ODP_SCHEME", run.scheme), ("WEIR_ODP_RENDEZVOUS", run.rendezvous)];
    let words = [program.to_str().context("a path in UTF-8")?, &seed.to_string(), "16"];
    let printed =
        launch(bed, folder.path(), &faults, run.ranks, &words, &variables).with_context(|| format!("seed {seed}"))?;
    check(&printed, run.ranks, run.scheme)
}

/// Runs a program under Open MPI, which `weir run` tells to use the provider. Returns what the ranks print.
fn launch(
    bed: &Bed,
    folder: &Path,
    options: &[&str],
    ranks: u32,
    words: &[&str],
    variables: &[(&str, &str)],
) -> Result<String> {
    let root = nix::unistd::geteuid().is_root();
    let ranks = ranks.to_string();
    let mut all: Vec<&str> = ALONE.iter().copied().filter(|_| root).chain(MPIRUN).collect();
    all.push(&ranks);
    all.extend(words);
    let mut command = bed.weir(Side::A, options, all);
    command.env("WEIR_ODP_SUMMARY", "1").env("TMPDIR", folder).env("WEIR_RUN_DIR", folder);
    command.envs(variables.iter().copied());
    let ended = Child::spawn(&mut command, "mpirun")?.wait(Duration::from_secs(240))?.success()?;
    Ok(ended.printed())
}

/// The ranks are content, and each has sent messages by the provider, with this scheme.
fn check(printed: &str, ranks: u32, scheme: &str) -> Result<()> {
    ensure!(printed.lines().any(|line| line.trim().ends_with(&format!("ok {ranks}"))), "{printed}");
    let summaries = printed.lines().filter(|line| line.contains(&format!("scheme {scheme},"))).count();
    // Open MPI has two endpoints in each rank: one for messages, and one for windows.
    ensure!(summaries >= ranks as usize, "{summaries} summaries: {printed}");
    let sum = sums(printed);
    let of = |name: &str| sum.get(name).copied().unwrap_or(0);
    ensure!(of("eager") > 0 && of("rendezvous") > 0 && of("registrations") > 0, "{printed}");
    let prefetches = matches!(scheme, "odp-enhanced" | "odp-optimal");
    ensure!((of("prefetches") > 0) == prefetches, "{printed}");
    Ok(())
}

/// The sum of each counter over all summaries.
fn sums(printed: &str) -> HashMap<String, u64> {
    let mut sums = HashMap::new();
    for line in printed.lines() {
        let Some(rest) = line.split("weir-odp:").nth(1) else { continue };
        if let [name, value] = rest.split_whitespace().collect::<Vec<_>>()[..]
            && let Ok(value) = value.parse::<u64>()
        {
            *sums.entry(name.to_owned()).or_default() += value;
        }
    }
    sums
}

fn compile(compiler: &str, source: &str, folder: &Path) -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/c").join(source);
    let program = folder.join("program");
    let mut cc = Command::new(compiler);
    cc.args(["-O1", "-g", "-Wall", "-Wextra", "-o"]).arg(&program).arg(source).arg("-lfabric");
    let output = cc.output().with_context(|| format!("cannot run {compiler} (`make test` installs it)"))?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(program)
}
