//! Network namespaces without a name, joined by veth pairs or by a bridge.

use crate::program::locate;
use anyhow::{Context, Result, bail, ensure};
use nix::ifaddrs::getifaddrs;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::net::if_::InterfaceFlags;
use nix::sched::{CloneFlags, setns, unshare};
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Names of interfaces, without their numbers.
pub const INTERFACES: &str = "eth";

/// The address of a third host at the bridge.
pub const THIRD: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 3);

/// Two namespaces, joined by so many veth pairs with an MTU of `mtu` bytes.
pub fn join_namespaces(links: usize, mtu: u32) -> Result<[Arc<OwnedFd>; 2]> {
    ensure!(nix::unistd::geteuid().is_root(), "network namespaces need root");
    let a = Arc::new(new_namespace()?);
    let b = Arc::new(new_namespace()?);
    // `ip` takes a path to the namespace, which is reachable only through this process's descriptors.
    let path_of_b = format!("/proc/{}/fd/{}", std::process::id(), b.as_raw_fd());
    for n in 0..links {
        let name = format!("{INTERFACES}{n}");
        ip(&a, &format!("link add {name} mtu {mtu} type veth peer name {name} mtu {mtu} netns {path_of_b}"))?;
    }
    bring_up(&[a.clone(), b.clone()], links)?;
    Ok([a, b])
}

/// Both sides, and the namespace of the bridge between them.
pub fn join_by_bridge(mtu: u32) -> Result<([Arc<OwnedFd>; 2], Arc<OwnedFd>)> {
    ensure!(nix::unistd::geteuid().is_root(), "network namespaces need root");
    let switch = Arc::new(new_namespace()?);
    let path = format!("/proc/{}/fd/{}", std::process::id(), switch.as_raw_fd());
    ip(&switch, "link add bridge0 type bridge")?;
    let sides = [Arc::new(new_namespace()?), Arc::new(new_namespace()?)];
    for (namespace, port) in sides.iter().zip(["port0", "port1"]) {
        let name = format!("{INTERFACES}0");
        ip(namespace, &format!("link add {name} mtu {mtu} type veth peer name {port} mtu {mtu} netns {path}"))?;
        ip(&switch, &format!("link set {port} master bridge0"))?;
        ip(&switch, &format!("link set {port} up"))?;
    }
    ip(&switch, &format!("link set bridge0 mtu {mtu}"))?;
    ip(&switch, "link set bridge0 up")?;
    // The switch is also a third host.
    ip(&switch, &format!("address add {THIRD}/24 dev bridge0"))?;
    bring_up(&sides, 1)?;
    Ok((sides, switch))
}

/// Addresses of both sides on all links; waits until these run.
fn bring_up(sides: &[Arc<OwnedFd>; 2], links: usize) -> Result<()> {
    for (namespace, host) in sides.iter().zip([1, 2]) {
        ip(namespace, "link set lo up")?;
        for n in 0..links {
            let name = format!("{INTERFACES}{n}");
            // Duplicate address detection would delay addresses, and so GIDs, by a second or two.
            in_namespace(namespace, || {
                let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{name}/accept_dad"), "0");
            })?;
            ip(namespace, &format!("address add 198.18.{n}.{host}/24 dev {name}"))?;
            // It fails in a container without IPv6, which only the tests of IPv6 need.
            let _ = ip(namespace, &format!("address add fd77:0:0:{n:x}::{host}/64 dev {name} nodad"));
            ip(namespace, &format!("link set {name} up"))?;
        }
    }
    for n in 0..links {
        sides.iter().try_for_each(|side| wait_running(side, &format!("{INTERFACES}{n}")))?;
    }
    Ok(())
}

/// One namespace with its loopback interface.
pub fn shared_namespace() -> Result<Arc<OwnedFd>> {
    ensure!(nix::unistd::geteuid().is_root(), "network namespaces need root");
    let namespace = Arc::new(new_namespace()?);
    ip(&namespace, "link set lo up")?;
    Ok(namespace)
}

/// Waits until the kernel calls the interface running, which it does up to a second after the carrier. Weir's ports are
/// up before, but UCX's own `tcp` does not see the interface until then.
fn wait_running(namespace: &OwnedFd, interface: &str) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let mut running = false;
        in_namespace(namespace, || {
            let flag = InterfaceFlags::IFF_RUNNING;
            running = getifaddrs()
                .is_ok_and(|mut all| all.any(|entry| entry.interface_name == interface && entry.flags.contains(flag)));
        })?;
        match running {
            true => return Ok(()),
            false if Instant::now() > end => {
                bail!("{interface} did not come up within 5 s; the machine may be busy: try again")
            }
            false => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Makes a network namespace on a thread that ends at once, so that only the descriptor holds it.
fn new_namespace() -> Result<OwnedFd> {
    let thread = std::thread::spawn(|| -> Result<OwnedFd> {
        unshare(CloneFlags::CLONE_NEWNET).context("making a network namespace")?;
        Ok(File::open("/proc/thread-self/ns/net")?.into())
    });
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn in_namespace(namespace: &OwnedFd, job: impl FnOnce() + Send) -> Result<()> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| setns(namespace, CloneFlags::CLONE_NEWNET).map(|()| job()));
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
    .context("entering a network namespace")
}

fn ip(namespace: &Arc<OwnedFd>, arguments: &str) -> Result<()> {
    iproute(namespace, "ip", arguments)
}

/// Runs a program of iproute2 in a namespace.
pub fn iproute(namespace: &Arc<OwnedFd>, program: &str, arguments: &str) -> Result<()> {
    let mut command = Command::new(locate(program)?);
    command.args(arguments.split_whitespace()).stdin(Stdio::null());
    let namespace = namespace.clone();
    // SAFETY: one system call between fork and exec.
    unsafe { command.pre_exec(move || Ok(setns(&namespace, CloneFlags::CLONE_NEWNET)?)) };
    let output = command.output().with_context(|| format!("running {program}"))?;
    if !output.status.success() {
        bail!("{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Mounts the namespace's own sysfs on /sys, in a mount namespace of only this process.
pub fn mount_sysfs() -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(None::<&str>, c"/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)?;
    umount2(c"/sys", MntFlags::MNT_DETACH)?;
    mount(Some(c"weir"), c"/sys", Some(c"sysfs"), MsFlags::empty(), None::<&str>)
}
