//! XRC over the loopback interface: each request uses the protection domain of the SRQ that it names.

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use common::{connect, create, open};
use std::time::{Duration, Instant};
use weir_device::{SrqCreate, Xrcd};
use weir_transport::{Access, AttrMask, Data, QpAttr, RecvWr, SendFlags, SendOp, SendWr, Service, Sge, Status, Target};

#[test]
fn a_burst_of_a_read_of_one_domain_and_a_send_to_another_completes() {
    let context = open();
    let cq = context.create_cq(16, None, 0).unwrap();
    let xrcd = Xrcd::open(&context).unwrap();
    let mut memory = vec![0u64; 1024];
    memory[..64].fill(0x5555);
    let (addr, access) = (memory.as_mut_ptr() as u64, Access::LOCAL_WRITE | Access::REMOTE_READ);
    let domains = [(); 2].map(|()| {
        let pd = context.alloc_pd().unwrap();
        let create = SrqCreate { max_wr: 4, max_sge: 1, cookie: 0 };
        let srq = pd.create_srq(&create, Some((xrcd.clone(), cq.clone()))).unwrap();
        let mr = pd.reg_mr(addr, 8192, addr, access).unwrap();
        (pd, srq, mr)
    });
    let [(pd, first, mr), (_, second, others)] = &domains;
    let target = xrcd.create_target(0).unwrap();
    let initiator = pd.create_qp(&create(Service::Xrc), &cq, &cq).unwrap();
    connect(&context, &initiator, target.num());
    connect(&context, &target, initiator.num());
    target.modify(&QpAttr { access_flags: access, ..QpAttr::default() }, AttrMask::ACCESS_FLAGS).unwrap();
    let sge_at = |at: u64, lkey| Sge { addr: addr + at, length: 64, lkey };
    for round in 0..50 {
        second.post(&RecvWr { wr_id: 9, sges: &[sge_at(2048, others.lkey())] }).unwrap();
        let read = SendOp::Read { remote_addr: addr, rkey: mr.rkey() };
        for (wr_id, op, at, srq) in [(1, read, 4096, first), (2, SendOp::Send, 1024, second)] {
            let data = [sge_at(at, mr.lkey())];
            let wr = SendWr { wr_id, op, flags: SendFlags::SIGNALED, data: Data::Gather(&data) };
            initiator.post_send_to(&wr, Target::Srq(srq.number())).unwrap();
        }
        initiator.doorbell();
        let (until, mut ended) = (Instant::now() + Duration::from_secs(10), vec![]);
        while ended.len() < 3 && Instant::now() < until {
            cq.poll(4, |completion| ended.push((completion.wr_id, completion.status))).unwrap();
        }
        ended.sort_by_key(|(wr_id, _)| *wr_id);
        assert_eq!(ended, [1, 2, 9].map(|wr_id| (wr_id, Status::Success)), "round {round}");
    }
    // SAFETY: within the vector, which the adapter has written to.
    let read = unsafe { std::ptr::read_volatile((addr + 4096) as *const u64) };
    assert_eq!(read, 0x5555);
}
