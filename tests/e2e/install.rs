//! `weir install`: on a machine to spoil with real programs, and below other roots what it refuses and restores.

use crate::bed::{Bed, Topology, WEIR, library};
use crate::users::{UNPRIVILEGED_USER, readable_copy};
use crate::{needing_root, trial};
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use weir_stage::{Child, Finished, Side};

const MANIFEST: &str = "usr/local/lib/weir-system/manifest.json";
const LINE: &str = "/usr/local/lib/weir-system/libibverbs.so.1\n";

type Test = fn(&Bed) -> Result<()>;

pub fn trials() -> Vec<Trial> {
    let root = nix::unistd::geteuid().is_root();
    let tests: [(&str, Test); 8] = [
        ("programs use Weir without weir run, and the removal leaves no trace", machine),
        ("without root, weir install says what to do", without_root),
        ("weir install never overwrites files of others", strangers),
        ("weir install refuses to hide RDMA adapters, and leaves their devices", adapters),
        ("weir install adds one line to ld.so.preload, and takes back this line alone", preload_line),
        ("weir install that cannot succeed leaves nothing", undone),
        ("weir install does without links in a read-only /dev", read_only_dev),
        ("files that were changed after weir install stay", changed),
    ];
    tests.map(|(name, test)| needing_root(trial(Topology::Loopback, name, test), root)).into()
}

fn machine(_: &Bed) -> Result<()> {
    let installation = tempfile::tempdir()?;
    let place = |path: &str| installation.path().join(path);
    fs::create_dir_all(place("bin"))?;
    fs::create_dir_all(place("lib/weir"))?;
    fs::copy(WEIR, place("bin/weir"))?;
    fs::copy(library().join("libibverbs.so.1"), place("lib/weir/libibverbs.so.1"))?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let mut command = Command::new(source.join("scripts/machine.sh"));
    command.arg("-b").arg(format!("{}:/mnt/weir", installation.path().display()));
    command.arg("/").arg(source.join("tests/e2e/install.sh"));
    Child::spawn(&mut command, "install.sh")?.wait(Duration::from_secs(120))?.success()?;
    Ok(())
}

fn without_root(bed: &Bed) -> Result<()> {
    let copy = readable_copy()?;
    let mut command = bed.bare(Side::A, "setpriv");
    command.env("WEIR_LIB_DIR", copy.path()).current_dir("/");
    command.args([format!("--reuid={UNPRIVILEGED_USER}"), format!("--regid={UNPRIVILEGED_USER}")]);
    command.arg("--clear-groups").arg(copy.path().join("weir")).args(["install", "--system"]);
    let ended = Child::spawn(&mut command, "weir install")?.wait(Duration::from_secs(10))?;
    ensure!(ended.status.code() == Some(1) && ended.stderr.contains("as root"), "{}", ended.printed());
    Ok(())
}

fn strangers(bed: &Bed) -> Result<()> {
    let system = System::new()?;
    system.write("etc/ld.so.conf.d/000-weir.conf", "/mine\n")?;
    let before = system.tree()?;
    let ended = system.weir(bed, &["--system"])?;
    ensure!(!ended.status.success() && ended.stderr.contains("/etc/ld.so.conf.d/000-weir.conf (a file)"));
    ensure!(system.tree()? == before, "something has changed");
    fs::remove_file(system.path("etc/ld.so.conf.d/000-weir.conf"))?;

    // A link of the user stays the user's.
    let before = system.tree()?;
    fs::create_dir(system.path("dev/infiniband"))?;
    symlink("/dev/null", system.path("dev/infiniband/uverbs1"))?;
    let steps = system.done(bed, &["--system"])?;
    ensure!(did(&steps, "/dev/infiniband/uverbs0") == Some("created"), "{steps}");
    ensure!(did(&steps, "/dev/infiniband/uverbs1") == Some("left"), "{steps}");
    let steps = system.done(bed, &["--uninstall"])?;
    ensure!(did(&steps, "/dev/infiniband/uverbs1").is_none(), "{steps}");
    fs::remove_file(system.path("dev/infiniband/uverbs1"))?;
    fs::remove_dir(system.path("dev/infiniband"))?;
    ensure!(system.tree()? == before, "{}", system.tree()?);
    Ok(())
}

fn adapters(bed: &Bed) -> Result<()> {
    let system = System::new()?;
    fs::create_dir_all(system.path("sys/class/infiniband/mlx5_0"))?;
    fs::create_dir_all(system.path("dev/infiniband"))?;
    let device = system.path("dev/infiniband/uverbs0");
    let made = Command::new("mknod").arg(&device).args(["c", "231", "192"]).status()?;
    ensure!(made.success(), "mknod: {made}");
    let before = system.tree()?;
    let ended = system.weir(bed, &["--system"])?;
    ensure!(!ended.status.success() && ended.stderr.contains("mlx5_0") && ended.stderr.contains("--hide-adapters"));
    ensure!(system.tree()? == before, "something has changed");

    let steps = system.done(bed, &["--system", "--hide-adapters"])?;
    ensure!(did(&steps, "/dev/infiniband/uverbs0") == Some("left") && steps.to_string().contains("231:192"), "{steps}");
    system.done(bed, &["--uninstall"])?;
    ensure!(device.symlink_metadata()?.file_type().is_char_device(), "the device is gone");
    ensure!(system.tree()? == before, "{}", system.tree()?);
    Ok(())
}

fn preload_line(bed: &Bed) -> Result<()> {
    for before in [None, Some(""), Some("/a.so\n"), Some("/a.so:/b.so # no comment\n/c.so")] {
        let system = System::new()?;
        let file = system.path("etc/ld.so.preload");
        if let Some(before) = before {
            fs::write(&file, before)?;
            fs::set_permissions(&file, Permissions::from_mode(0o640))?;
        }
        let tree = system.tree()?;
        let steps = system.done(bed, &["--system", "--preload"])?;
        let old = before.unwrap_or_default();
        let newline = if old.is_empty() || old.ends_with('\n') { "" } else { "\n" };
        let text = fs::read_to_string(&file)?;
        ensure!(text == format!("{old}{newline}{LINE}"), "{before:?}: {text:?} {steps}");
        let steps = system.done(bed, &["--system", "--preload"])?;
        ensure!(did(&steps, "/etc/ld.so.preload") == Some("unchanged"), "{before:?}: {steps}");
        system.done(bed, &["--uninstall"])?;
        ensure!(system.tree()? == tree, "{before:?}: {}", system.tree()?);
    }
    // The user's own line stays.
    let system = System::new()?;
    system.write("etc/ld.so.preload", LINE)?;
    system.done(bed, &["--system", "--preload"])?;
    system.done(bed, &["--uninstall"])?;
    ensure!(fs::read_to_string(system.path("etc/ld.so.preload"))? == LINE);
    Ok(())
}

/// Another folder comes first, or the loader does not read the new file.
fn undone(bed: &Bed) -> Result<()> {
    for (conf, message) in [
        ("/other\ninclude /etc/ld.so.conf.d/*.conf\n", "/other/libibverbs.so.1"),
        ("/other\n", "/other/libibverbs.so.1"),
        ("", "include /etc/ld.so.conf.d"),
    ] {
        let system = System::new()?;
        system.write("etc/ld.so.conf", conf)?;
        if !conf.is_empty() {
            fs::create_dir(system.path("other"))?;
            fs::copy(library().join("libibverbs.so.1"), system.path("other/libibverbs.so.1"))?;
        }
        let before = system.tree()?;
        let ended = system.weir(bed, &["--system", "--preload"])?;
        ensure!(!ended.status.success() && ended.stderr.contains(message), "{conf:?}: {}", ended.printed());
        ensure!(system.tree()? == before, "{conf:?}: {}", system.tree()?);
    }
    Ok(())
}

/// A container may have a /dev that it cannot change.
fn read_only_dev(bed: &Bed) -> Result<()> {
    for folder in [false, true] {
        let system = System::new()?;
        if folder {
            fs::create_dir(system.path("dev/infiniband"))?;
        }
        let before = system.tree()?;
        let run = |option: &str| -> Result<Value> {
            let mut command = bed.bare(Side::A, "unshare");
            command.args(["--mount", "sh", "-c"]);
            command.arg(
                "mount --bind \"$1/dev\" \"$1/dev\" && mount -o remount,bind,ro \"$1/dev\" && shift && exec \"$@\"",
            );
            command.arg("sh").arg(system.0.path()).args([WEIR, "install", "--json", option, "--root"]);
            let child = Child::spawn(command.arg(system.0.path()), "weir install")?;
            Ok(serde_json::from_str(&child.wait(Duration::from_secs(30))?.success()?.stdout)?)
        };
        let steps = run("--system")?;
        ensure!(did(&steps, "/dev/infiniband/uverbs0") == Some("left"), "{steps}");
        ensure!(did(&steps, "/etc/ld.so.conf.d/000-weir.conf") == Some("created"), "{steps}");
        let steps = run("--uninstall")?;
        ensure!(system.tree()? == before, "{steps} {}", system.tree()?);
    }
    Ok(())
}

fn changed(bed: &Bed) -> Result<()> {
    let system = System::new()?;
    system.done(bed, &["--system"])?;
    let conf = "etc/ld.so.conf.d/000-weir.conf";
    system.write(conf, "# mine\n")?;
    // A new start of the machine has taken /dev away.
    fs::remove_dir_all(system.path("dev/infiniband"))?;
    system.write("usr/local/lib/weir-system/mine", "")?;
    let steps = system.done(bed, &["--uninstall"])?;
    ensure!(did(&steps, &format!("/{conf}")) == Some("left"), "{steps}");
    ensure!(did(&steps, "/usr/local/lib/weir-system") == Some("left"), "{steps}");
    ensure!(system.path(conf).exists() && !system.path(MANIFEST).exists());
    ensure!(!system.path("usr/local/lib/weir-system/libibverbs.so.1").exists());
    Ok(())
}

/// What was done to a path.
fn did<'a>(steps: &'a Value, path: &str) -> Option<&'a str> {
    steps.as_array()?.iter().find(|step| step["path"] == path)?["did"].as_str()
}

/// A folder with the files of a system that `weir install` looks at.
struct System(TempDir);

impl System {
    fn new() -> Result<System> {
        let system = System(tempfile::tempdir()?);
        for folder in ["etc/ld.so.conf.d", "usr/bin", "dev"] {
            fs::create_dir_all(system.path(folder))?;
        }
        system.write("etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")?;
        system.write("usr/bin/systemd-tmpfiles", "")?;
        Ok(system)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, text: &str) -> Result<()> {
        fs::write(self.path(path), text).with_context(|| format!("cannot write {path}"))
    }

    fn weir(&self, bed: &Bed, options: &[&str]) -> Result<Finished> {
        let mut command = bed.bare(Side::A, WEIR);
        command.args(["install", "--json", "--root"]).arg(self.0.path()).args(options);
        Child::spawn(&mut command, "weir install")?.wait(Duration::from_secs(30))
    }

    /// The steps of `weir install` that succeeds.
    fn done(&self, bed: &Bed, options: &[&str]) -> Result<Value> {
        serde_json::from_str(&self.weir(bed, options)?.success()?.stdout).context("no JSON")
    }

    /// All names, kinds, modes and texts, the loader's caches apart.
    fn tree(&self) -> Result<String> {
        let script = "find . \\( -path ./etc/ld.so.cache -o -path ./var \\) -prune -o -printf '%p %y %m %l\\n' | sort
            find etc -type f ! -name ld.so.cache -exec cksum {} + | sort";
        let output = Command::new("sh").args(["-c", script]).current_dir(self.0.path()).output()?;
        Ok(String::from_utf8(output.stdout)?)
    }
}
