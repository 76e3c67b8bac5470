//! No memory is allocated per datagram: neither by the capture nor by fault injection once its buffers exist.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use weir_link::capture::{Capture, CaptureOptions};
use weir_link::faults::Faults;
use weir_link::{Arrival, Carrier, Group, Inbox, Outbox};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static NOW: Cell<u64> = const { Cell::new(0) };
}

/// Counts the allocations of each thread.
struct Counting;

// SAFETY: forwards to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's obligations are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's obligations are passed on.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Discards what is sent, and returns four datagrams per receive.
struct Busy;

impl Carrier for Busy {
    fn send(&mut self, _outbox: &Outbox) -> io::Result<()> {
        Ok(())
    }
    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<usize> {
        inbox.arrivals.clear();
        let from = "10.0.0.2:20485".parse().expect("an address");
        inbox.arrivals.push(Arrival { segment: 1000, ..Arrival::new(from, 20480, 0, 4000) });
        Ok(1)
    }
    fn max_segments(&self) -> usize {
        64
    }
    fn listen(&mut self, _port: u16) -> io::Result<()> {
        Ok(())
    }
    fn fds(&self) -> Vec<RawFd> {
        Vec::new()
    }
}

/// Allocations of this thread while 500 datagrams are sent and at least as many are received.
fn allocations(carrier: &mut impl Carrier, outbox: &Outbox, inbox: &mut Inbox) -> u64 {
    let before = ALLOCATIONS.get();
    for _ in 0..500 {
        carrier.send(outbox).unwrap();
        carrier.receive(inbox).unwrap();
    }
    ALLOCATIONS.get() - before
}

#[test]
fn no_allocation_per_datagram() {
    let dir = tempfile::tempdir().unwrap();
    let options = CaptureOptions { port: 20480, ring: 1 << 20, ..Default::default() };
    let mut capture = Capture::create(Busy, &dir.path().join("a.pcapng"), &options).unwrap();
    let to = SocketAddr::from(([10, 0, 0, 2], 20485));
    let mut outbox = Outbox::new(1000, 1);
    outbox.len = 1000;
    outbox.groups.push(Group { len: 1000, segment: 1000, ..Group::new(to, IpAddr::from([10, 0, 0, 1]), 0) });
    let mut inbox = Inbox::new(8);
    assert_eq!(allocations(&mut capture, &outbox, &mut inbox), 0);
    assert!(capture.recorded().dropped < 2500, "some were recorded");

    let spec = "loss=0.1,dup=0.1,reorder=0.1,corrupt=0.1,delay=2us,seed=1,dir=both".parse().unwrap();
    let clock = || {
        NOW.set(NOW.get() + 1000);
        NOW.get()
    };
    let mut faults = Faults::with_clock(capture, &spec, clock);
    let warming = allocations(&mut faults, &outbox, &mut inbox);
    assert!(warming > 0, "the counter counts");
    assert_eq!(allocations(&mut faults, &outbox, &mut inbox), 0);
}
