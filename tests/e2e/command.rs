//! The `weir` command: exit codes, output, environment and errors.

use crate::bed::{Bed, Topology, WEIR, library};
use crate::{needing_root, trial};
use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::{SigSet, Signal};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Stdio;
use std::time::Duration;
use weir_stage::{Child, Finished, Side};

pub fn trials() -> Vec<Trial> {
    let root = nix::unistd::geteuid().is_root();
    vec![
        trial(Topology::Loopback, "weir run has the exit codes of env", exit_codes),
        trial(
            Topology::Loopback,
            "every command ends by SIGPIPE at a closed pipe, without an error message",
            closed_pipe,
        ),
        trial(
            Topology::Loopback,
            "weir run passes on the disposition of SIGPIPE and the signal mask unchanged",
            signals,
        ),
        trial(Topology::Loopback, "an empty variable counts as unset", empty_variables),
        trial(Topology::Loopback, "an error names the variable that holds the wrong value", wrong_variables),
        needing_root(trial(Topology::Loopback, "weir run refuses a setuid program", setuid), root),
        trial(Topology::Loopback, "weir env makes the programs of a shell load the library", env),
        trial(Topology::Loopback, "weir devices lists weir_lo, with its GID", devices),
        trial(Topology::Veth, "weir devices lists the interfaces of its namespace", devices_of_a_namespace),
        trial(Topology::Veth, "an error about lo being down says how to bring it up", lo_down),
        trial(Topology::Loopback, "weir profiles lists all, explains one, and reports the error in a file", profiles),
        trial(Topology::Loopback, "a program that does not use RDMA gets no thread, socket or output", inert),
    ]
}

fn weir(bed: &Bed, options: &[&str], words: &[&str]) -> Result<Finished> {
    Child::spawn(&mut bed.weir(Side::A, options, words), "weir run")?.wait(Duration::from_secs(10))
}

fn exit_codes(bed: &Bed) -> Result<()> {
    for (options, words, code, message) in [
        (&[][..], &["sh", "-c", "exit 7"][..], 7, ""),
        (&[], &["no-such-program"], 127, "no-such-program"),
        (&[], &["/etc/passwd"], 126, "/etc/passwd"),
        (&["--faults", "lost=1"], &["true"], 125, "--faults"),
        (&["--interface", "no-such-if"], &["true"], 125, "no-such-if"),
        (&["--capture", "/no/such/folder/x"], &["true"], 125, "/no/such/folder"),
        (&["--profile", "perfect"], &["true"], 125, "ideal"),
    ] {
        let ended = weir(bed, options, words)?;
        ensure!(ended.status.code() == Some(code), "{words:?} {options:?}: not {code}\n{}", ended.printed());
        ensure!(
            ended.stderr.contains(message),
            "{words:?} {options:?}: `{message}` is missing from stderr\n{}",
            ended.printed()
        );
    }
    Ok(())
}

/// `weir … | head` after head has exited: weir must die of SIGPIPE, as cat does, and print no panic.
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
        let message = String::from_utf8_lossy(&ended.stderr);
        ensure!(ended.status.signal() == Some(libc::SIGPIPE), "weir {line}: {} {message}", ended.status);
        ensure!(!message.contains("panicked"), "weir {line}: {message}");
    }
    Ok(())
}

/// The shell starts `weir run` with SIGPIPE ignored or not, and SIGUSR2 blocked. env(1) gives the expected signal
/// state.
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
        ensure!(ours == wanted && wanted.lines().count() == 2, "{trap}: under weir run {ours}, under env {wanted}");
    }
    Ok(())
}

fn block_a_signal() -> std::io::Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGUSR2);
    Ok(signals.thread_block()?)
}

/// The variables of all options of the adapter, which the help of `weir run` names.
fn variables(bed: &Bed) -> Result<Vec<String>> {
    let mut command = bed.bare(Side::A, WEIR);
    let help = Child::spawn(command.args(["run", "--help"]), "weir run --help")?.wait(Duration::from_secs(10))?;
    // Lines are wrapped anywhere between words.
    let help = help.success()?.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let names = help.split("[env: ").skip(1).filter_map(|rest| rest.split_once('=')).map(|(name, _)| name.to_owned());
    let names: Vec<String> = names.collect();
    ensure!(names.iter().any(|name| name == "WEIR_LOCAL") && names.len() >= 12, "{names:?} are in the help:\n{help}");
    Ok(names)
}

fn empty_variables(bed: &Bed) -> Result<()> {
    let variables = variables(bed)?;
    for name in &variables {
        let mut command = bed.weir(Side::A, &[], ["sh", "-c", "env | grep -c \"^$0=\"", name.as_str()]);
        let ended = Child::spawn(command.env(name, ""), "weir run")?.wait(Duration::from_secs(10))?;
        ensure!(ended.stdout == "0\n" && ended.stderr.is_empty(), "{name}=: {}", ended.printed());
    }
    // The library itself must ignore empty variables too: set them after `weir run`.
    let mut command = bed.weir(Side::A, &[], ["sh", "-c", &format!("env {}= ibv_devices", variables.join("= "))]);
    let ended = Child::spawn(&mut command, "ibv_devices")?.wait(Duration::from_secs(10))?.success()?;
    ensure!(ended.stdout.contains("weir_") && ended.stderr.is_empty(), "{}", ended.printed());
    Ok(())
}

fn wrong_variables(bed: &Bed) -> Result<()> {
    for name in variables(bed)? {
        let value = match name.as_str() {
            "WEIR_LOG" => "weir=loud",
            _ => "/no/such/value",
        };
        let mut command = bed.weir(Side::A, &[], ["true"]);
        let ended = Child::spawn(command.env(&name, value), "weir run")?.wait(Duration::from_secs(10))?;
        ensure!(!ended.status.success() && ended.stderr.contains(&name), "{name}: {}", ended.printed());
        let option = name.replace("WEIR_", "--").to_lowercase();
        ensure!(!ended.stderr.contains(&option), "{name}: {}", ended.printed());
        // For a wrong option, the error must name the option, whatever the variable holds (empty here).
        let mut command = bed.weir(Side::A, &[&option, &value.replace("/no", "/not")], ["true"]);
        let ended = Child::spawn(command.env(&name, ""), "weir run")?.wait(Duration::from_secs(10))?;
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
    ensure!(names == [bed.stage.device().as_str()], "{names:?}");
    let mut all = bed.bare(Side::B, WEIR);
    let all = Child::spawn(all.args(["devices", "--json"]).env("WEIR_INTERFACE", "all"), "weir devices")?;
    let all = all.wait(Duration::from_secs(10))?.success()?;
    let last = serde_json::from_str::<serde_json::Value>(&all.stdout)?[1]["name"].clone();
    ensure!(last == "weir_lo", "{}", all.stdout);
    ensure!(all.stderr.is_empty(), "nothing is hidden: {}", all.stderr);
    ensure!(devices[0]["mtu"] == 9000, "{devices}");
    bed.gid_index(Side::B, bed.stage.address(Side::B))?;
    bed.gid_index(Side::B, bed.stage.address6(Side::B).into())?;
    Ok(())
}

/// Runs in new namespaces in which lo is down, so it needs the same privilege as a veth.
fn lo_down(bed: &Bed) -> Result<()> {
    let weir = crate::bed::WEIR;
    for (script, message) in [
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
        ensure!(
            (ended.stdout.clone() + &ended.stderr).contains(message),
            "{script}: `{message}` is missing\n{}",
            ended.printed()
        );
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
    let mine = write("mine.toml", "about = \"long timeouts\"\nbase = \"connectx4\"\n[ack_timeout]\nfactor = [3, 4]\n")?;
    let wrong = write("wrong.toml", "[ack_timeout]\nfaktor = 3\n")?;
    for (words, good, message) in [
        (&["profiles"][..], true, &["ideal", "connectx3", "connectx4", "connectx5", "connectx6", "connectx6-roce"][..]),
        (&["profiles", "connectx4"], true, &["[damming]", "least_exponent", "T fig 4.5"]),
        (&["profiles", "connectx4", "--json"], true, &["\"key\": \"damming.on\"", "\"source\""]),
        (&["profiles", &mine], true, &["mine: long timeouts", "[3, 4]", "mine.toml", "T 5.1"]),
        (&["profiles", &wrong], false, &["ack_timeout.faktor", "ack_timeout.factor"]),
        (&["profiles", "connectx9"], false, &["connectx9", "connectx6"]),
    ] {
        let ended =
            Child::spawn(bed.bare(Side::A, WEIR).args(words), "weir profiles")?.wait(Duration::from_secs(10))?;
        ensure!(ended.status.success() == good, "{words:?}\n{}", ended.printed());
        let text = if good { &ended.stdout } else { &ended.stderr };
        ensure!(
            message.iter().all(|part| text.contains(part)),
            "{words:?}: not all of {message:?}\n{}",
            ended.printed()
        );
    }
    Ok(())
}

/// The preloaded library must start no thread, open no socket and print nothing.
fn inert(bed: &Bed) -> Result<()> {
    let script = "ls /proc/self/task | wc -l; ls -l /proc/self/fd | grep -c socket; true";
    let preload = library().join("libibverbs.so.1");
    let mut command = bed.weir(Side::A, &[], ["sh", "-c", script]);
    let ended = Child::spawn(command.env("LD_PRELOAD", preload), "sh")?.wait(Duration::from_secs(10))?.success()?;
    ensure!(ended.stdout == "1\n0\n" && ended.stderr.is_empty(), "{}", ended.printed());
    Ok(())
}
