//! Deliberate panics: in a carrier, under the engine, under locks.

use super::*;
use crate::Errno;
use crate::adapter::testing::Bed;
use crate::os::panics::is_known;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant};
use weir_link::{Carrier, Inbox, Outbox};
use weir_transport::{AttrMask, Completion, PostError, Profile, QpAttr, QpState, Status};

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
        // The kernel's name of the thread: std knows names only of threads that it has created.
        let here = || std::fs::read_to_string("/proc/thread-self/comm").unwrap() == "weir-engine\n";
        self.armed.load(Ordering::Acquire)
            && here() == self.on_engines_thread
            && self.armed.swap(false, Ordering::AcqRel)
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

/// An adapter for this test alone: `number` differs between tests.
fn own_bed(number: u64) -> Bed {
    Bed::new(&Profile { seed: 0xfa11_0000 + number, ..Profile::ideal() })
}

impl Bed {
    fn breaks(&self, on_engines_thread: bool) -> Arc<AtomicBool> {
        let when = When { armed: Arc::default(), on_engines_thread };
        self.adapter().with_engine(|engine| {
            engine.replace_carrier(|inner| Box::new(Broken { inner, when: when.clone() }));
        });
        when.armed
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
        let bed = own_bed(1);
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
        let bed = own_bed(2);
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
        let bed = own_bed(3);
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
        let bed = own_bed(4);
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
        let bed = own_bed(5);
        bed.receive(3).unwrap();
        bed.adapter().with_engine(|_| bed.adapter().mark_failed());
        all_flushed(&bed.completions(1), &[3]);
        bed.has_failed();
    });
}

#[test]
fn a_failed_adapter_is_not_opened_again() {
    bounded(|| {
        let bed = own_bed(6);
        bed.adapter().mark_failed();
        let again = own_bed(6);
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
