//! A panic in an entry point of the library: all adapters of the process fail, and can be opened again.

mod common;

use common::{open, pair};
use std::time::{Duration, Instant};
use weir_device::{AsyncEvent, Context, Errno};
use weir_transport::{Profile, RecvWr, Status};

#[test]
fn a_panic_in_a_call_fails_all_adapters() {
    let other = Profile { seed: 7, ..Profile::ideal() };
    let contexts = [open(), open(), Context::open_as("weir_lo", &other).unwrap()];
    let pd = contexts[0].alloc_pd().unwrap();
    let [end, _far] = pair(&pd, &contexts[0]);
    end.qp.post_recv(&RecvWr { wr_id: 5, sges: &[] }).unwrap();
    let payload = std::panic::catch_unwind(|| panic!("on purpose")).unwrap_err();
    assert!(!weir_device::is_known(&*payload));
    weir_device::panicked();
    for context in &contexts {
        assert_eq!(context.get_async_event(), Ok(AsyncEvent::DeviceFatal));
        assert_eq!(context.create_cq(1, None, 0).err(), Some(Errno(libc::EIO)));
    }
    let began = Instant::now();
    let mut found = Vec::new();
    while found.is_empty() {
        assert!(began.elapsed() < Duration::from_secs(20), "no completion");
        end.cq.poll(4, |completion| found.push((completion.wr_id, completion.status))).unwrap();
    }
    assert_eq!(found, [(5, Status::WrFlushed)]);
    assert!(open().create_cq(1, None, 0).is_ok(), "the device opens again");
}
