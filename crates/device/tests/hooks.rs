//! Programs hook malloc and free and deregister regions inside the hook (UCX does so): at any allocation of the
//! library, under any of its locks.

mod common;

use common::{End, connect, create, open, pair, to_self};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use weir_device::{
    AddressHandle, Context, Cq, CqCreate, Mr, Mw, Pd, Qp, Receives, Rereg, Srq, SrqCreate, TagBuffer, TagCreate, TagOp,
    TagOpKind, WindowType, Xrcd,
};
use weir_transport::{
    Access, AttrMask, Bind, Data, Datagram, Profile, QpAttr, QpState, RecvWr, SendFlags, SendOp, SendWr, Service, Sge,
    Status, Target,
};
use weir_wire::tag::TMH_LEN;

struct Hooked;

#[global_allocator]
static ALLOCATOR: Hooked = Hooked;

thread_local! {
    /// Allocations and deallocations of this thread until the hook runs; `None`: it does not run.
    static COUNTDOWN: Cell<Option<u32>> = const { Cell::new(None) };
    /// The region that the hook deregisters.
    static VICTIM: RefCell<Option<Arc<Mr>>> = const { RefCell::new(None) };
}

// SAFETY: forwards to the system's allocator.
unsafe impl GlobalAlloc for Hooked {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        hook();
        // SAFETY: the caller's obligations.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        hook();
        // SAFETY: the caller's obligations.
        unsafe { System.dealloc(at, layout) }
    }
}

fn hook() {
    let left = COUNTDOWN.try_with(Cell::get).ok().flatten();
    match left {
        None => {}
        Some(0) => {
            COUNTDOWN.set(None);
            // Gives other threads time to block on locks that this thread holds.
            std::thread::sleep(Duration::from_millis(1));
            VICTIM.with_borrow(|victim| victim.as_ref().map(|mr| mr.dereg())).transpose().unwrap();
        }
        Some(left) => COUNTDOWN.set(Some(left - 1)),
    }
}

/// Repeats `work` with the hook at a later allocation each time, until the hook did not run. Returns the number of
/// allocations.
fn at_each_allocation(pd: &Arc<Pd>, memory: &[u8], mut work: impl FnMut()) -> u32 {
    for n in 0.. {
        let (addr, len) = (memory.as_ptr().addr() as u64, memory.len() as u64);
        VICTIM.set(Some(pd.reg_mr(addr, len, addr, Access::empty()).unwrap()));
        COUNTDOWN.set(Some(n));
        work();
        let rest = COUNTDOWN.take();
        VICTIM.take();
        if rest.is_some() {
            return n;
        }
    }
    unreachable!("work makes finitely many allocations")
}

#[test]
fn a_region_can_be_deregistered_inside_any_allocation() {
    let (reporter, reports) = mpsc::channel::<String>();
    std::thread::spawn(move || everything(&reporter));
    let mut last = "the beginning".to_string();
    loop {
        match reports.recv_timeout(Duration::from_secs(120)) {
            Ok(done) => last = done,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                eprintln!("no progress after {last}");
                // Abort instead of exit: exit handlers would wait for the engine too.
                std::process::abort();
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    assert_eq!(last, "all", "it panicked after that");
}

/// Calls control verbs of all kinds, while other threads keep the engine and its locks busy.
fn everything(reporter: &mpsc::Sender<String>) {
    let context = open();
    let pd = context.alloc_pd().unwrap();
    let memory = vec![1u8; 64 << 10];
    let memory: &[u8] = memory.leak();
    let addr = memory.as_ptr().addr() as u64;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mr = pd.reg_mr(addr, 4096, addr, access).unwrap();
    let windowed = pd.reg_mr(addr, 4096, addr, access | Access::MW_BIND).unwrap();
    let traffic = Traffic::new(&context, &pd, &mr, addr);
    let busy = AtomicBool::new(true);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| traffic.run(&busy));
        }
        let ring = |qp: &Qp, state| qp.modify(&QpAttr { qp_state: state, ..QpAttr::default() }, AttrMask::STATE);
        let each = |what: &str, work: &mut dyn FnMut()| {
            let count = at_each_allocation(&pd, memory, work);
            reporter.send(format!("{what}, with {count} allocations")).unwrap();
        };
        each("regions", &mut || {
            let [a, b] = [0, 8192].map(|at| pd.reg_mr(addr + at, 16384, addr + at, access).unwrap());
            b.rereg(&Rereg { translation: Some((addr, 100)), ..Rereg::default() }).unwrap();
            a.dereg().unwrap();
        });
        each("a shared queue", &mut || {
            for size in [3000, 2000] {
                traffic.srq.modify(Some(size), None).unwrap();
            }
        });
        each("a completion queue", &mut || {
            let cq = context.create_cq_with(CqCreate { cqe: 10, ..CqCreate::default() }).unwrap();
            cq.resize(20).unwrap();
            cq.moderate(3, 100).unwrap();
        });
        each("the busy completion queue", &mut || traffic.receiver.cq.resize(5000).unwrap());
        each("a queue pair", &mut || {
            let [a, b] = pair(&pd, &context);
            ring(&a.qp, QpState::Error).unwrap();
            ring(&b.qp, QpState::Reset).unwrap();
        });
        each("a queue pair with windows", &mut || {
            let [a, b] = pair(&pd, &context);
            let windows = [(); 3].map(|()| pd.alloc_mw(WindowType::Two).unwrap());
            for window in &windows {
                bind(&a, &windowed, window, addr);
            }
            a.qp.destroy().unwrap();
            b.qp.destroy().unwrap();
        });
        each("regions on demand", &mut || {
            let mr = pd.reg_on_demand_mr(addr, 16384, addr, access, false).unwrap();
            mr.rereg(&Rereg { translation: Some((addr, 100)), ..Rereg::default() }).unwrap();
            mr.dereg().unwrap();
        });
        each("another adapter of the device", &mut || {
            let profile = Profile { name: "hooks".into(), ..Profile::ideal() };
            drop(Context::open_as("weir_lo", &profile).unwrap());
        });
        each("another context", &mut || drop(open()));
        each("XRC", &mut || {
            let xrcd = Xrcd::open(&context).unwrap();
            let cq = context.create_cq(10, None, 0).unwrap();
            let create = SrqCreate { max_wr: 10, max_sge: 1, cookie: 0 };
            let srq = pd.create_srq(&create, Some((xrcd.clone(), cq))).unwrap();
            let target = xrcd.create_target(0).unwrap();
            target.destroy().unwrap();
            srq.destroy().unwrap();
        });
        each("a TM SRQ", &mut || {
            let cq = context.create_cq(10, None, 0).unwrap();
            let create = SrqCreate { max_wr: 10, max_sge: 1, cookie: 0 };
            let srq = pd.create_tm_srq(&create, &TagCreate { max_tags: 4, max_ops: 4 }, &cq).unwrap();
            let sync = TagOp { wr_id: 1, signaled: true, unexpected: None, kind: TagOpKind::Sync };
            srq.post_op(&sync).unwrap();
            srq.destroy().unwrap();
        });
        let tagged = Tagged::new(&context, &pd);
        each("tags", &mut || tagged.round());
        let mut handles: Vec<AddressHandle> = Vec::new();
        each("address handles", &mut || handles.push(pd.create_ah(&to_self(&context)).unwrap()));
        busy.store(false, Ordering::Relaxed);
        reporter.send("all".into()).unwrap();
    });
}

/// Binds a window for a QP, and waits for that.
fn bind(end: &End, mr: &Mr, window: &Mw, addr: u64) {
    let (window_rkey, new_rkey) = (window.rkey(), window.rkey() ^ 1);
    let bind = Bind { window_rkey, new_rkey, mr_lkey: mr.lkey(), addr, len: 64, access: Access::REMOTE_WRITE };
    let (op, data) = (SendOp::BindWindow(bind), Data::Gather(&[]));
    end.qp.post_send(&SendWr { wr_id: 0, op, flags: SendFlags::SIGNALED, data }).unwrap();
    end.qp.doorbell();
    let mut status = None;
    while status.is_none() {
        end.cq.poll(1, |completion| status = Some(completion.status)).unwrap();
    }
    assert_eq!(status, Some(Status::Success));
}

/// A TM SRQ, and a sender of messages that match its tags.
struct Tagged {
    sender: End,
    /// Completions of the SRQ.
    cq: Arc<Cq>,
    srq: Arc<Srq>,
    mr: Arc<Mr>,
    header: &'static [u8],
    _receiver: Arc<Qp>,
}

impl Tagged {
    fn new(context: &Arc<Context>, pd: &Arc<Pd>) -> Tagged {
        // An eager header, where every byte of the tag is 3, too.
        let header: &[u8] = vec![3u8; TMH_LEN].leak();
        let addr = header.as_ptr().addr() as u64;
        let mr = pd.reg_mr(addr, TMH_LEN as u64, addr, Access::empty()).unwrap();
        let cqs = [(); 2].map(|()| context.create_cq(64, None, 0).unwrap());
        let sizes = SrqCreate { max_wr: 4, max_sge: 1, cookie: 0 };
        let srq = pd.create_tm_srq(&sizes, &TagCreate { max_tags: 4, max_ops: 8 }, &cqs[0]).unwrap();
        let receives = Receives::Shared(srq.clone());
        let receiver = pd.create_qp_with(&create(Service::Rc), &cqs[1], &cqs[1], receives).unwrap();
        let qp = pd.create_qp(&create(Service::Rc), &cqs[1], &cqs[1]).unwrap();
        connect(context, &qp, receiver.num());
        connect(context, &receiver, qp.num());
        let [cq, other] = cqs;
        Tagged { sender: End { qp, cq: other }, cq, srq, mr, header, _receiver: receiver }
    }

    /// Adds two tags, deletes one, and sends a message that matches the other.
    fn round(&self) {
        let op = |kind| self.srq.post_op(&TagOp { wr_id: 1, signaled: true, unexpected: None, kind }).unwrap();
        let add = |tag| op(TagOpKind::Add(TagBuffer { wr_id: 2, tag, mask: u64::MAX, sges: &[] }));
        let _ = add(u64::from_ne_bytes([3; 8]));
        let _ = op(TagOpKind::Delete(add(1)));
        let sge = Sge { addr: self.header.as_ptr().addr() as u64, length: TMH_LEN as u32, lkey: self.mr.lkey() };
        let (op, flags, data) = (SendOp::Send, SendFlags::SIGNALED, Data::Gather(std::slice::from_ref(&sge)));
        self.sender.qp.post_send(&SendWr { wr_id: 3, op, flags, data }).unwrap();
        self.sender.qp.doorbell();
        for (cq, mut left) in [(&self.cq, 4), (&self.sender.cq, 1)] {
            while left > 0 {
                left -= cq.poll(1, |completion| assert_eq!(completion.status, Status::Success)).unwrap();
            }
        }
    }
}

/// SENDs into a shared queue, and datagrams.
struct Traffic {
    sender: End,
    receiver: End,
    srq: Arc<Srq>,
    datagrams: End,
    address: AddressHandle,
    sge: Sge,
}

impl Traffic {
    fn new(context: &Arc<Context>, pd: &Arc<Pd>, mr: &Mr, addr: u64) -> Traffic {
        let sge = Sge { addr, length: 64, lkey: mr.lkey() };
        let srq = pd.create_srq(&SrqCreate { max_wr: 2000, max_sge: 1, cookie: 0 }, None).unwrap();
        (0..500).for_each(|wr_id| srq.post(&RecvWr { wr_id, sges: &[sge] }).unwrap());
        let end = |service, receives| {
            let cq = context.create_cq(4000, None, 0).unwrap();
            End { qp: pd.create_qp_with(&create(service), &cq, &cq, receives).unwrap(), cq }
        };
        let sender = end(Service::Rc, Receives::Own);
        let receiver = end(Service::Rc, Receives::Shared(srq.clone()));
        connect(context, &sender.qp, receiver.qp.num());
        connect(context, &receiver.qp, sender.qp.num());
        let datagrams = end(Service::Ud, Receives::Own);
        use AttrMask as M;
        for (qp_state, mask) in
            [(QpState::Init, M::PKEY_INDEX | M::PORT | M::QKEY), (QpState::Rtr, M::empty()), (QpState::Rts, M::SQ_PSN)]
        {
            datagrams.qp.modify(&QpAttr { qp_state, ..QpAttr::default() }, mask | M::STATE).unwrap();
        }
        let address = pd.create_ah(&to_self(context)).unwrap();
        Traffic { sender, receiver, srq, datagrams, address, sge }
    }

    /// Keeps the engine busy with all of this traffic while `busy`.
    fn run(&self, busy: &AtomicBool) {
        let to = Datagram { address: self.address.number(), dest_qp: self.datagrams.qp.num(), qkey: 1 };
        while busy.load(Ordering::Relaxed) {
            for (end, to) in [(&self.sender, Target::Peer), (&self.datagrams, Target::Datagram(to))] {
                let (data, flags) = (Data::Gather(std::slice::from_ref(&self.sge)), SendFlags::SIGNALED);
                // Posting fails while the queue is full; the polls below make room.
                let _ = end.qp.post_send_to(&SendWr { wr_id: 0, op: SendOp::Send, flags, data }, to);
                end.qp.doorbell();
                end.cq.poll(16, |_| {}).unwrap();
            }
            let mut received = 0;
            self.receiver.cq.poll(16, |_| received += 1).unwrap();
            for wr_id in 0..received {
                let _ = self.srq.post(&RecvWr { wr_id, sges: &[self.sge] });
            }
        }
    }
}
