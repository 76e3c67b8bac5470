//! Two network namespaces joined by several links, one of which fails.

mod common;

use common::{Area, SOON, noise};
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};
use weir_edge::{Access, Allow, Connection, Error, Kind, Mode, Node, OperationFlags, Options};
use weir_stage::{Side, Stage};

/// Runs `ip` on a side.
fn ip(stage: &Stage, side: Side, arguments: &str) {
    let run = || Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    let output = stage.enter(side, run).unwrap();
    assert!(output.status.success(), "ip {arguments}: {output:?}");
}

/// A stage with so many links; those after the first have networks of their own.
fn stage(links: usize, mtu: u32) -> Stage {
    let stage = Stage::new(mtu).unwrap();
    assert_eq!(stage.loopback_reason(), None);
    let other = stage.namespace_path(Side::B).unwrap();
    for n in 1..links {
        ip(&stage, Side::A, &format!("link add eth{n} mtu {mtu} type veth peer name eth{n} mtu {mtu} netns {other}"));
        for (side, host) in [(Side::A, 1), (Side::B, 2)] {
            ip(&stage, side, &format!("address add 10.77.{n}.{host}/24 dev eth{n}"));
            ip(&stage, side, &format!("link set eth{n} up"));
        }
    }
    // The kernel calls an interface running some time after it has a carrier.
    let running = || {
        let output = Command::new("ip").args(["-o", "link", "show", "up"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).lines().filter(|line| line.contains("state UP")).count()
    };
    let end = Instant::now() + Duration::from_secs(5);
    while [Side::A, Side::B].iter().any(|side| stage.enter(*side, running).unwrap() < links) {
        assert!(Instant::now() < end, "the links do not come up");
        std::thread::sleep(Duration::from_millis(20));
    }
    stage
}

/// A connection between the sides of a stage, over all of its links.
fn connect(stage: &Stage, options: &Options, allow: &Allow) -> (Node, Node, [Connection; 2]) {
    let options = Options { port: 0, links: Some("auto".parse().unwrap()), ..options.clone() };
    let listener = stage.enter(Side::A, || Node::listen(options.clone()).unwrap()).unwrap();
    let requester = stage.enter(Side::B, || Node::open(options.clone()).unwrap()).unwrap();
    let to = SocketAddr::new(stage.address(Side::A), listener.port());
    let sides = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| listener.wait(allow, Some(SOON)).unwrap());
        let requested = requester.request(to, &Allow::nothing(), SOON).unwrap();
        [waiting.join().unwrap(), requested]
    });
    (listener, requester, sides)
}

#[test]
#[ignore = "needs root"]
fn a_link_that_fails_under_way_is_left() {
    for (links, mtu) in [(2, 1500), (4, 9000)] {
        let stage = stage(links, mtu);
        let area = Area::new(8 << 20);
        let access = Access::READ | Access::WRITE;
        let (_listener, _requester, sides) = connect(&stage, &Options::default(), &area.allow(access));
        assert_eq!(sides[1].links(), Ok(links));
        let bytes = noise(links as u64, 8 << 20);
        let write = |_| {
            let local = bytes.as_ptr().cast_mut();
            // SAFETY: the bytes stay until the operations are complete.
            unsafe { sides[1].operation(Kind::Write, area.address(), local, bytes.len(), OperationFlags::empty()) }
                .unwrap()
        };
        let handles: Vec<u32> = (0..20).map(write).collect();
        // All links are used before the last one fails.
        let used = || stage.sent_by_links(Side::B).unwrap().iter().all(|share| *share > 100_000);
        let end = Instant::now() + SOON;
        while !used() {
            assert!(Instant::now() < end, "a link is not used: {:?}", stage.sent_by_links(Side::B));
            std::thread::sleep(Duration::from_millis(1));
        }
        ip(&stage, Side::A, &format!("link set eth{} down", links - 1));
        let before = Instant::now();
        let ends: Vec<Result<(), Error>> = handles.iter().map(|handle| sides[1].wait(*handle, Some(SOON))).collect();
        assert!(ends.iter().all(Result::is_ok), "{ends:?}");
        assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
        assert!(area.get() == bytes);
        let mut back = vec![0; 8 << 20];
        sides[1].read(area.address(), &mut back, OperationFlags::empty()).unwrap();
        assert!(back == bytes);
    }
}

#[test]
#[ignore = "needs root"]
fn a_connection_outlives_the_link_that_it_began_on() {
    let stage = stage(2, 1500);
    let area = Area::new(100_000);
    let options = Options { patience: Duration::from_millis(600), mode: Mode::Events, ..Options::default() };
    let (_listener, _requester, sides) = connect(&stage, &options, &area.allow(Access::WRITE));
    ip(&stage, Side::A, "link set eth0 down");
    // Longer than the patience: the peer shows on the other link that it is there.
    std::thread::sleep(Duration::from_millis(1500));
    let bytes = noise(9, 100_000);
    sides[1].write(area.address(), &bytes, OperationFlags::NOTIFY).unwrap();
    assert_eq!(area.get(), bytes);
    assert!(sides[0].wait_event(Some(SOON)).is_ok());
}
