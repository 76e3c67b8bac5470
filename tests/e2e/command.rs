//! The `weir` command itself, as a shell sees it.

use crate::bed::{Bed, Place, WEIR, library};
use crate::{needing_root, trial};
use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::{SigSet, Signal};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Stdio;
use std::time::Duration;
use weir_cli::stage::{Child, Finished, Side};

pub fn trials() -> Vec<Trial> {
    let root = nix::unistd::geteuid().is_root();
    vec![
        trial(Place::Loopback, "weir run exits as env does", exit_codes),
        trial(Place::Loopback, "every command ends quietly at a closed pipe", closed_pipe),
        trial(Place::Loopback, "weir run gives a program SIGPIPE and the signal mask as it was given them", signals),
        trial(Place::Loopback, "a variable that is empty counts as unset", empty_variables),
        trial(Place::Loopback, "an error names the variable that a value comes from", wrong_variables),
        needing_root(trial(Place::Loopback, "weir run refuses a setuid program", setuid), root),
        trial(Place::Loopback, "weir env puts the library under a shell's programs", env),
        trial(Place::Loopback, "weir devices lists weir_lo last, with its GID", devices),
        trial(Place::Veth, "weir devices lists the namespace's own", devices_of_a_namespace),
        trial(Place::Veth, "where lo is down, it is said what to do", nothing_there),
        trial(Place::Loopback, "weir profiles lists all, explains one, and says what is wrong with a file", profiles),
        trial(Place::Loopback, "a program without RDMA in it is left alone", inert),
    ]
}

fn weir(bed: &Bed, options: &[&str], words: &[&str]) -> Result<Finished> {
    Child::spawn(&mut bed.weir(Side::A, options, words), "weir run")?.wait(Duration::from_secs(10))
}

fn exit_codes(bed: &Bed) -> Result<()> {
    for (options, words, code, said) in [
        (&[][..], &["sh", "-c", "exit 7"][..], 7, ""),
        (&[], &["no-such-program-of-ours"], 127, "no-such-program-of-ours"),
        (&[], &["/etc/passwd"], 126, "/etc/passwd"),
        (&["--faults", "lost=1"], &["true"], 125, "--faults"),
        (&["--interface", "no-such-if"], &["true"], 125, "no-such-if"),
        (&["--capture", "/no/such/folder/x"], &["true"], 125, "/no/such/folder"),
        (&["--profile", "perfect"], &["true"], 125, "ideal"),
    ] {
        let ended = weir(bed, options, words)?;
        ensure!(ended.status.code() == Some(code), "{words:?} {options:?}: not {code}\n{}", ended.printed());
        ensure!(ended.stderr.contains(said), "{words:?} {options:?}: `{said}` is not said\n{}", ended.printed());
    }
    Ok(())
}

/// As `weir … | head` is where head has ended: by SIGPIPE, as cat, and without a word.
fn closed_pipe(bed: &Bed) -> Result<()> {
    for line in [
        "lab list",
        "lab list --json",
        "lab micro --num-ops 1",
        "profiles",
        "profiles connectx4",
        "devices",
        "devices --json",
        "env",
        "env --json",
        "version",
    ] {
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let mut command = bed.bare(Side::A, WEIR);
        let ended = command.args(line.split(' ')).stdout(writer).stderr(Stdio::piped()).output()?;
        let said = String::from_utf8_lossy(&ended.stderr);
        ensure!(ended.status.signal() == Some(libc::SIGPIPE), "weir {line}: {} {said}", ended.status);
        ensure!(!said.contains("panicked"), "weir {line}: {said}");
    }
    Ok(())
}

/// A shell starts it with SIGPIPE ignored or not; env(1) beside it shows what a program is to see.
fn signals(bed: &Bed) -> Result<()> {
    for trap in ["", "trap '' PIPE; "] {
        let seen = |under: &str| -> Result<String> {
            let script = format!("{trap}exec {under} grep -E '^Sig(Ign|Blk)' /proc/self/status");
            let mut command = bed.bare(Side::A, "sh");
            // SAFETY: one system call between fork and exec.
            unsafe { command.pre_exec(block_a_signal) };
            Ok(Child::spawn(command.args(["-c", &script]), "sh")?.wait(Duration::from_secs(10))?.success()?.stdout)
        };
        let (ours, wanted) = (seen(&format!("{WEIR} run --"))?, seen("env")?);
        ensure!(ours == wanted && wanted.lines().count() == 2, "{trap}: {ours} is not {wanted}");
    }
    Ok(())
}

fn block_a_signal() -> std::io::Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGUSR2);
    Ok(signals.thread_block()?)
}

fn empty_variables(bed: &Bed) -> Result<()> {
    for name in VARIABLES {
        let mut command = bed.weir(Side::A, &[], ["sh", "-c", "env | grep -c \"^$0=\"", name]);
        let ended = Child::spawn(command.env(name, ""), "weir run")?.wait(Duration::from_secs(10))?;
        ensure!(ended.stdout == "0\n" && ended.stderr.is_empty(), "{name}=: {}", ended.printed());
    }
    // Past the command, for a program that has the library by other means.
    let mut command = bed.weir(Side::A, &[], ["sh", "-c", &format!("env {}= ibv_devices", VARIABLES.join("= "))]);
    let ended = Child::spawn(&mut command, "ibv_devices")?.wait(Duration::from_secs(10))?.success()?;
    ensure!(ended.stdout.contains("weir_lo") && ended.stderr.is_empty(), "{}", ended.printed());
    Ok(())
}

/// Each option of the adapter.
const VARIABLES: [&str; 10] = [
    "WEIR_INTERFACE",
    "WEIR_PROFILE",
    "WEIR_ICRC",
    "WEIR_FAULTS",
    "WEIR_CAPTURE",
    "WEIR_MEMLOCK",
    "WEIR_USERFAULTFD",
    "WEIR_WITHOUT",
    "WEIR_LOG",
    "WEIR_PATIENCE",
];

fn wrong_variables(bed: &Bed) -> Result<()> {
    for name in VARIABLES {
        let value = match name {
            "WEIR_LOG" => "weir=loud",
            _ => "/no/such/value",
        };
        let mut command = bed.weir(Side::A, &[], ["true"]);
        let ended = Child::spawn(command.env(name, value), "weir run")?.wait(Duration::from_secs(10))?;
        ensure!(!ended.status.success() && ended.stderr.contains(name), "{name}: {}", ended.printed());
        let option = name.replace("WEIR_", "--").to_lowercase();
        ensure!(!ended.stderr.contains(&option), "{name}: {}", ended.printed());
        // The option, where it is given, and whatever the variable says.
        let mut command = bed.weir(Side::A, &[&option, &value.replace("/no", "/not")], ["true"]);
        let ended = Child::spawn(command.env(name, ""), "weir run")?.wait(Duration::from_secs(10))?;
        ensure!(!ended.status.success() && ended.stderr.contains(&option), "{option}: {}", ended.printed());
    }
    Ok(())
}

fn setuid(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = folder.path().join("true");
    std::fs::copy("/bin/true", &program)?;
    std::os::unix::fs::chown(&program, Some(65534), None)?;
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o4755))?;
    let ended = weir(bed, &[], &[&program.to_string_lossy()])?;
    ensure!(ended.status.code() == Some(126) && ended.stderr.contains("is setuid"), "{}", ended.printed());
    Ok(())
}

fn env(bed: &Bed) -> Result<()> {
    let script = format!("eval \"$({} env --icrc always)\" && ibv_devices && echo $WEIR_ICRC", WEIR);
    let ended = Child::spawn(bed.bare(Side::A, "sh").args(["-c", &script]), "sh")?.wait(Duration::from_secs(10))?;
    let ended = ended.success()?;
    ensure!(ended.stdout.contains("weir_lo") && ended.stdout.ends_with("always\n"), "{}", ended.printed());
    Ok(())
}

fn devices(bed: &Bed) -> Result<()> {
    let devices = bed.devices(Side::A)?;
    let last = devices.as_array().and_then(|list| list.last()).cloned().unwrap_or_default();
    ensure!(last["name"] == "weir_lo" && last["interface"] == "lo" && last["state"] == "up", "{devices}");
    bed.gid_index(Side::A, "127.0.0.1".parse()?)?;
    Ok(())
}

fn devices_of_a_namespace(bed: &Bed) -> Result<()> {
    let devices = bed.devices(Side::B)?;
    let names: Vec<_> = devices.as_array().into_iter().flatten().map(|device| device["name"].clone()).collect();
    ensure!(names == [bed.stage.device(Side::B).as_str(), "weir_lo"], "{names:?}");
    ensure!(devices[0]["mtu"] == 9000, "{devices}");
    bed.gid_index(Side::B, bed.stage.address(Side::B))?;
    bed.gid_index(Side::B, bed.stage.address6(Side::B).into())?;
    Ok(())
}

/// In a fresh namespace: the trial needs the right to make one, as a veth does.
fn nothing_there(bed: &Bed) -> Result<()> {
    let weir = crate::bed::WEIR;
    for (script, said) in [
        (format!("{weir} devices"), "`ip link set lo up`"),
        (format!("{weir} run --log warn -- ibv_devices"), "`ip link set lo up`"),
        (format!("ip link set lo up && ip link set lo down && {weir} devices"), "`ip link set lo up`"),
        (format!("ip link set lo up && ip link set lo down && {weir} devices"), "MTU 65536"),
        (
            format!("ip link set lo up && ip link set lo down && {weir} run --log warn -- ibv_devinfo -d weir_lo"),
            "interface lo is down",
        ),
    ] {
        let ended = Child::spawn(bed.bare(Side::A, "unshare").args(["-n", "sh", "-c", &script]), "unshare")?
            .wait(Duration::from_secs(10))?
            .success()?;
        ensure!((ended.stdout.clone() + &ended.stderr).contains(said), "{script}: no {said}\n{}", ended.printed());
    }
    Ok(())
}

fn profiles(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let write = |name: &str, text: &str| -> Result<String> {
        let path = folder.path().join(name);
        std::fs::write(&path, text)?;
        Ok(path.to_string_lossy().into_owned())
    };
    let mine = write("mine.toml", "about = \"patient\"\nbase = \"connectx4\"\n[ack_timeout]\nfactor = [3, 4]\n")?;
    let wrong = write("wrong.toml", "[ack_timeout]\nfaktor = 3\n")?;
    for (words, good, said) in [
        (&["profiles"][..], true, &["ideal", "connectx3", "connectx4", "connectx5", "connectx6"][..]),
        (&["profiles", "connectx4"], true, &["[damming]", "least_exponent", "T fig 4.5"]),
        (&["profiles", "connectx4", "--json"], true, &["\"key\": \"damming.on\"", "\"source\""]),
        (&["profiles", &mine], true, &["mine: patient", "[3, 4]", "mine.toml", "T 5.1"]),
        (&["profiles", &wrong], false, &["ack_timeout.faktor", "ack_timeout.factor"]),
        (&["profiles", "connectx9"], false, &["connectx9", "connectx6"]),
    ] {
        let ended =
            Child::spawn(bed.bare(Side::A, WEIR).args(words), "weir profiles")?.wait(Duration::from_secs(10))?;
        ensure!(ended.status.success() == good, "{words:?}\n{}", ended.printed());
        let text = if good { &ended.stdout } else { &ended.stderr };
        ensure!(said.iter().all(|part| text.contains(part)), "{words:?}: not all of {said:?}\n{}", ended.printed());
    }
    Ok(())
}

/// The library is loaded and does nothing: no thread, no socket, nothing printed.
fn inert(bed: &Bed) -> Result<()> {
    let script = "ls /proc/self/task | wc -l; ls -l /proc/self/fd | grep -c socket; true";
    let preload = library().join("libibverbs.so.1");
    let mut command = bed.weir(Side::A, &[], ["sh", "-c", script]);
    let ended = Child::spawn(command.env("LD_PRELOAD", preload), "sh")?.wait(Duration::from_secs(10))?.success()?;
    ensure!(ended.stdout == "1\n0\n" && ended.stderr.is_empty(), "{}", ended.printed());
    Ok(())
}
