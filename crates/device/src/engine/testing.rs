//! An engine without a device, for unit tests. Its carrier is memory: it records what the engine sends and returns the
//! datagrams that a test queues. Where the engine owns a socket, it has a descriptor of /dev/null. There is no thread:
//! a test takes each turn itself.

mod check;
mod wire;

pub use wire::{Burst, Sent};

use crate::config::{Config, Framing, Icrc, Local, Memlock, Userfaultfd};
use crate::engine::host::QpHost;
use crate::engine::peers::connection::Link;
use crate::engine::table::Entry;
use crate::engine::{Engine, Turn, own_peers};
use crate::memory::keys::Cached;
use crate::memory::region::{Kind, Region};
use crate::os::clock;
use crate::os::interfaces::DeviceInfo;
use crate::os::netlink::Netlink;
use crate::os::notify::Notify;
use crate::os::process::Owned;
use crate::os::watch::Watch;
use crate::pace::Pace;
use crate::relay::holder::Holder;
use crate::relay::incoming::Incoming;
use crate::shared::cq::{AllCqs, CqShared, Options};
use crate::shared::qp::{self, QpShared, ReceiveSource};
use crate::shared::route::Route;
use crate::shared::state::{AdapterState, Parts};
use crate::slot::{FIRST_PORT, Slot};
use crate::stat::publish;
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use weir_link::capture::Snap;
use weir_link::{Arrival, DisabledFeatures};
use weir_transport::{
    Access, AttrMask, Completion, Data, Profile, Psn, QpAttr, QpCaps, QpInit, QpState, RecvWr, SendFlags, SendOp,
    SendWr, Service, Sge, Side, Tuning,
};
use weir_wire::icrc;
use weir_wire::ip::Envelope;
use weir_wire::{Aeth, Bth, Headers, Opcode, Operation, ROCE_PORT};
use wire::{InMemory, Wire, take};

/// The protection domain of all QPs and regions.
pub const PD: u32 = 1;
/// The first PSN in both directions of every connection.
pub const FIRST_PSN: u32 = 100;

/// An adapter without its thread, interface and sockets. Its address is [`address`] of its slot.
pub struct Rig {
    pub state: AdapterState,
    pub engine: Engine,
    pub cq: Arc<CqShared>,
    pub address: IpAddr,
    /// The UDP port of its slot.
    pub port: u16,
    wire: Arc<Mutex<Wire>>,
}

/// The address of a slot's adapter, or of any other peer of that number.
pub fn address(number: u16) -> IpAddr {
    [10, 0, 0, number as u8].into()
}

impl Rig {
    pub fn new(slot: u16, icrc: Icrc) -> Rig {
        Rig::with_framing(slot, icrc, Framing::Auto)
    }

    pub fn with_framing(slot: u16, icrc: Icrc, framing: Framing) -> Rig {
        Rig::make(slot, icrc, framing, false)
    }

    /// A rig that offers shared memory to its peers. No thread makes it.
    pub fn sharing(slot: u16) -> Rig {
        Rig::make(slot, Icrc::Auto, Framing::Auto, true)
    }

    fn make(slot: u16, icrc: Icrc, framing: Framing, shares: bool) -> Rig {
        let config = Config {
            allowed: weir_link::Allowed::default(),
            profile: Profile::ideal(),
            icrc,
            framing,
            local: Local::Auto,
            faults: None,
            capture: None,
            capture_snap: Snap::Whole,
            capture_ring: None,
            memlock: Memlock::Lax,
            userfaultfd: Userfaultfd::Off,
            disabled: DisabledFeatures::empty(),
            patience: Duration::ZERO,
        };
        let profile = Arc::new(config.profile.clone());
        let device = device(slot);
        let watch = Watch::over(&device, Netlink::over(nothing()), None);
        let pace = Arc::new(Owned::new(Pace::new(Vec::new(), None, None, false).unwrap()));
        let shown = counters();
        let wire = Arc::new(Mutex::new(Wire { segments: 64, ..Wire::default() }));
        let carrier = Box::new(InMemory(wire.clone()));
        let peers = own_peers(&config, &profile, 8 << 20, shares).unwrap();
        let claimed = Slot::of(slot, Incoming::of(nothing()));
        let mut engine = Engine::over(carrier, claimed, peers, &profile, shown).unwrap();
        // An engine without a holder would claim the name of the holder of port 4791 as soon as a QP is connected.
        engine.foreign.holder = Some(Holder::of(nothing()).unwrap());
        let parts = Parts { device, config, watch, profile, device_memory: 0, pace, sockets: Vec::new(), shown };
        let state = AdapterState::new(parts);
        Rig { cq: cq(&state.cqs), state, engine, address: address(slot), port: FIRST_PORT + slot, wire }
    }

    pub fn wire(&self) -> MutexGuard<'_, Wire> {
        self.wire.lock().unwrap()
    }

    /// Each later burst records the completions that were published before it, and takes them out of the CQ.
    pub fn watch_completions(&self) {
        self.wire().watched = Some(self.cq.clone());
    }

    pub fn add_qp(&mut self, service: Service) -> Arc<QpShared> {
        let cq = &self.cq;
        let qp = self.engine.add_qp(|num| Ok(qp(num, service, cq))).unwrap();
        self.state.doorbells.reserve(self.engine.qps());
        qp
    }

    /// Moves a new QP to RTS, as a peer of the QP `dest`.
    pub fn connect(&mut self, qp: &Arc<QpShared>, to: IpAddr, dest: u32) {
        use AttrMask as M;
        let psn = Psn::new(FIRST_PSN);
        let access_flags = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let attr = QpAttr { rq_psn: psn, sq_psn: psn, dest_qp_num: dest, access_flags, ..QpAttr::default() };
        let attr = QpAttr { max_rd_atomic: 1, max_dest_rd_atomic: 1, retry_cnt: 7, rnr_retry: 7, ..attr };
        let rc = qp.service == Service::Rc;
        let path = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        let retries = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
        let none = M::empty();
        self.modify(qp, QpState::Init, &attr, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS);
        let limits = M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        self.modify(qp, QpState::Rtr, &attr, path | if rc { limits } else { none });
        let route = Route { local: self.address, remote: to, ifindex: 0, hops: 0 };
        self.engine.connect(&self.state, qp.num, route, dest, Some(psn), clock::now());
        self.modify(qp, QpState::Rts, &attr, M::SQ_PSN | if rc { retries } else { none });
        self.engine.send_from(&self.state, qp.num, psn, clock::now());
    }

    pub fn modify(&self, qp: &Arc<QpShared>, state: QpState, attr: &QpAttr, mask: AttrMask) {
        let (attr, mask) = (QpAttr { qp_state: state, ..*attr }, mask | AttrMask::STATE);
        let (regions, cached) = (&self.state.regions, &mut Cached::default());
        let mut host = QpHost { shared: qp, regions, cached, completions: None, side: Side::Requester };
        qp.lock().modify(clock::now(), &attr, mask, &mut host).unwrap();
    }

    /// Registers memory, which must outlive all packets to and from it. Returns it as an SGE.
    pub fn register(&self, memory: &mut [u8]) -> Sge {
        register(&self.state.regions, memory)
    }

    pub fn post_send(&self, qp: &QpShared, wr_id: u64, op: SendOp, data: Data<'_>) {
        qp.lock().post_send(&SendWr { wr_id, op, flags: SendFlags::SIGNALED, data }).unwrap();
        self.state.doorbells.ring(&qp.bell, qp.num);
    }

    pub fn post_recv(&self, qp: &QpShared, wr_id: u64, sges: &[Sge]) {
        qp.lock().post_recv(&RecvWr { wr_id, sges }).unwrap();
    }

    /// One turn, with arrivals.
    pub fn turn(&mut self) {
        self.engine.turn(&self.state, Turn::POLL);
    }

    /// Queues datagrams of one buffer: all but the last have the length of the first.
    pub fn arrive(&self, from: SocketAddr, to: IpAddr, to_port: u16, datagrams: &[Vec<u8>]) {
        let bytes = datagrams.concat();
        let segment = datagrams.first().map_or(0, Vec::len);
        let arrival = Arrival { to, segment, ..Arrival::new(from, to_port, 0, bytes.len()) };
        self.wire().arrivals.push_back((arrival, bytes));
    }

    /// Queues a packet of a foreign adapter with that address, without payload.
    pub fn arrive_foreign(&self, qp: &QpShared, number: u16, operation: Operation, psn: Psn) {
        let bth = Bth { ack_req: true, ..Bth::new(Opcode::new(Service::Rc, operation), qp.num, psn) };
        let mut headers = Headers::new(bth);
        headers.put(Aeth::new(31, 0));
        self.arrive_foreign_packet(number, &headers, &[]);
    }

    /// Queues a packet of a foreign adapter with that address.
    pub fn arrive_foreign_packet(&self, number: u16, headers: &Headers, payload: &[u8]) {
        let mut bytes = vec![0; headers.len()];
        headers.emit(&mut bytes);
        bytes.extend(payload);
        let (src, dst, src_port, dst_port) = (address(number), self.address, 49_152, ROCE_PORT);
        let envelope = Envelope { src, dst, src_port, dst_port, ip_id: 0, dont_fragment: true };
        bytes.extend(icrc::compute(&envelope, &bytes).to_le_bytes());
        self.arrive((src, src_port).into(), dst, dst_port, &[bytes]);
    }

    pub fn take_bursts(&self) -> Vec<Burst> {
        std::mem::take(&mut self.wire().bursts)
    }

    /// The groups that were sent since the last call, without hellos.
    pub fn take_sent(&self) -> Vec<Sent> {
        let groups = self.take_bursts().into_iter().flat_map(|burst| burst.groups);
        groups.filter(|group| !group.datagrams[0].starts_with(b"WEIR")).collect()
    }

    pub fn completions(&self) -> Vec<Completion> {
        take(&self.cq)
    }

    pub fn index(&self, qp: &QpShared) -> u16 {
        self.engine.table.index(qp.num).unwrap()
    }

    pub fn entry(&self, qp: &QpShared) -> &Entry {
        self.engine.table.get(self.index(qp)).unwrap()
    }

    pub fn link(&self, qp: &QpShared) -> Link {
        self.entry(qp).connection.link
    }
}

/// Delivers what each of two engines has sent to the other, and takes turns, until both have sent everything. Returns the
/// number of datagrams.
pub fn exchange(a: &mut Rig, b: &mut Rig) -> usize {
    exchange_some(a, b, |_, _| true)
}

/// As [`exchange`], without the datagrams that `delivers` refuses: it gets the sender's port and the datagram.
pub fn exchange_some(a: &mut Rig, b: &mut Rig, mut delivers: impl FnMut(u16, &[u8]) -> bool) -> usize {
    let (mut quiet, mut count) = (false, 0);
    while !quiet {
        a.turn();
        b.turn();
        quiet = true;
        for (from, to) in [(&*a, &*b), (&*b, &*a)] {
            let groups = from.take_bursts().into_iter().flat_map(|burst| burst.groups);
            for Sent { to: address, mut datagrams, .. } in groups {
                (quiet, count) = (false, count + datagrams.len());
                datagrams.retain(|datagram| delivers(from.port, datagram));
                if !datagrams.is_empty() {
                    to.arrive((from.address, from.port).into(), address.ip(), address.port(), &datagrams);
                }
            }
            quiet &= to.wire().arrivals.is_empty();
        }
    }
    count
}

/// Two QPs that are connected to each other and have proven it.
pub fn connected(a: &mut Rig, b: &mut Rig, service: Service) -> [Arc<QpShared>; 2] {
    let qps = [a.add_qp(service), b.add_qp(service)];
    a.connect(&qps[0], b.address, qps[1].num);
    b.connect(&qps[1], a.address, qps[0].num);
    let until = clock::now() + Duration::from_secs(10);
    while !matches!((a.link(&qps[0]), b.link(&qps[1])), (Link::Weir(_), Link::Weir(_))) {
        assert!(clock::now() < until, "the peers do not prove themselves");
        exchange(a, b);
    }
    qps
}

/// Counters that other processes do not see. They are never freed: a fuzzer has one set for all runs of a thread.
fn counters() -> &'static crate::stat::sheet::Device {
    #[cfg(not(test))]
    {
        thread_local! {
            static ONE: &'static crate::stat::sheet::Device = publish::private_device();
        }
        ONE.with(|one| *one)
    }
    #[cfg(test)]
    publish::private_device()
}

/// A QP in RESET that completes to `cq`.
pub fn qp(num: u32, service: Service, cq: &Arc<CqShared>) -> Arc<QpShared> {
    let caps = QpCaps { max_send_wr: 256, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 };
    let init = QpInit { qp_num: num, service, caps, sq_sig_all: true };
    let protocol = weir_transport::Qp::new(init, Arc::new(Profile::ideal()), Tuning::default());
    let (send_cq, recv_cq) = (cq.clone(), cq.clone());
    let (events, receives) = (Arc::new(Notify::new().unwrap()), ReceiveSource::Own);
    let parts = qp::Parts { num, pd: PD, cookie: 0, service, protocol, send_cq, recv_cq, events, receives };
    Arc::new(QpShared::new(parts))
}

/// A CQ for 1024 completions.
pub fn cq(all: &Arc<AllCqs>) -> Arc<CqShared> {
    let options = Options { channel: None, cookie: 0, timestamps: false, ignore_overrun: false };
    CqShared::new(1024, options, Arc::new(Notify::new().unwrap()), all.clone()).unwrap()
}

/// Registers memory for every access.
pub fn register(regions: &crate::memory::keys::Regions, memory: &mut [u8]) -> Sge {
    let (addr, len) = (memory.as_mut_ptr() as u64, memory.len() as u64);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let region = Region { key: 0, pd: PD, addr, iova: addr, len, access, kind: Kind::Memory, paged: None };
    Sge { addr, length: len as u32, lkey: regions.insert(region).unwrap() }
}

/// A descriptor that is no socket: every system call for sockets fails on it.
fn nothing() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

fn device(slot: u16) -> DeviceInfo {
    DeviceInfo {
        name: format!("weir_test{slot}"),
        ifname: format!("test{slot}"),
        ifindex: 0,
        guid: 0,
        mac: None,
        if_mtu: 9000,
        up: true,
        loopback: false,
        has_speed: true,
        gids: vec![Some(address(slot))],
        notes: Vec::new(),
        links: Default::default(),
    }
}
