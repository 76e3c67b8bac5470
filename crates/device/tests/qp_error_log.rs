//! Log lines about QPs that enter the error state on their own.

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use common::{connect, connect_with, create, open, pair};
use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use weir_device::{Context, Cq, Mr, Pd, SrqCreate, WindowType};
use weir_transport::{Access, Bind, Data, QpAttr, RecvWr, SendFlags, SendOp, SendWr, Service, Sge, Status};

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// What the log deregisters at its next line, as a memory hook of the program may do when the line allocates memory.
static VICTIM: Mutex<Option<Arc<Mr>>> = Mutex::new(None);

/// Collects warnings.
struct Log;

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }
    fn event(&self, event: &Event<'_>) {
        struct Text(String);
        impl Visit for Text {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                if field.name() == "message" {
                    write!(self.0, "{value:?}").expect("a string grows");
                }
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        WARNINGS.lock().unwrap().push(text.0);
        let victim = VICTIM.lock().unwrap().take();
        if let Some(victim) = victim {
            victim.dereg().expect("it is registered");
        }
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Waits for `count` completions.
fn ended(cq: &Cq, count: usize) -> Vec<Status> {
    let (until, mut ended) = (Instant::now() + Duration::from_secs(20), vec![]);
    while ended.len() < count && Instant::now() < until {
        cq.poll(count, |completion| ended.push(completion.status)).unwrap();
    }
    ended
}

/// Waits for warnings that the QP is in the error state; its completion may be visible just before the warning.
fn warnings(num: u32) -> Vec<String> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let about = format!("weir_lo, QP {num:#08x} is");
        let all = WARNINGS.lock().unwrap().clone();
        let found: Vec<_> = all.into_iter().filter(|line| line.starts_with(&about)).collect();
        if !found.is_empty() || Instant::now() > until {
            return found;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_single_line_says_why_and_what_to_do() {
    tracing::subscriber::set_global_default(Log).expect("no other subscriber is set");
    let context = open();
    let pd = context.alloc_pd().unwrap();
    let post = |qp: &weir_device::Qp| {
        for wr_id in 0..3 {
            let op = SendOp::Read { remote_addr: 0, rkey: 7 };
            let data = Data::Gather(&[]);
            qp.post_send(&SendWr { wr_id, op, flags: SendFlags::SIGNALED, data }).unwrap();
        }
        qp.doorbell();
    };

    // The other QP is still in RESET and does not respond.
    let cq = context.create_cq(8, None, 0).unwrap();
    let [connected, unconnected] = [(); 2].map(|()| pd.create_qp(&create(Service::Rc), &cq, &cq).unwrap());
    let rest = QpAttr { timeout: 1, max_rd_atomic: 1, max_dest_rd_atomic: 1, ..QpAttr::default() };
    connect_with(&context, &connected, unconnected.num(), &rest);
    post(&connected);
    assert_eq!(ended(&cq, 3), [Status::RetryExceeded, Status::WrFlushed, Status::WrFlushed]);
    let lines = warnings(connected.num());
    assert_eq!(lines.len(), 1, "{lines:?}");
    let peer = format!("its request to QP {:#08x} at 127.0.0.1, PSN 0x000000", unconnected.num());
    for part in [peer.as_str(), "RetryExceeded after ", " tries", "answers, but", "RTR or RTS", "rq_psn"] {
        assert!(lines[0].contains(part), "{part:?} is not in {lines:?}");
    }

    // An rkey that the peer does not have: a log line at each end.
    let ends = pair(&pd, &context);
    let op = SendOp::Write { remote_addr: 0, rkey: 7 };
    let mut word = 0u64;
    let mr = pd.reg_mr(&raw mut word as u64, 8, 0, weir_transport::Access::LOCAL_WRITE).unwrap();
    let sges = [weir_transport::Sge { addr: 0, length: 8, lkey: mr.lkey() }];
    // A wrong order of locks is a panic, after which the work request would be flushed.
    let victim = pd.reg_mr(&raw mut word as u64, 8, 0, weir_transport::Access::LOCAL_WRITE).unwrap();
    *VICTIM.lock().unwrap() = Some(victim);
    ends[0].qp.post_send(&SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, data: Data::Gather(&sges) }).unwrap();
    ends[0].qp.doorbell();
    assert_eq!(ended(&ends[0].cq, 1), [Status::RemoteAccess]);
    let (requester, responder) = (warnings(ends[0].qp.num()), warnings(ends[1].qp.num()));
    assert_eq!((requester.len(), responder.len()), (1, 1), "{requester:?} {responder:?}");
    assert!(requester[0].contains("its request") && requester[0].contains("Look at rkey"), "{requester:?}");
    assert!(responder[0].contains("it refused a request"), "{responder:?}");
    let why = "rkey 0x00000007 was used for 8 bytes at 0x0, but no region or window has this key";
    assert!(responder[0].contains(why), "{responder:?}");
    assert!(VICTIM.lock().unwrap().is_none());
    let ends = WARNINGS.lock().unwrap().iter().filter(|line| line.contains("is in the error state")).count();
    assert_eq!(ends, 3, "{:?}", WARNINGS.lock().unwrap());
    refused_memory_is_named(&context, &pd);
    refused_requests_about_windows_are_explained(&context, &pd);
    refused_calls_are_explained(&context, &pd);
    other_ends_say_what_to_do(&context, &pd);
    a_full_queue_of_completions_is_named(&context, &pd);
}

fn other_ends_say_what_to_do(context: &Arc<Context>, pd: &Arc<Pd>) {
    let mut words = [0u64; 2];
    let addr = &raw mut words as u64;
    let mr = pd.reg_mr(addr, 16, addr, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    let sge = |length| Sge { addr, length, lkey: mr.lkey() };
    let post = |qp: &weir_device::Qp, op| {
        let data = Data::Gather(&[sge(16)]);
        qp.post_send(&SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, data }).unwrap();
        qp.doorbell();
    };
    // A receive that is too short.
    let ends = pair(pd, context);
    ends[1].qp.post_recv(&RecvWr { wr_id: 1, sges: &[sge(8)] }).unwrap();
    post(&ends[0].qp, SendOp::Send);
    assert_eq!(ended(&ends[0].cq, 1), [Status::RemoteInvalidRequest]);
    for (end, part) in
        ends.iter().zip(["Check that its receives are long enough", "the message is longer than its receive"])
    {
        let lines = warnings(end.qp.num());
        assert!(lines.len() == 1 && lines[0].contains(part), "{part:?} is not in {lines:?}");
    }
    // A QP that may have no READ open.
    let cq = context.create_cq(8, None, 0).unwrap();
    let qp = pd.create_qp(&create(Service::Rc), &cq, &cq).unwrap();
    connect_with(context, &qp, qp.num(), &QpAttr { timeout: 14, ..QpAttr::default() });
    post(&qp, SendOp::Read { remote_addr: addr, rkey: mr.rkey() });
    assert_eq!(ended(&cq, 1), [Status::LocalQpOperation]);
    let lines = warnings(qp.num());
    assert!(lines.len() == 1 && lines[0].contains("max_rd_atomic"), "{lines:?}");
}

fn a_full_queue_of_completions_is_named(context: &Arc<Context>, pd: &Arc<Pd>) {
    let cq = context.create_cq(4, None, 0).unwrap();
    let qp = pd.create_qp(&create(Service::Rc), &cq, &cq).unwrap();
    connect(context, &qp, qp.num());
    let op = SendOp::Write { remote_addr: 0, rkey: 0 };
    for wr_id in 0..=u64::from(cq.cqe()) {
        qp.post_send(&SendWr { wr_id, op, flags: SendFlags::SIGNALED, data: Data::Gather(&[]) }).unwrap();
    }
    qp.doorbell();
    let lines = warnings(qp.num());
    assert!(lines.len() == 1 && lines[0].contains("its CQ is full") && lines[0].contains("ibv_create_cq"), "{lines:?}");
}

/// The key, the range and the missing right, at the end that has the memory.
fn refused_memory_is_named(context: &Arc<Context>, pd: &Arc<Pd>) {
    let mut words = [0u64; 2];
    let addr = &raw mut words as u64;
    let other = context.alloc_pd().unwrap();
    let mr = pd.reg_mr(addr, 8, addr, Access::LOCAL_WRITE).unwrap();
    let foreign = other.reg_mr(addr, 16, addr, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let reads_only = pd.reg_mr(addr, 16, addr, Access::REMOTE_READ).unwrap();
    let local = |at: u64, mr: &Mr| [Sge { addr: at, length: 8, lkey: mr.lkey() }];
    let write = |mr: &Mr| SendOp::Write { remote_addr: addr, rkey: mr.rkey() };
    let read = |mr: &Mr| SendOp::Read { remote_addr: addr, rkey: mr.rkey() };
    let outside =
        format!("{:#010x} was used for 8 bytes at {:#x}, but it grants 8 bytes at {addr:#x}", mr.lkey(), addr + 1);
    for (at_responder, op, sges, status, why) in [
        (false, write(&reads_only), local(addr + 1, &mr), Status::LocalProtection, outside.as_str()),
        (false, read(&reads_only), local(addr, &reads_only), Status::LocalProtection, "lacks IBV_ACCESS_LOCAL_WRITE"),
        (false, SendOp::Send, local(addr, &foreign), Status::LocalProtection, "another protection domain"),
        (true, write(&reads_only), local(addr, &mr), Status::RemoteAccess, "lacks IBV_ACCESS_REMOTE_WRITE"),
        (true, write(&foreign), local(addr, &mr), Status::RemoteAccess, "another protection domain"),
    ] {
        let ends = pair(pd, context);
        ends[0].qp.post_send(&SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, data: Data::Gather(&sges) }).unwrap();
        ends[0].qp.doorbell();
        assert_eq!(ended(&ends[0].cq, 1), [status], "{op:?}");
        let lines = warnings(ends[usize::from(at_responder)].qp.num());
        assert!(lines.len() == 1 && lines[0].contains(why), "{why:?} is not in {lines:?}");
    }
}

/// Binds and invalidations, at the end that has the window.
fn refused_requests_about_windows_are_explained(context: &Arc<Context>, pd: &Arc<Pd>) {
    let mut word = 0u64;
    let addr = &raw mut word as u64;
    let mr = pd.reg_mr(addr, 8, addr, Access::LOCAL_WRITE).unwrap();
    let window = pd.alloc_mw(WindowType::Two).unwrap();
    let key = window.rkey();
    let bind = Bind { window_rkey: key, new_rkey: key, mr_lkey: mr.lkey(), addr, len: 8, access: Access::REMOTE_READ };
    let here = (false, Status::MwBind);
    for ((at_responder, status), op, why) in [
        (here, SendOp::BindWindow(bind), "the region lacks IBV_ACCESS_MW_BIND"),
        (here, SendOp::BindWindow(Bind { mr_lkey: 3, ..bind }), "no region has this lkey"),
        ((false, Status::LocalQpOperation), SendOp::LocalInvalidate { key }, "the window is not bound"),
        ((true, Status::RemoteAccess), SendOp::SendInvalidate { rkey: mr.rkey() }, "no window has this key"),
    ] {
        let ends = pair(pd, context);
        ends[1].qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
        ends[0].qp.post_send(&SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, data: Data::Gather(&[]) }).unwrap();
        ends[0].qp.doorbell();
        assert_eq!(ended(&ends[0].cq, 1), [status], "{op:?}");
        let lines = warnings(ends[usize::from(at_responder)].qp.num());
        assert!(lines.len() == 1 && lines[0].contains(why), "{why:?} is not in {lines:?}");
    }
}

fn refused_calls_are_explained(context: &Arc<Context>, pd: &Arc<Pd>) {
    let cq = context.create_cq(8, None, 0).unwrap();
    let mut wanted = create(Service::Rc);
    wanted.caps.max_send_sge = 1000;
    assert!(pd.create_qp(&wanted, &cq, &cq).is_err());
    for bytes in [2048, 1536, 1280] {
        let mut wanted = create(Service::Rc);
        wanted.caps.max_inline_data = bytes;
        assert!(pd.create_qp(&wanted, &cq, &cq).is_err());
    }
    assert!(context.create_cq(u32::MAX, None, 0).is_err());
    assert!(pd.reg_mr(0x1000, 4096, 0x1000, Access::LOCAL_WRITE).is_err());
    assert!(pd.reg_mr(0x1000, 4096, 0x1000, Access::REMOTE_WRITE).is_err());
    let sized = |max_wr| SrqCreate { max_wr, max_sge: 1, cookie: 0 };
    assert!(pd.create_srq(&sized(1 << 30), None).is_err());
    let srq = pd.create_srq(&sized(4), None).unwrap();
    srq.post(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
    srq.post(&RecvWr { wr_id: 2, sges: &[] }).unwrap();
    assert!(srq.modify(Some(1), None).is_err());
    assert!(srq.modify(None, Some(5)).is_err());
    let lines = WARNINGS.lock().unwrap().join("\n");
    assert_eq!(lines.matches("max_inline_data").count(), 1, "{lines}");
    for part in [
        "max_inline_data is 2048, and the limit is 1024",
        "max_send_sge is 1000, and the limit is",
        "a size of 4294967295 entries",
        "4096 bytes at 0x1000 are not registered: part of it is not mapped",
        "need IBV_ACCESS_LOCAL_WRITE",
        "SRQ: create: max_wr is 1073741824, and the limit is",
        "SRQ: modify: max_wr is 1, and 2 receives are posted",
        "SRQ: modify: srq_limit is 5, and the SRQ holds 4 receives",
    ] {
        assert!(lines.contains(part), "{part:?} is not in {lines}");
    }
}
