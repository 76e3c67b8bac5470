//! Connections that cannot be made, that end, and packets of others at the port.

mod common;

use common::{Area, Pair, SOON, address, connect, impatient, noise, options};
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use weir_edge::{Access, Allow, Error, Event, Kind, Mode, Node, OperationFlags, Options};

const NONE: OperationFlags = OperationFlags::empty();
const MODES: [Mode; 2] = [Mode::Events, Mode::Polling];

#[test]
fn a_request_is_refused_or_not_answered() {
    for mode in MODES {
        let options = Options { backlog: 1, ..options(mode) };
        let listener = Node::listen(options.clone()).unwrap();
        let open = || Node::open(options.clone()).unwrap();
        let to = address(&listener);
        let first = open();
        let kept = first.request(to, &Allow::nothing(), SOON).expect("the backlog has room");
        assert_eq!(first.request(to, &Allow::nothing(), SOON).err(), Some(Error::Connected(to)));
        let other = open();
        assert_eq!(other.request(to, &Allow::nothing(), SOON).err(), Some(Error::Refused(to)));
        // What only requests connections refuses them.
        let refuses = SocketAddr::new(to.ip(), first.port());
        assert_eq!(other.request(refuses, &Allow::nothing(), SOON).err(), Some(Error::Refused(refuses)));
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = silent.local_addr().unwrap();
        let before = Instant::now();
        assert_eq!(other.request(at, &Allow::nothing(), Duration::from_millis(200)).err(), Some(Error::NoAnswer(at)));
        assert!((200..2000).contains(&before.elapsed().as_millis()), "{:?}", before.elapsed());
        // The program takes the first, and there is room again.
        let taken = listener.wait(&Allow::nothing(), Some(SOON)).unwrap();
        let second = other.request(to, &Allow::nothing(), SOON).unwrap();
        assert!(listener.request(to, &Allow::nothing(), SOON).is_err(), "a listener does not request");
        drop((kept, taken, second));
        assert_eq!(Node::listen(Options { port: listener.port(), ..options }).err(), Some(Error::PortInUse(to.port())));
    }
}

#[test]
fn a_listener_may_start_long_after_it_is_asked() {
    let attempt = |mode| {
        let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let listens = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(5));
            let listener = Node::listen(Options { port, ..options(mode) }).unwrap();
            let taken = listener.wait(&Allow::nothing(), Some(SOON)).unwrap();
            (listener, taken)
        });
        let requester = Node::open(options(mode)).unwrap();
        let to = SocketAddr::from(([127, 0, 0, 1], port));
        let connection = requester.request(to, &Allow::nothing(), 3 * SOON);
        assert!(connection.is_ok(), "{mode:?}: {:?}", connection.err());
        listens.join().unwrap();
    };
    // Both at the same time: it is slow.
    std::thread::scope(|scope| MODES.into_iter().for_each(|mode| drop(scope.spawn(move || attempt(mode)))));
}

#[test]
fn a_connection_works_before_the_program_takes_it() {
    let (listener, requester) =
        (Node::listen(options(Mode::Events)).unwrap(), Node::open(options(Mode::Events)).unwrap());
    let area = Area::new(1000);
    let connection = requester.request(address(&listener), &Allow::nothing(), SOON).unwrap();
    let bytes = noise(3, 1000);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| connection.write(area.address(), &bytes, NONE));
        std::thread::sleep(Duration::from_millis(50));
        let taken = listener.wait(&area.allow(Access::WRITE), Some(SOON)).unwrap();
        assert_eq!(writing.join().unwrap(), Ok(()));
        drop(taken);
    });
    assert_eq!(area.get(), bytes);
}

#[test]
fn the_end_of_a_connection_is_told() {
    for mode in MODES {
        let pair = Pair::whole(&options(mode));
        let [a, b] = pair.sides;
        b.tell(1).unwrap();
        drop(a);
        let ended = loop {
            match b.wait_event(Some(SOON)) {
                Ok(Event::Completed { .. }) => {}
                other => break other,
            }
        };
        assert_eq!(ended, Err(Error::Ended));
        assert_eq!(b.write(0, &[1], NONE), Err(Error::Ended));
        assert_eq!(b.tell(5), Err(Error::Ended));
        drop(b);
        // And the nodes can connect again.
        let sides = connect(&pair.listener, &pair.requester, [&Allow::nothing(); 2]);
        sides[0].tell(7).unwrap();
        assert_eq!(sides[1].wait_event(Some(SOON)), Ok(Event::Notified { address: 7, bytes: 0 }));
    }
}

#[test]
fn what_was_performed_is_known_before_the_connection_ends() {
    for round in 0..50 {
        let pair = Pair::new(&options(Mode::Events), [&Allow::nothing(); 2]);
        let [a, b] = pair.sides;
        let handle = a.tell(round).unwrap();
        assert_eq!(b.wait_event(Some(SOON)), Ok(Event::Notified { address: round, bytes: 0 }));
        drop(b);
        assert_eq!(a.wait(handle, Some(SOON)), Ok(()), "round {round}");
    }
}

/// A connection that is idle for longer than the patience stays.
#[test]
fn an_idle_connection_stays() {
    let pair = Pair::new(&impatient(Mode::Events), [&Allow::nothing(); 2]);
    std::thread::sleep(Duration::from_millis(1300));
    let [a, b] = &pair.sides;
    a.tell(9).unwrap();
    assert_eq!(b.wait_event(Some(SOON)), Ok(Event::Notified { address: 9, bytes: 0 }));
    assert_eq!(b.next_event(), Ok(None));
}

/// The other process of `a_killed_peer_makes_operations_fail`.
#[test]
#[ignore = "another test starts it"]
fn other_process() {
    let port = std::env::var("EDGE_PORT").map_or(0, |port| port.parse().unwrap());
    let listener = Node::listen(Options { port, ..options(Mode::Events) }).unwrap();
    println!("port {}", listener.port());
    let area = Area::new(64 << 20);
    // SAFETY: this process has nothing else to do.
    let connection = listener.wait(&unsafe { Allow::whole_process() }, Some(SOON)).unwrap();
    connection.tell(area.address()).unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

/// Starts the other process; returns it and its port.
fn spawn_other(port: u16) -> (Child, u16) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["other_process", "--ignored", "--exact", "--nocapture"])
        .env("EDGE_PORT", port.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let port = lines.find_map(|line| line.split("port ").nth(1)?.trim().parse::<u16>().ok()).unwrap();
    (child, port)
}

/// Another process at the port of a killed peer ends the connection long before the patience does.
#[test]
fn a_peer_that_starts_anew_ends_the_connection() {
    let (mut child, port) = spawn_other(0);
    let node = Node::open(options(Mode::Events)).unwrap();
    let connection = node.request(([127, 0, 0, 1], port).into(), &Allow::nothing(), SOON).unwrap();
    let Ok(Event::Notified { address, .. }) = connection.wait_event(Some(SOON)) else { panic!() };
    child.kill().unwrap();
    child.wait().unwrap();
    let (mut again, _) = spawn_other(port);
    let before = Instant::now();
    assert_eq!(connection.write(address, &[1], NONE), Err(Error::Ended));
    assert!(before.elapsed() < Duration::from_secs(2), "{:?}", before.elapsed());
    drop(connection);
    let connection = node.request(([127, 0, 0, 1], port).into(), &Allow::nothing(), SOON).unwrap();
    assert!(matches!(connection.wait_event(Some(SOON)), Ok(Event::Notified { .. })));
    again.kill().unwrap();
    again.wait().unwrap();
}

#[test]
fn a_killed_peer_makes_operations_fail() {
    for mode in MODES {
        let (mut child, port) = spawn_other(0);
        let node = Node::open(impatient(mode)).unwrap();
        let connection = node.request(([127, 0, 0, 1], port).into(), &Allow::nothing(), SOON).unwrap();
        let Ok(Event::Notified { address, .. }) = connection.wait_event(Some(SOON)) else { panic!() };
        let area = Area::new(64 << 20);
        let write = |_| {
            // SAFETY: the area lives until the end.
            unsafe { connection.operation(Kind::Write, address, area.start(), area.len(), NONE) }.unwrap()
        };
        let handles: Vec<u32> = (0..50).map(write).collect();
        std::thread::sleep(Duration::from_millis(20));
        child.kill().unwrap();
        let before = Instant::now();
        child.wait().unwrap();
        let ends: Vec<_> = handles.into_iter().map(|handle| connection.wait(handle, Some(SOON))).collect();
        let silent = Err(Error::Silent(Duration::from_millis(400)));
        assert_eq!(ends.last(), Some(&silent));
        assert!(ends.iter().all(|end| *end == Ok(()) || *end == silent), "{ends:?}");
        assert!(before.elapsed() < Duration::from_secs(2), "{:?}", before.elapsed());
        assert_eq!(connection.wait_event(Some(SOON)), silent.map(|()| unreachable!()));
    }
}

/// Random bytes, hellos, and packets of the connection from another port change nothing.
#[test]
fn packets_of_others_change_nothing() {
    let seed = common::seed();
    let mut rng = common::Rng(seed);
    let area = Area::new(1 << 20);
    let access = Access::READ | Access::WRITE;
    let pair = Pair::new(&options(Mode::Events), [&area.allow(access), &Allow::nothing()]);
    let hostile = UdpSocket::bind("127.0.0.1:0").unwrap();
    let bytes = noise(seed, 1 << 20);
    let targets = [pair.listener.port(), pair.requester.port()];
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            (0..20).for_each(|_| pair.sides[1].write(area.address(), &bytes, NONE).unwrap());
        });
        for n in 0..3000u32 {
            let len = rng.below(200) as usize;
            let mut packet: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
            match n % 4 {
                0 if len > 4 => packet[..4].copy_from_slice(b"WLNK"),
                1 if len > 28 => {
                    packet[..4].copy_from_slice(&[1, 2, 0, 0]);
                    packet[24..28].fill(0);
                    let check = crc(&packet[..28]);
                    packet[24..28].copy_from_slice(&check.to_be_bytes());
                }
                _ => {}
            }
            hostile.send_to(&packet, ("127.0.0.1", targets[n as usize % 2])).unwrap();
        }
        writing.join().unwrap();
    });
    assert_eq!(area.get(), bytes, "seed {seed}");
    let refused = |node: &Node| node.counters().unwrap().packets_refused;
    assert!(refused(&pair.listener) > 500 && refused(&pair.requester) > 500);
    assert_eq!(pair.sides[0].next_event(), Ok(None));
}

/// CRC-32 as headers have it.
fn crc(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 })
    };
    !bytes.iter().fold(!0, step)
}

#[test]
fn packets_that_are_replayed_from_another_port_change_nothing() {
    // A relay between two nodes sees all packets, and sends each again from another port.
    let (listener, requester) =
        (Node::listen(options(Mode::Events)).unwrap(), Node::open(options(Mode::Events)).unwrap());
    let area = Area::new(100_000);
    let relay = UdpSocket::bind("127.0.0.1:0").unwrap();
    relay.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (to, from, at) = (address(&listener), requester.port(), relay.local_addr().unwrap());
    let done = std::sync::atomic::AtomicBool::new(false);
    let replayed = std::thread::scope(|scope| {
        let relaying = scope.spawn(|| {
            let (mut buffer, mut replayed) = (vec![0; 1 << 16], 0);
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let Ok((len, source)) = relay.recv_from(&mut buffer) else { continue };
                let target = if source.port() == from { to } else { ([127, 0, 0, 1], from).into() };
                relay.send_to(&buffer[..len], target).unwrap();
                if !buffer.starts_with(b"WLNK") {
                    other.send_to(&buffer[..len], target).unwrap();
                    replayed += 1;
                }
            }
            replayed
        });
        let waiting = scope.spawn(|| listener.wait(&area.allow(Access::WRITE), Some(SOON)).unwrap());
        let connection = requester.request(at, &Allow::nothing(), SOON).unwrap();
        let taken = waiting.join().unwrap();
        for n in 0..20 {
            connection.write(area.address(), &noise(n, 100_000), NONE).unwrap();
            assert_eq!(area.get(), noise(n, 100_000));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        drop(taken);
        relaying.join().unwrap()
    });
    let refused = listener.counters().unwrap().packets_refused + requester.counters().unwrap().packets_refused;
    assert!(replayed > 20 && refused + 5 > replayed, "{refused} of {replayed}");
}

#[test]
fn a_forked_child_does_not_use_the_node() {
    let pair = Pair::new(&options(Mode::Events), [&Allow::nothing(); 2]);
    // SAFETY: the child calls functions that take no lock in it, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = pair.sides[0].tell(1) == Err(Error::Forked)
            && pair.listener.counters().err() == Some(Error::Forked)
            && pair.sides[1].next_event() == Err(Error::Forked);
        drop(pair);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = 0;
    // SAFETY: a child of this process, and an integer on the stack.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
    pair.sides[0].tell(1).unwrap();
    assert!(pair.sides[1].wait_event(Some(SOON)).is_ok());
}

/// What the peer sends at once comes before this side knows that the peer has agreed.
#[test]
fn a_request_is_complete_when_a_packet_comes() {
    let listener = Node::listen(options(Mode::Events)).unwrap();
    let to = address(&listener);
    for round in 0..100 {
        let requester = Node::open(options(Mode::Events)).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let connection = listener.wait(&Allow::nothing(), Some(SOON)).unwrap();
                connection.tell(round).unwrap();
                connection
            });
            let before = Instant::now();
            let connection = requester.request(to, &Allow::nothing(), SOON).unwrap();
            assert_eq!(connection.wait_event(Some(SOON)), Ok(Event::Notified { address: round, bytes: 0 }));
            assert!(before.elapsed() < Duration::from_secs(2), "round {round}: {:?}", before.elapsed());
            drop(waiting.join().unwrap());
        });
    }
}

/// A listener serves many connections at once, from many threads.
#[test]
fn many_connections_of_one_listener_do_not_mix() {
    const COUNT: usize = 12;
    let listener = Node::listen(options(Mode::Events)).unwrap();
    let to = address(&listener);
    let areas: Vec<Area> = (0..COUNT).map(|_| Area::new(1 << 20)).collect();
    std::thread::scope(|scope| {
        for (n, area) in areas.iter().enumerate() {
            scope.spawn(move || {
                let node = Node::open(options(MODES[n % 2])).unwrap();
                let connection = node.request(to, &Allow::nothing(), SOON).unwrap();
                // The listener's program says which area it allows.
                let Event::Notified { address, .. } = connection.wait_event(Some(SOON)).unwrap() else { panic!() };
                for round in 0..5 {
                    connection.write(address, &noise(address ^ round, 1 << 20), NONE).unwrap();
                }
                let other = if address == area.address() { address + (1 << 20) } else { area.address() };
                assert_eq!(connection.write(other, &[0], NONE), Err(Error::Remote));
            });
        }
        let taken: Vec<_> = areas
            .iter()
            .map(|area| {
                let connection = listener.wait(&area.allow(Access::WRITE), Some(SOON)).unwrap();
                connection.tell(area.address()).unwrap();
                connection
            })
            .collect();
        for connection in &taken {
            while connection.wait_event(Some(SOON)).is_ok() {}
        }
    });
    for area in &areas {
        assert!(area.get() == noise(area.address() ^ 4, 1 << 20));
    }
}
