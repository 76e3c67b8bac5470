//! A stage for two programs: two network namespaces joined by a veth pair, or one namespace for both, as root; the
//! loopback interface of this process's namespace otherwise.
//!
//! New namespaces have no name: only file descriptors of this process hold them, so the kernel removes them and the
//! veth pair when the process ends. The kernel kills a child when the thread that spawned it ends.

mod child;
pub mod counters;
mod failure;
pub mod flood;
mod installation;
pub mod iperf;
mod namespace;
pub mod old_kernel;
pub mod pair;
pub mod perftest;
mod program;
mod seccomp;
mod shape;
pub mod surroundings;

pub use child::{Child, Finished, Protocol, ends_with_this_thread};
pub use failure::Failure;
pub use installation::library_folder;
pub use namespace::THIRD;
pub use program::{locate, missing};

use anyhow::{Context, Result};
use namespace::{INTERFACES, iproute, join_by_bridge, join_namespaces, mount_sysfs, shared_namespace};
use nix::sched::{CloneFlags, CpuSet, sched_getaffinity, sched_setaffinity, setns};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Name of the interface in either namespace.
const INTERFACE: &str = "eth0";

/// One of the two hosts of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Where servers run.
    A,
    /// Where clients run.
    B,
}

/// Two hosts for programs, each with its own core.
pub struct Stage {
    network: Network,
    cores: [usize; 2],
    /// Each side's programs run on its core only.
    pinned: bool,
    /// The sides stand for two programs of one host, and not for two hosts.
    one_host: bool,
    /// Veth pairs between the namespaces, which programs use as one if there are several.
    links: usize,
}

/// How A reaches B.
#[derive(Clone)]
enum Network {
    /// Two new namespaces, joined by a veth pair, or by a bridge in a third one.
    Joined([Arc<OwnedFd>; 2], Option<Arc<OwnedFd>>),
    /// One new namespace for both, with its loopback interface.
    Shared(Arc<OwnedFd>),
    /// The loopback interface of this process's namespace, and why there is no new namespace.
    Loopback(String),
}

impl Stage {
    /// Two namespaces joined by a veth pair with an MTU of `mtu` bytes, or loopback if that is not allowed.
    pub fn new(mtu: u32) -> Result<Stage> {
        Self::with_links(1, mtu)
    }

    /// The same with so many veth pairs, 1 to 64, which Weir's programs use as one: `eth0`, `eth1`, and so on.
    pub fn with_links(links: usize, mtu: u32) -> Result<Stage> {
        let joined = join_namespaces(links, mtu).map(|sides| Network::Joined(sides, None));
        let stage = Self::with(joined.unwrap_or_else(|e| Network::Loopback(format!("{e:#}"))))?;
        Ok(Stage { links, ..stage })
    }

    /// As [`Stage::new`], but with a bridge, the kernel's Ethernet switch, between both sides.
    pub fn bridged(mtu: u32) -> Result<Stage> {
        let joined = join_by_bridge(mtu).map(|(sides, switch)| Network::Joined(sides, Some(switch)));
        Self::with(joined.unwrap_or_else(|e| Network::Loopback(format!("{e:#}"))))
    }

    /// One namespace for both sides, as two processes of one host have it; or loopback if that is not allowed.
    pub fn same_host() -> Result<Stage> {
        let shared = shared_namespace().map(Network::Shared);
        let stage = Self::with(shared.unwrap_or_else(|e| Network::Loopback(format!("{e:#}"))))?;
        Ok(Stage { one_host: true, ..stage })
    }

    /// A stage on loopback.
    pub fn loopback() -> Result<Stage> {
        Self::with(Network::Loopback("as requested".into()))
    }

    fn with(network: Network) -> Result<Stage> {
        Ok(Stage { network, cores: pick_cores()?, pinned: true, one_host: false, links: 1 })
    }

    /// The same places, with programs on whichever cores the kernel chooses.
    pub fn unpinned(&self) -> Stage {
        Stage { network: self.network.clone(), pinned: false, ..*self }
    }

    /// Both sides in side A's place: two programs of one host with an interface other than loopback. Without namespaces,
    /// it is loopback.
    pub fn one_side(&self) -> Stage {
        Stage { network: self.network.clone(), one_host: true, ..*self }
    }

    /// A command that runs on this side: in its namespace, on its core if pinned, without stdin. The kernel kills it
    /// when this thread ends.
    pub fn command(&self, side: Side, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        ends_with_this_thread(&mut command);
        if self.network.is_joined() {
            // This process may itself run on another stage.
            command.env_remove("WEIR_INTERFACE");
            match self.link_names() {
                None => command.env_remove("WEIR_LINKS"),
                Some(names) => command.env("WEIR_LINKS", names),
            };
        } else {
            // The machine may have other interfaces, beside which programs do not see this one.
            command.env("WEIR_INTERFACE", self.interface());
        }
        let namespace = self.namespace(side).cloned();
        let mut core = CpuSet::new();
        // Cores come from the affinity mask, so the set has room for them.
        core.set(self.cores[side as usize]).expect("a core of the affinity mask");
        let core = self.pinned.then_some(core);
        // SAFETY: it runs between fork and exec, and makes only system calls: no allocation, no lock.
        unsafe {
            command.pre_exec(move || {
                if let Some(core) = &core {
                    sched_setaffinity(Pid::from_raw(0), core)?;
                }
                if let Some(namespace) = &namespace {
                    setns(namespace, CloneFlags::CLONE_NEWNET)?;
                    // Best effort: only programs that read /sys/class/net, such as UCX, need it.
                    let _ = mount_sysfs();
                }
                Ok(())
            });
        }
        command
    }

    /// Runs `job` on its own thread in this side's namespace. Sockets that it makes remain in that namespace.
    pub fn enter<T: Send>(&self, side: Side, job: impl FnOnce() -> T + Send) -> Result<T> {
        let namespace = self.namespace(side);
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || -> Result<T> {
                if let Some(namespace) = namespace {
                    setns(namespace, CloneFlags::CLONE_NEWNET).context("entering a network namespace")?;
                }
                Ok(job())
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs `job` on its own thread on a third host, at the bridge of [`Stage::bridged`]. Sockets that it makes remain
    /// there.
    pub fn enter_third<T: Send>(&self, job: impl FnOnce() -> T + Send) -> Result<T> {
        let Network::Joined(_, Some(switch)) = &self.network else { anyhow::bail!("this stage has no third host") };
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || -> Result<T> {
                setns(switch, CloneFlags::CLONE_NEWNET).context("entering a network namespace")?;
                Ok(job())
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// This side's address.
    pub fn address(&self, side: Side) -> IpAddr {
        // 198.18.0.0/15 is reserved for measurements between two hosts (RFC 2544).
        IpAddr::V4(match (self.network.is_joined(), self.place(side)) {
            (false, _) => Ipv4Addr::LOCALHOST,
            (true, Side::A) => Ipv4Addr::new(198, 18, 0, 1),
            (true, Side::B) => Ipv4Addr::new(198, 18, 0, 2),
        })
    }

    /// This side's address on a link; `eth0` is 0. Its address on loopback.
    pub fn link_address(&self, side: Side, link: usize) -> IpAddr {
        match self.address(side) {
            IpAddr::V4(first) if self.network.is_joined() => {
                let [a, b, _, host] = first.octets();
                IpAddr::V4(Ipv4Addr::new(a, b, link as u8, host))
            }
            address => address,
        }
    }

    /// This side's IPv6 address.
    pub fn address6(&self, side: Side) -> Ipv6Addr {
        match (self.network.is_joined(), self.place(side)) {
            (false, _) => Ipv6Addr::LOCALHOST,
            (true, Side::A) => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1),
            (true, Side::B) => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2),
        }
    }

    /// The network interface, which has the same name on both sides.
    pub fn interface(&self) -> &'static str {
        if self.network.is_joined() { INTERFACE } else { "lo" }
    }

    /// The names of the interfaces that programs use as one, as for `--links`, if there are several.
    pub fn link_names(&self) -> Option<String> {
        let names: Vec<String> = (0..self.links).map(|n| format!("{INTERFACES}{n}")).collect();
        (self.links > 1 && self.network.is_joined()).then(|| names.join(","))
    }

    /// The name of the Weir device of both sides, which includes the name of the interface if there is one.
    pub fn device(&self) -> String {
        match self.link_names() {
            Some(_) => "weir_links0".into(),
            None => format!("weir_{}", self.interface()),
        }
    }

    /// Runs `ip` (iproute2) on a side with a namespace of its own.
    pub fn ip(&self, side: Side, arguments: &str) -> Result<()> {
        self.iproute(side, "ip", arguments)
    }

    /// Runs a program of iproute2 on a side with a namespace of its own.
    pub(crate) fn iproute(&self, side: Side, program: &str, arguments: &str) -> Result<()> {
        iproute(self.namespace(side).context("this stage has no namespaces")?, program, arguments)
    }

    /// The core that this side's programs are pinned to.
    pub fn core(&self, side: Side) -> usize {
        self.cores[side as usize]
    }

    /// A TCP port that is free on this side now. It is outside of the range of ephemeral ports, from which the kernel
    /// might give it to another socket before it is used.
    pub fn free_port(&self, side: Side) -> Result<u16> {
        let taken = |port: &u16| {
            let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), *port);
            let any6 = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), *port);
            TcpListener::bind(any).is_err() || TcpListener::bind(any6).is_err_and(|e| e.kind() == ErrorKind::AddrInUse)
        };
        let port = self.enter(side, move || {
            (0..100).map(|_| 10_000 + (RandomState::new().hash_one(()) % 10_000) as u16).find(|port| !taken(port))
        })?;
        port.context("looking for a free port")
    }

    /// Returns whether the sides stand for two programs of one host. On loopback they may stand for two hosts: what is
    /// measured there is then a network, and packets must not go through shared memory.
    pub fn is_one_host(&self) -> bool {
        self.one_host
    }

    /// The path of this side's network namespace, while this process runs, for programs that start their own processes.
    /// `None`: that of this process.
    pub fn namespace_path(&self, side: Side) -> Option<String> {
        self.namespace(side).map(|held| format!("/proc/{}/fd/{}", std::process::id(), held.as_raw_fd()))
    }

    fn namespace(&self, side: Side) -> Option<&Arc<OwnedFd>> {
        self.network.namespace(self.place(side))
    }

    /// Where this side's programs run: at A, if both sides are one host.
    fn place(&self, side: Side) -> Side {
        if self.one_host { Side::A } else { side }
    }

    /// Why this stage is on loopback; `None` if it has new namespaces.
    pub fn loopback_reason(&self) -> Option<&str> {
        match &self.network {
            Network::Loopback(reason) => Some(reason),
            Network::Joined(..) | Network::Shared(_) => None,
        }
    }

    /// A short description of this stage.
    pub fn describe(&self) -> String {
        let networks = match &self.network {
            Network::Joined(..) if self.one_host => "one network namespace with an interface".to_owned(),
            Network::Joined(..) if self.links > 1 => format!("two network namespaces joined by {} veths", self.links),
            Network::Joined(_, Some(_)) => "two network namespaces joined by a bridge".to_owned(),
            Network::Joined(_, None) => "two network namespaces joined by veth".to_owned(),
            Network::Shared(_) => "one network namespace".to_owned(),
            Network::Loopback(reason) => format!("loopback without a namespace of its own ({reason})"),
        };
        format!("{networks}; cores {} and {}", self.cores[0], self.cores[1])
    }
}

impl Network {
    fn namespace(&self, side: Side) -> Option<&Arc<OwnedFd>> {
        match self {
            Network::Joined(namespaces, _) => Some(&namespaces[side as usize]),
            Network::Shared(namespace) => Some(namespace),
            Network::Loopback(_) => None,
        }
    }

    fn is_joined(&self) -> bool {
        matches!(self, Network::Joined(..))
    }
}

/// Two cores of the affinity mask, on different physical cores if possible; the same core twice if there is only one.
fn pick_cores() -> Result<[usize; 2]> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).context("reading the affinity mask")?;
    let cores: Vec<usize> = (0..CpuSet::count()).filter(|&c| allowed.is_set(c).unwrap_or(false)).collect();
    let first = *cores.first().context("the affinity mask is empty")?;
    let siblings = |core: usize| {
        fs::read_to_string(format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")).ok()
    };
    let rest = &cores[1..];
    let second = rest.iter().find(|&&c| siblings(c) != siblings(first)).or(rest.first());
    Ok([first, *second.unwrap_or(&first)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::time::Duration;

    fn run(stage: &Stage, side: Side, program: &str, arguments: &[&str]) -> String {
        let mut command = stage.command(side, program);
        command.args(arguments);
        let child = Child::spawn(&mut command, program).unwrap();
        child.wait(Duration::from_secs(10)).unwrap().success().unwrap().stdout
    }

    #[test]
    fn each_side_runs_on_its_own_core() {
        let stage = Stage::loopback().unwrap();
        for side in [Side::A, Side::B] {
            let status = run(&stage, side, "cat", &["/proc/self/status"]);
            assert!(status.contains(&format!("Cpus_allowed_list:\t{}\n", stage.core(side))), "{status}");
        }
    }

    #[test]
    #[ignore = "needs root"]
    fn two_namespaces_see_their_own_interface_and_reach_each_other() {
        let stage = Stage::new(9000).unwrap();
        assert_eq!(stage.loopback_reason(), None);
        assert_eq!(run(&stage, Side::A, "cat", &["/sys/class/net/eth0/mtu"]), "9000\n");
        let (address, port) = (stage.address(Side::A), stage.free_port(Side::A).unwrap());
        let listener = stage.enter(Side::A, || TcpListener::bind((address, port))).unwrap().unwrap();
        let from =
            stage.enter(Side::B, || std::net::TcpStream::connect((address, port)).unwrap().local_addr().unwrap().ip());
        assert_eq!(from.unwrap(), stage.address(Side::B));
        drop(listener);
    }

    #[test]
    #[ignore = "needs root"]
    fn a_bridge_joins_two_namespaces() {
        let stage = Stage::bridged(9000).unwrap();
        assert!(stage.describe().contains("a bridge"), "{}", stage.describe());
        let (address, port) = (stage.address(Side::A), stage.free_port(Side::A).unwrap());
        let _listener = stage.enter(Side::A, || TcpListener::bind((address, port))).unwrap().unwrap();
        stage.enter(Side::B, || std::net::TcpStream::connect((address, port)).unwrap()).unwrap();
    }

    #[test]
    #[ignore = "needs root"]
    fn both_sides_of_one_host_are_in_one_new_namespace() {
        let stage = Stage::same_host().unwrap();
        assert_eq!((stage.loopback_reason(), stage.interface()), (None, "lo"));
        let namespace = |side| run(&stage, side, "readlink", &["/proc/self/ns/net"]);
        assert_eq!(namespace(Side::A), namespace(Side::B));
        assert_ne!(Path::new(namespace(Side::A).trim()), fs::read_link("/proc/self/ns/net").unwrap());
        let (address, port) = (stage.address(Side::A), stage.free_port(Side::A).unwrap());
        let _listener = stage.enter(Side::A, || TcpListener::bind((address, port))).unwrap().unwrap();
        stage.enter(Side::B, || std::net::TcpStream::connect((address, port)).unwrap()).unwrap();
    }

    #[test]
    #[ignore = "needs root"]
    fn one_side_has_both_programs_in_the_namespace_of_side_a() {
        let joined = Stage::new(9000).unwrap();
        let one = joined.one_side();
        let namespace = |stage: &Stage, side| run(stage, side, "readlink", &["/proc/self/ns/net"]);
        assert_eq!(namespace(&one, Side::A), namespace(&joined, Side::A));
        assert_eq!(namespace(&one, Side::B), namespace(&joined, Side::A));
        assert_ne!(namespace(&joined, Side::B), namespace(&joined, Side::A));
        assert_eq!((one.address(Side::B), one.address6(Side::B)), (joined.address(Side::A), joined.address6(Side::A)));
        assert!(one.is_one_host() && one.interface() == "eth0" && !joined.is_one_host());
        let path = joined.namespace_path(Side::B).unwrap();
        assert_eq!(fs::read_link(path).unwrap().to_str().unwrap(), namespace(&joined, Side::B).trim());
    }
}
