//! A process at its limit of descriptors: open devices keep working, and calls that need a new descriptor fail.

use std::fs::{self, File};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use weir_device::{AsyncEvent, Context, Errno, MadSocket, PortEvent, devices, epoll};
use weir_transport::Profile;

/// Holds all descriptors that the process may have, except those that were given back.
struct Exhausted(Vec<File>);

/// Runs tests one at a time, because they share the descriptors of the process.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Exhausted {
    fn new() -> Exhausted {
        use nix::sys::resource::{Resource, getrlimit, setrlimit};
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 256, hard).unwrap();
        let mut files = Vec::with_capacity(256);
        while let Ok(file) = File::open("/dev/null") {
            files.push(file);
        }
        Exhausted(files)
    }

    fn give_back(&mut self, count: usize) {
        self.0.truncate(self.0.len() - count);
    }
}

/// Counts open descriptors, without the file of counters, which a process keeps open after its first device.
fn open_descriptors() -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
    links.filter(|link| !fs::read_link(link.path()).is_ok_and(|path| path.ends_with("counters"))).count()
}

#[test]
fn opening_fails_cleanly_until_there_are_enough() {
    let _serial = one_at_a_time();
    let mut needed = None;
    for free in 0..64 {
        let before = open_descriptors();
        let mut exhausted = Exhausted::new();
        exhausted.give_back(free);
        let opened = Context::open_as("weir_lo", &Profile::ideal());
        let listed = devices();
        drop(exhausted);
        match opened {
            Ok(context) => {
                needed = Some(free);
                drop(context);
                break;
            }
            Err(error) => assert_eq!(error, Errno(libc::EMFILE), "with {free} free descriptors"),
        }
        assert_eq!(listed.is_err(), free == 0, "one free descriptor is enough to list devices");
        // The engine's thread, if it was started, ends asynchronously.
        let end = Instant::now() + Duration::from_secs(5);
        while open_descriptors() > before && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        let after = open_descriptors();
        assert!(
            after <= before,
            "of {after} descriptors only {before} were open before a failure with {free} free ones"
        );
    }
    assert!(needed.is_some_and(|needed| needed > 4), "{needed:?}");
    Context::open_as("weir_lo", &Profile::ideal()).unwrap();
}

/// A connection of the process that has port 4791 brings the MADs. Without a descriptor for it, the thread that waits for
/// MADs must not be woken again and again.
#[test]
fn mads_come_when_there_is_a_descriptor_again() {
    let _serial = one_at_a_time();
    let context = Context::open("weir_lo").unwrap();
    context.expect_mads();
    let epoll = Arc::new(epoll::create().unwrap());
    let (prefix, mut socket) = MadSocket::of_process(&epoll, 7).unwrap();
    let mut mad = [0; 256];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[17] = 0x13;
    mad[28..32].copy_from_slice(&(prefix | 5).to_be_bytes());
    let here: IpAddr = [127, 0, 0, 1].into();
    // Sends until `done`; returns whether it is.
    let exchange = |socket: &mut MadSocket, done: fn(&MadSocket, usize) -> bool, seconds: u64| {
        let (mut came, end) = (0, Instant::now() + Duration::from_secs(seconds));
        while !done(socket, came) && Instant::now() < end {
            context.send_mad(here, here, 1, &mad).unwrap();
            std::thread::sleep(Duration::from_millis(1));
            socket.take(|_| came += 1);
        }
        done(socket, came)
    };
    let paused: fn(&MadSocket, usize) -> bool = |socket, _| socket.resumes().is_some();
    let mut exhausted = Exhausted::new();
    // If this process has the port, its own end of the connection needs a descriptor too.
    if !exchange(&mut socket, paused, 1) {
        exhausted.give_back(1);
        assert!(exchange(&mut socket, paused, 10), "the connection was accepted");
    }
    let mut waits = libc::pollfd { fd: epoll.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    assert_eq!(unsafe { libc::poll(&raw mut waits, 1, 0) }, 0, "nothing wakes the thread");
    drop(exhausted);
    let due = socket.resumes().unwrap();
    socket.resume(due);
    assert!(exchange(&mut socket, |_, came| came > 0, 10), "no MAD has come");
}

#[test]
fn an_open_port_keeps_its_attributes() {
    let _serial = one_at_a_time();
    let context = Context::open("weir_lo").unwrap();
    let look = || {
        let port = context.port();
        (port.active, port.active_mtu, port.gid_table_len, port.speed_mbps, context.gids())
    };
    let before = look();
    assert!(before.0);
    let exhausted = Exhausted::new();
    assert_eq!(look(), before);
    drop(exhausted);
    assert_eq!(look(), before);
}

#[test]
#[ignore = "needs root"]
fn a_new_address_is_not_a_fatal_event() {
    let _serial = one_at_a_time();
    // A network namespace of this thread and of the programs that it starts.
    std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("the right to make a network namespace");
        let sh = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::piped());
            command.spawn().expect("there is a shell")
        };
        assert!(sh("ip link set lo up").wait().unwrap().success());
        let context = Context::open("weir_lo").unwrap();
        let mut later = sh("read go && ip addr add 10.9.8.7/32 dev lo");
        let mut input = later.stdin.take().unwrap();
        let exhausted = Exhausted::new();
        std::io::Write::write_all(&mut input, b"go\n").unwrap();
        assert!(later.wait().unwrap().success());
        let mut poll = libc::pollfd { fd: context.async_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd on the stack.
        assert_eq!(unsafe { libc::poll(&mut poll, 1, 10_000) }, 1, "an event arrives");
        assert_eq!(context.get_async_event(), Ok(AsyncEvent::Port(PortEvent::GidChange)));
        assert!(context.gids().contains(&Some("10.9.8.7".parse().unwrap())));
        // SAFETY: as above.
        assert_eq!(unsafe { libc::poll(&mut poll, 1, 100) }, 0, "and no further event");
        assert!(context.port().active);
        drop(exhausted);
    })
    .join()
    .unwrap();
}

/// An invalidation of memory waits for the engines of all adapters, for which it has so many places.
#[test]
fn a_process_has_a_limited_number_of_adapters() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let _serial = one_at_a_time();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if hard < 4096 {
        eprintln!("skipped: 64 adapters need more than the {hard} descriptors that `ulimit -Hn` permits");
        return;
    }
    setrlimit(Resource::RLIMIT_NOFILE, 4096, hard).unwrap();
    let open = |n: usize| Context::open_as("weir_lo", &Profile { name: format!("number {n}"), ..Profile::ideal() });
    let mut all: Vec<_> = (0..64).map(|n| open(n).unwrap()).collect();
    assert_eq!(open(64).err(), Some(Errno(libc::EMFILE)));
    assert!(open(63).is_ok(), "that adapter exists");
    all.pop();
    assert!(open(64).is_ok(), "one was closed");
    drop(all);
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
}
