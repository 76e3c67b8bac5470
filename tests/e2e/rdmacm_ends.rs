//! Programs of librdmacm, and surroundings that fail: no free descriptors, no folder for the process, an interface that is
//! gone. And processes that end: one with many connections, and one that handed packets over to another.

use crate::bed::{Bed, Topology, WEIR};
use crate::fork::compile_with;
use crate::rdmacm::{TCP, late, wait_for_service};
use crate::{needing_root, trial};
use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::time::{Duration, Instant};
use weir_stage::{Child, Side};

const TIMEOUT: Duration = Duration::from_secs(60);
/// If a process that ends sent the messages of all of them at once, its peer would lose many.
const CONNECTIONS: &str = "1000";
/// Without a folder that a process can have: all are read-only, in a mount namespace. /tmp keeps what it has, because
/// programs may be there.
const NO_FOLDER: &str = r#"unset XDG_RUNTIME_DIR
for folder in /run /dev/shm; do mount -t tmpfs -o ro none $folder || exit 1; done
mount --rbind /tmp /tmp && mount -o remount,bind,ro /tmp || exit 1
exec "$@""#;
/// Removes the interface as soon as the program listens. The first argument is the file for its output.
const REMOVE: &str = r#"ip link set lo up; ip link add va type veth peer name vb || exit 1
ip addr add 10.77.9.1/24 dev va; ip link set va up; ip link set vb up
until ip link show dev va | grep -q 'state UP'; do sleep 0.02; done
output="$1"; shift; "$@" > "$output" & program=$!
until grep -qs listening "$output"; do sleep 0.05; kill -0 $program || exit 1; done
ip link del va; wait $program; status=$?; cat "$output"; exit $status"#;

pub fn trials() -> Vec<Trial> {
    let root = nix::unistd::geteuid().is_root();
    let local = |name: &str, test: fn(&Bed) -> Result<()>| trial(Topology::Loopback, name, test);
    let mut trials = vec![
        local(
            "librdmacm: without free descriptors calls fail with EMFILE, and the log says what to do",
            few_descriptors,
        ),
        needing_root(local("librdmacm: rping runs without a folder for its process", no_folder), root),
        needing_root(local("librdmacm: an interface that vanishes is DEVICE_REMOVAL", removed), root),
    ];
    trials.push(local("librdmacm: on one host, the peer of a killed process is disconnected", killed));
    // On one host, the client would take packets for the server.
    trials.push(trial(
        Topology::Veth,
        "librdmacm: a server is reached after the process that handed packets over to it was killed",
        replaced,
    ));
    trials.push(trial(
        Topology::Veth,
        "librdmacm: servers are reached while the process that hands packets over to them is stopped, and after that",
        stopped,
    ));
    for topology in Topology::ALL {
        trials.push(trial(topology, "librdmacm: a process that exits tells the peers of all its connections", told));
    }
    trials
}

/// Each limit ends the program's attempts at another place.
fn few_descriptors(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = compile_with("e2e/few_descriptors.c", folder.path(), &["-lrdmacm"])?;
    let path = program.to_string_lossy();
    let address = bed.stage.address(Side::A).to_string();
    for what in ["channels", "listeners", "resolved", "contexts"] {
        for limit in ["8", "12", "16", "20", "24", "32", "64"] {
            let words = [&*path, what, limit, &address];
            let name = format!("few_descriptors {what} {limit}");
            let ended = Child::spawn(&mut bed.weir(Side::A, &["--log", "error"], words), &name)?.wait(TIMEOUT)?;
            let text = ended.printed();
            ensure!(ended.status.success() && ended.stdout.contains("refused: "), "{text}");
            let says = "it may have ";
            ensure!(ended.stderr.contains(says) && ended.stderr.contains("Raise `ulimit -n`"), "{name}: {text}");
        }
    }
    Ok(())
}

fn no_folder(bed: &Bed) -> Result<()> {
    let (address, port) = (bed.stage.address(Side::A).to_string(), bed.stage.free_port(Side::A)?);
    let rping = |role: &str| {
        let mut command = bed.bare(Side::A, "unshare");
        command.args(["--mount", "sh", "-c", NO_FOLDER, "sh", WEIR, "run", "--log", "warn", "--", "rping", role]);
        command.args(["-a", &address, "-p", &port.to_string(), "-C", "5", "-v", "-V"]);
        Child::spawn(&mut command, format!("rping {role}"))
    };
    let mut server = rping("-s")?;
    wait_for_service(&mut server, TCP << 16 | u32::from(port))?;
    let client = rping("-c")?.wait(TIMEOUT)?.success()?;
    ensure!(client.stdout.contains("ping data: rdma-ping-4: "), "{}", client.printed());
    ensure!(client.stderr.contains("Set WEIR_RUN_DIR to a folder"), "{}", client.printed());
    let server = server.wait(TIMEOUT)?;
    ensure!(server.status.success() || late(&server), "{}", server.printed());
    Ok(())
}

fn removed(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = compile_with("e2e/device_removal.c", folder.path(), &["-lrdmacm"])?;
    let mut command = bed.bare(Side::A, "unshare");
    command.args(["--net", "sh", "-c", REMOVE, "sh"]).arg(folder.path().join("output"));
    command.args([WEIR, "run", "--"]).arg(program).args(["10.77.9.1", "7471"]);
    // The interface is one that the script makes, not the stage's.
    command.env_remove("WEIR_INTERFACE");
    let ended = Child::spawn(&mut command, "device_removal")?.wait(TIMEOUT)?.success()?;
    ensure!(ended.stdout.contains("RDMA_CM_EVENT_DEVICE_REMOVAL of the bound id\n"), "{}", ended.printed());
    let refused = format!("listen: -1, errno {}\n", nix::libc::ENXIO);
    ensure!(ended.stdout.contains(&refused), "{}", ended.printed());
    Ok(())
}

fn told(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = compile_with("e2e/exits_connected.c", folder.path(), &["-lrdmacm"])?;
    let (address, port) = (bed.stage.address(Side::A).to_string(), bed.stage.free_port(Side::A)?);
    let start = |side: Side, role: &str| {
        let words = [&*program.to_string_lossy(), role, &address, &port.to_string(), CONNECTIONS].map(str::to_owned);
        Child::spawn(&mut bed.weir(side, &[], words), role.to_owned())
    };
    let mut server = start(Side::A, "server")?;
    wait_for_service(&mut server, TCP << 16 | u32::from(port))?;
    let client = start(Side::B, "client")?.wait(TIMEOUT)?.success()?;
    ensure!(client.stdout.contains(&format!("ended: {CONNECTIONS}\n")), "{}", client.printed());
    server.wait(TIMEOUT)?.success()?;
    Ok(())
}

fn rping(bed: &Bed, side: Side, role: &str, port: u16, more: &[&str]) -> Result<Child> {
    let (address, port) = (bed.stage.address(Side::A).to_string(), port.to_string());
    let words = [&["rping", role, "-a", &address, "-p", &port, "-v"], more].concat();
    Child::spawn(&mut bed.weir(side, &[], words), format!("rping {role}"))
}

/// A server that listens.
fn rping_server(bed: &Bed, port: u16, more: &[&str]) -> Result<Child> {
    let mut server = rping(bed, Side::A, "-s", port, more)?;
    wait_for_service(&mut server, TCP << 16 | u32::from(port))?;
    Ok(server)
}

fn end_by_force(child: &Child) -> Result<()> {
    Ok(kill(Pid::from_raw(child.pid().try_into()?), Signal::SIGKILL)?)
}

/// The server waits for a message of the client, without a limit of its own.
fn killed(bed: &Bed) -> Result<()> {
    let port = bed.stage.free_port(Side::A)?;
    let server = rping_server(bed, port, &[])?;
    let mut client = rping(bed, Side::B, "-c", port, &["-C", "1000000"])?;
    let end = Instant::now() + TIMEOUT;
    while !client.printed()?.contains("ping data") {
        ensure!(Instant::now() < end, "no connection: {}", client.printed()?);
        std::thread::sleep(Duration::from_millis(10));
    }
    end_by_force(&client)?;
    client.wait(TIMEOUT)?;
    let server = server.wait(TIMEOUT)?;
    ensure!(server.printed().contains("DISCONNECT EVENT"), "{}", server.printed());
    Ok(())
}

const TWICE: [&str; 2] = ["-C", "2"];

/// Two servers with their ports, which take one client after another. The first hands packets over to the second.
fn two_servers(bed: &Bed) -> Result<[(Child, u16); 2]> {
    let serve = |port| rping_server(bed, port, &["-P"]);
    let first_port = bed.stage.free_port(Side::A)?;
    let first = serve(first_port)?;
    let port = bed.stage.free_port(Side::A)?;
    ensure!(port != first_port, "one port twice");
    Ok([(first, first_port), (serve(port)?, port)])
}

/// A client that a server must answer.
fn is_reached(bed: &Bed, port: u16) -> Result<()> {
    let client = rping(bed, Side::B, "-c", port, &TWICE)?.wait(TIMEOUT)?.success()?;
    ensure!(client.stdout.contains("ping data: rdma-ping-1: "), "{}", client.printed());
    Ok(())
}

fn replaced(bed: &Bed) -> Result<()> {
    let [(first, _), (second, port)] = two_servers(bed)?;
    end_by_force(&first)?;
    first.wait(TIMEOUT)?;
    // The second server is idle until the client's request comes.
    is_reached(bed, port)?;
    end_by_force(&second)
}

/// The servers are stopped in turn. Each takes the port from the other, which gives it up when it goes on.
fn stopped(bed: &Bed) -> Result<()> {
    let [(first, first_port), (second, second_port)] = two_servers(bed)?;
    let signal = |child: &Child, signal| kill(Pid::from_raw(child.pid() as i32), signal);
    signal(&first, Signal::SIGSTOP)?;
    is_reached(bed, second_port)?;
    signal(&first, Signal::SIGCONT)?;
    is_reached(bed, first_port)?;
    signal(&second, Signal::SIGSTOP)?;
    is_reached(bed, first_port)?;
    signal(&second, Signal::SIGCONT)?;
    is_reached(bed, second_port)?;
    end_by_force(&first)?;
    is_reached(bed, second_port)?;
    end_by_force(&second)
}
