//! Deliberate panics: in a carrier, under the engine, under locks.

use super::*;
use crate::objects::context::Context;
use crate::objects::cq::Cq;
use crate::objects::qp::{Qp, QpCreate};
use crate::os::panics::is_known;
use crate::{CompChannel, Errno, Pd};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant};
use weir_link::{Carrier, Inbox, Outbox};
use weir_transport::{
    AddressVector, AttrMask, Completion, Data, Mtu, PostError, Profile, QpAttr, QpCaps, QpState, RecvWr, SendFlags,
    SendOp, SendWr, Service, Status,
};

/// A wrapper of the adapter's carrier that panics once, in `receive`.
struct Broken {
    inner: Option<Box<dyn Carrier>>,
    when: When,
}

/// The thread on which it panics, once it is armed.
#[derive(Clone)]
struct When {
    armed: Arc<AtomicBool>,
    on_engines_thread: bool,
}

impl When {
    fn is_now(&self) -> bool {
        let here = std::thread::current().name() == Some("weir-engine");
        here == self.on_engines_thread && self.armed.swap(false, Ordering::AcqRel)
    }
}

impl Broken {
    fn inner(&mut self) -> &mut dyn Carrier {
        self.inner.as_deref_mut().expect("it wraps a carrier")
    }
}

impl Carrier for Broken {
    fn send(&mut self, outbox: &Outbox) -> io::Result<()> {
        self.inner().send(outbox)
    }
    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<usize> {
        assert!(!self.when.is_now(), "on purpose");
        self.inner().receive(inbox)
    }
    fn max_segments(&self) -> usize {
        self.inner.as_ref().map_or(1, |inner| inner.max_segments())
    }
    fn supports_iovecs(&self) -> bool {
        self.inner.as_ref().is_some_and(|inner| inner.supports_iovecs())
    }
    fn listen(&mut self, port: u16) -> io::Result<()> {
        self.inner().listen(port)
    }
    fn fds(&self) -> Vec<RawFd> {
        self.inner.as_ref().map_or_else(Vec::new, |inner| inner.fds())
    }
}

/// An adapter for this test alone, and two connected QPs of it.
struct Bed {
    context: Arc<Context>,
    pd: Arc<Pd>,
    channel: Arc<CompChannel>,
    cq: Arc<Cq>,
    qps: [Arc<Qp>; 2],
}

impl Bed {
    /// `number` differs between tests, so that each has its own adapter.
    fn new(number: u64) -> Bed {
        let profile = Profile { seed: 0xfa11_0000 + number, ..Profile::ideal() };
        let context = Context::open_as("weir_lo", &profile).expect("the loopback interface is there");
        let pd = context.alloc_pd().unwrap();
        let channel = context.create_channel().unwrap();
        let cq = context.create_cq(64, Some(channel.clone()), 7).unwrap();
        let caps = QpCaps { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 };
        let create = QpCreate { service: Service::Rc, caps, sq_sig_all: true, cookie: 0 };
        let qps = [0, 1].map(|_| pd.create_qp(&create, &cq, &cq).unwrap());
        connect(&context, &qps[0], qps[1].num());
        connect(&context, &qps[1], qps[0].num());
        Bed { context, pd, channel, cq, qps }
    }

    fn adapter(&self) -> &Arc<Adapter> {
        &self.context.adapter
    }

    fn breaks(&self, on_engines_thread: bool) -> Arc<AtomicBool> {
        let when = When { armed: Arc::default(), on_engines_thread };
        self.adapter().with_engine(|engine| {
            engine.replace_carrier(|inner| Box::new(Broken { inner, when: when.clone() }));
        });
        when.armed
    }

    fn send(&self) -> Result<(), PostError> {
        let data = Data::Inline(&[]);
        self.qps[0].post_send(&SendWr { wr_id: 1, op: SendOp::Send, flags: SendFlags::empty(), data })?;
        self.qps[0].doorbell();
        Ok(())
    }

    fn receive(&self, wr_id: u64) -> Result<(), PostError> {
        self.qps[1].post_recv(&RecvWr { wr_id, sges: &[] })?;
        self.qps[1].doorbell_receive();
        Ok(())
    }

    /// Polls until there are `count` completions.
    fn completions(&self, count: usize) -> Vec<Completion> {
        let mut found = Vec::new();
        let end = Instant::now() + Duration::from_secs(20);
        while found.len() < count {
            assert!(Instant::now() < end, "only {found:?}");
            self.cq.poll(16, |completion| found.push(*completion)).unwrap();
        }
        found
    }

    /// Checks what a program sees of an adapter that has failed, after its completions were polled.
    fn has_failed(self) {
        assert_eq!(self.context.get_async_event(), Ok(AsyncEvent::DeviceFatal));
        assert_eq!(self.cq.poll(16, |_| ()), Ok(0));
        for qp in &self.qps {
            assert_eq!(qp.query().qp_state, QpState::Error);
            let reset = QpAttr { qp_state: QpState::Reset, ..QpAttr::default() };
            assert_eq!(qp.modify(&reset, AttrMask::STATE), Err(Errno(libc::EIO)));
        }
        assert_eq!(self.cq.arm(false), Err(Errno(libc::EIO)));
        assert_eq!(self.send(), Err(PostError::Failed));
        assert_eq!(self.receive(9), Err(PostError::Failed));
        assert_eq!(self.context.create_cq(1, None, 0).err(), Some(Errno(libc::EIO)));
        for qp in &self.qps {
            qp.destroy().unwrap();
        }
        self.cq.destroy().unwrap();
        self.pd.dealloc().unwrap();
        let adapter = Arc::downgrade(self.adapter());
        drop(self);
        is_gone(&adapter);
    }
}

/// Checks that nothing keeps the adapter alive, except its own thread for a moment.
fn is_gone(adapter: &Weak<Adapter>) {
    let end = Instant::now() + Duration::from_secs(20);
    while adapter.strong_count() > 0 {
        assert!(Instant::now() < end, "an adapter that has failed is never freed");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn connect(context: &Context, qp: &Qp, dest_qp_num: u32) {
    let gids = context.gids();
    let (index, address) = gids.iter().enumerate().find_map(|(index, gid)| gid.map(|gid| (index, gid))).unwrap();
    let dgid = match address {
        std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(v6) => v6.octets(),
    };
    let ah_attr =
        AddressVector { dgid, sgid_index: index as u8, is_global: true, port_num: 1, ..AddressVector::default() };
    let attr =
        |qp_state| QpAttr { qp_state, path_mtu: Mtu::M1024, dest_qp_num, ah_attr, timeout: 14, ..QpAttr::default() };
    use AttrMask as M;
    qp.modify(&attr(QpState::Init), M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS).unwrap();
    let responder = M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    qp.modify(&attr(QpState::Rtr), M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | responder).unwrap();
    let requester = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC;
    qp.modify(&attr(QpState::Rts), M::STATE | requester).unwrap();
}

/// Fails a test that hangs.
fn bounded(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    if let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(Duration::from_secs(60)) {
        panic!("it hangs");
    }
    thread.join().unwrap();
}

fn all_flushed(completions: &[Completion], wr_ids: &[u64]) {
    let found: Vec<u64> = completions.iter().map(|completion| completion.wr_id).collect();
    assert_eq!(found, wr_ids);
    assert!(completions.iter().all(|completion| completion.status == Status::WrFlushed), "{completions:?}");
}

#[test]
fn a_panic_on_a_polling_thread_fails_the_adapter() {
    bounded(|| {
        let bed = Bed::new(1);
        let armed = bed.breaks(false);
        bed.receive(3).unwrap();
        bed.receive(4).unwrap();
        armed.store(true, Ordering::Release);
        all_flushed(&bed.completions(2), &[3, 4]);
        bed.has_failed();
    });
}

#[test]
fn a_panic_on_the_engines_thread_wakes_waiting_threads() {
    bounded(|| {
        let bed = Bed::new(2);
        let armed = bed.breaks(true);
        bed.receive(3).unwrap();
        bed.cq.arm(false).unwrap();
        armed.store(true, Ordering::Release);
        // The engine's thread receives this packet, because no thread of the program polls.
        bed.send().unwrap();
        assert_eq!(bed.channel.get_event(), Ok(7));
        // They are of two QPs, in no defined order.
        let mut completions = bed.completions(2);
        completions.sort_by_key(|completion| completion.wr_id);
        all_flushed(&completions, &[1, 3]);
        bed.has_failed();
    });
}

#[test]
fn a_panic_of_a_control_call_reaches_the_caller_and_frees_the_engine() {
    bounded(|| {
        let bed = Bed::new(3);
        bed.receive(3).unwrap();
        let call = || bed.adapter().with_engine(|_| panic!("on purpose"));
        let payload = catch_unwind(AssertUnwindSafe(call)).expect_err("the panic goes on");
        assert!(is_known(&*payload));
        bed.adapter().with_engine(|_| ());
        all_flushed(&bed.completions(1), &[3]);
        bed.has_failed();
    });
}

#[test]
fn a_panic_under_any_lock_marks_the_adapter_failed() {
    bounded(|| {
        let bed = Bed::new(4);
        bed.receive(3).unwrap();
        let shared = bed.qps[1].shared_for_tests();
        watched_by(bed.adapter(), || {
            let _protocol = shared.lock();
            bed.cq.shared.hold_for_tests(|| panic!("on purpose"));
        });
        all_flushed(&bed.completions(1), &[3]);
        bed.has_failed();
    });
}

/// Dooms the adapter while this thread holds the engine, where waiting for the engine would be a deadlock.
#[test]
fn the_holder_of_the_engine_can_mark_the_adapter_failed() {
    bounded(|| {
        let bed = Bed::new(5);
        bed.receive(3).unwrap();
        bed.adapter().with_engine(|_| bed.adapter().mark_failed());
        all_flushed(&bed.completions(1), &[3]);
        bed.has_failed();
    });
}

#[test]
fn a_failed_adapter_is_not_opened_again() {
    bounded(|| {
        let bed = Bed::new(6);
        bed.adapter().mark_failed();
        let again = Bed::new(6);
        again.receive(3).unwrap();
        again.send().unwrap();
        let found = again.completions(2);
        assert!(found.iter().all(|completion| completion.status == Status::Success), "{found:?}");
        bed.has_failed();
    });
}

/// Catches a panic as an entry point of the library does, for one adapter.
fn watched_by(adapter: &Adapter, body: impl FnOnce()) {
    if !catch_panic(body) {
        adapter.mark_failed();
    }
}
