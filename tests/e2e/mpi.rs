//! MPI programs over Weir: `tests/c/mpi.c` checks every byte of messages, collectives and one-sided windows.

use crate::bed::{Bed, Topology};
use crate::ucx::namespace;
use crate::{needing_root, trial};
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use weir_stage::{Child, Finished, Side};

/// Which MPI, over UCX or libfabric.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mpi {
    Open,
    /// Over libfabric.
    OpenFabric,
    Mpich,
}

pub fn trials(whole: bool) -> Vec<Trial> {
    let mut trials = vec![];
    for (mpi, name, transport, ranks) in [
        (Mpi::Open, "Open MPI", "rc", 2),
        (Mpi::Open, "Open MPI", "ud", 4),
        (Mpi::Mpich, "MPICH", "ud", 2),
        (Mpi::Mpich, "MPICH", "rc", 4),
        (Mpi::Mpich, "MPICH", "rc", 8),
        (Mpi::Open, "Open MPI", "rc", 8),
    ] {
        if ranks < 8 || whole || mpi == Mpi::Mpich {
            trials.push(trial(Topology::Loopback, &format!("{name}, {transport}, {ranks} ranks"), move |bed| {
                runs(bed, mpi, transport, ranks)
            }));
        }
    }
    for ranks in [2, 4] {
        // libfabric does not look at the interface `lo`.
        trials.push(trial(Topology::Veth, &format!("Open MPI, libfabric, one host, {ranks} ranks"), move |bed| {
            runs(bed, Mpi::OpenFabric, "verbs;ofi_rxm", ranks)
        }));
    }
    for (mpi, name, program) in [(Mpi::Mpich, "MPICH", "NPmpich2"), (Mpi::Open, "Open MPI", "NPopenmpi")] {
        if mpi == Mpi::Mpich || whole {
            trials.push(trial(Topology::Loopback, &format!("NetPIPE over {name}"), move |bed| {
                netpipe(bed, mpi, program)
            }));
        }
    }
    let root = nix::unistd::geteuid().is_root();
    let between = trial(Topology::Veth, "MPICH between two hosts, 4 ranks", between_hosts);
    trials.push(needing_root(between, root && Topology::Veth.missing().is_none()));
    trials
}

fn runs(bed: &Bed, mpi: Mpi, transport: &str, ranks: u32) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = compile(mpi, folder.path())?;
    let log = folder.path().join("log");
    let mut words = launcher(mpi, transport, ranks);
    words.push(program.to_str().context("a path in UTF-8")?.to_owned());
    ends_well(bed, &log, &words, ranks)
}

/// Every second rank runs in the other namespace.
fn between_hosts(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = compile(Mpi::Mpich, folder.path())?;
    let log = folder.path().join("log");
    let other = namespace(bed, Side::B)?;
    let other = format!("/proc/{}/fd/{}", std::process::id(), other.as_raw_fd());
    let program = program.display();
    let script = format!("[ $((PMI_RANK % 2)) = 0 ] && exec {program}; exec nsenter --net={other} {program}");
    let mut words = launcher(Mpi::Mpich, "rc", 4);
    words.extend(["sh".into(), "-c".into(), script]);
    ends_well(bed, &log, &words, 4)
}

/// NetPIPE compares every message that it sends, up to 16 KiB.
fn netpipe(bed: &Bed, mpi: Mpi, program: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (log, output) = (folder.path().join("log"), folder.path().join("np.out"));
    let mut words = launcher(mpi, "rc", 2);
    let output = output.to_str().context("a path in UTF-8")?;
    words.extend([program, "-i", "-u", "16384", "-o", output].map(str::to_owned));
    let ended = over_weir(bed, &log, &words, 2)?;
    let printed = ended.printed();
    let passed = printed.matches("Integrity check passed").count();
    ensure!(passed > 15 && !printed.contains("failed"), "{passed} sizes: {printed}");
    Ok(())
}

/// The ranks report success.
fn ends_well(bed: &Bed, log: &Path, words: &[String], ranks: u32) -> Result<()> {
    let ended = over_weir(bed, log, words, ranks)?;
    ensure!(ended.stdout.trim() == format!("ok {ranks}"), "{}", ended.printed());
    Ok(())
}

/// The program ends with status 0, and each of its ranks has sent something over Weir.
fn over_weir(bed: &Bed, log: &Path, words: &[String], ranks: u32) -> Result<Finished> {
    let root = nix::unistd::geteuid().is_root();
    let all: Vec<&str> = ALONE.iter().copied().filter(|_| root).chain(words.iter().map(String::as_str)).collect();
    let mut command = bed.weir(Side::A, &["--log", "info"], all);
    // Open MPI and Weir name files by process IDs, which other namespaces have too.
    let folder = log.parent().context("a path with a folder")?;
    command.env("WEIR_LOG_FILE", log).env("WEIR_RUN_DIR", folder).env("TMPDIR", folder);
    let ended = Child::spawn(&mut command, "mpirun")?.wait(Duration::from_secs(180))?.success()?;
    let log = std::fs::read_to_string(log)?;
    let device = format!(" {}: ", bed.stage.device());
    let sent = log.lines().filter(|line| line.contains(&device) && line.contains(" packets with "));
    let (used, unused): (Vec<&str>, Vec<&str>) = sent.partition(|line| !line.contains(" 0 packets with 0 bytes sent"));
    // mpirun itself opens the device where Open MPI is to use libfabric.
    let others = words.iter().any(|word| word == "ofi");
    ensure!(used.len() >= ranks as usize && (unused.is_empty() || others), "{ranks} ranks, and the log says:\n{log}");
    Ok(ended)
}

fn launcher(mpi: Mpi, transport: &str, ranks: u32) -> Vec<String> {
    let ranks = ranks.to_string();
    let line = match mpi {
        // An even length of the fragments: MPICH 4.0 cannot unpack derived types from fragments that cut a number, over
        // TCP neither.
        Mpi::Mpich if transport == "rc" => {
            format!("env UCX_TLS=rc,self UCX_RC_VERBS_SEG_SIZE=8257 mpirun.mpich -np {ranks}")
        }
        Mpi::Mpich => format!("env UCX_TLS={transport},self mpirun.mpich -np {ranks}"),
        Mpi::Open => format!("{OPEN} -np {ranks} --mca pml ucx --mca osc ucx -x UCX_TLS={transport},self"),
        Mpi::OpenFabric => format!(
            "{OPEN} -np {ranks} --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include {transport} \
             --mca osc pt2pt,rdma"
        ),
    };
    line.split(' ').map(str::to_owned).collect()
}

/// All ranks end with the launcher: they have process groups of their own.
const ALONE: [&str; 4] = ["unshare", "--pid", "--fork", "--kill-child"];

/// The tests run as root in containers; ranks share two cores.
const OPEN: &str = "mpirun.openmpi --allow-run-as-root --oversubscribe --mca btl self";

fn compile(mpi: Mpi, folder: &Path) -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/c/mpi.c");
    let program = folder.join("mpi");
    let compiler = if mpi == Mpi::Mpich { "mpicc.mpich" } else { "mpicc.openmpi" };
    let mut cc = Command::new(compiler);
    cc.args(["-O1", "-g", "-Wall", "-Wextra", "-o"]).arg(&program).arg(source);
    let output = cc.output().with_context(|| format!("cannot run {compiler} (`make test` installs it)"))?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(program)
}
