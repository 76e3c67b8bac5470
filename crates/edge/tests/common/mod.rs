//! Two nodes of one process, with a connection on loopback.

#![allow(dead_code)] // Each test program uses a part.

use std::net::SocketAddr;
use std::time::Duration;
use weir_edge::{Access, Allow, Connection, LinksSpec, Mode, Node, Options, Parameters};

pub const SOON: Duration = Duration::from_secs(10);

/// Options for loopback.
pub fn options(mode: Mode) -> Options {
    let links = Some("lo".parse::<LinksSpec>().unwrap());
    Options { port: 0, links, mode, ..Options::default() }
}

/// Two nodes, and a connection between them.
pub struct Pair {
    pub listener: Node,
    pub requester: Node,
    /// The connection of the listener, and that of the requester.
    pub sides: [Connection; 2],
}

impl Pair {
    /// Each side allows what it says.
    pub fn new(options: &Options, allow: [&Allow; 2]) -> Pair {
        let listener = Node::listen(options.clone()).unwrap();
        let requester = Node::open(options.clone()).unwrap();
        let sides = connect(&listener, &requester, allow);
        Pair { listener, requester, sides }
    }

    /// Each side may use all memory of the other.
    pub fn whole(options: &Options) -> Pair {
        // SAFETY: these tests use only memory that they have for it.
        let allow = unsafe { Allow::whole_process() };
        Pair::new(options, [&allow, &allow])
    }
}

/// A connection between two nodes.
pub fn connect(listener: &Node, requester: &Node, allow: [&Allow; 2]) -> [Connection; 2] {
    let to = address(listener);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| listener.wait(allow[0], Some(SOON)).unwrap());
        let requested = requester.request(to, allow[1], SOON).unwrap();
        [waiting.join().unwrap(), requested]
    })
}

/// Where a node listens.
pub fn address(listener: &Node) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], listener.port()))
}

/// Memory for peers.
pub struct Area {
    bytes: Box<[std::cell::UnsafeCell<u8>]>,
}

// SAFETY: the tests read it when the operations that write it are complete.
unsafe impl Sync for Area {}

impl Area {
    pub fn new(bytes: usize) -> Area {
        Area { bytes: (0..bytes).map(|_| std::cell::UnsafeCell::new(0)).collect() }
    }

    pub fn start(&self) -> *mut u8 {
        self.bytes.as_ptr().cast_mut().cast()
    }

    pub fn address(&self) -> u64 {
        self.start().expose_provenance() as u64
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn allow(&self, access: Access) -> Allow {
        // SAFETY: it is read and written through pointers only.
        unsafe { Allow::nothing().and(self.start(), self.len(), access) }
    }

    pub fn get(&self) -> Vec<u8> {
        // SAFETY: no operation is under way.
        unsafe { std::slice::from_raw_parts(self.start(), self.len()) }.to_vec()
    }

    pub fn set(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len());
        // SAFETY: no operation is under way.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start(), bytes.len()) };
    }
}

/// Bytes that look random.
pub fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = Rng(seed | 1);
    (0..bytes).map(|_| rng.next() as u8).collect()
}

/// A generator of random numbers (xorshift).
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 16
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// A seed, which the test prints.
pub fn seed() -> u64 {
    let seed = std::env::var("EDGE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) * 2 + 1);
    println!("EDGE_SEED={seed}");
    seed
}

/// Short waits, for tests of peers that are gone.
pub fn impatient(mode: Mode) -> Options {
    Options { patience: Duration::from_millis(400), parameters: Parameters::TUNED, ..options(mode) }
}
