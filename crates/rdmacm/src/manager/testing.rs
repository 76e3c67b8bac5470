//! Two processes in memory for tests: MADs go from one manager to the other, commands are those of librdmacm.

use super::*;
use crate::abi::*;
use crate::address;
use crate::host::Device;
use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use weir_wire::mad::Mad;

/// What the two hosts share: MADs on their way, claimed services, and the hosts that are able to exchange MADs.
#[derive(Default)]
pub struct Wire {
    pub mads: VecDeque<(Address, Mad)>,
    pub claims: HashSet<(IpAddr, u64)>,
    pub opened: HashSet<(IpAddr, u64)>,
    pub ready: HashSet<IpAddr>,
    /// Where packets were processed, and how many events the program saw then.
    pub looked: Vec<(IpAddr, usize)>,
    /// Devices that have failed.
    pub failed: Vec<String>,
    /// The host that has no free descriptors.
    pub full: Option<IpAddr>,
    /// The hosts' addresses are those of one host, on which only these processes run.
    pub one_host: Option<HashSet<u32>>,
    /// There is no device.
    pub no_device: bool,
    /// No device has an address.
    pub no_addresses: bool,
    /// What the processes have written to the log.
    pub said: Vec<String>,
    /// How long the devices take for an ACK, if not 15.
    pub ack_delay: Option<u8>,
    /// Each host chooses from four ports, and as many more.
    pub more_ports: u16,
}

struct Memory {
    own: IpAddr,
    wire: Arc<Mutex<Wire>>,
    counter: u32,
    shown: Arc<Mutex<usize>>,
}

impl Host for Memory {
    fn device_of(&mut self, address: IpAddr, _: u32) -> Result<Option<(Device, u8)>, Errno> {
        if self.wire.lock().unwrap().full == Some(self.own) {
            return Err(Errno(libc::EMFILE));
        }
        let ack_delay = self.wire.lock().unwrap().ack_delay.unwrap_or(15);
        let guid = 0x0200_0000_0000_0001;
        let device = Device { name: "weir_t0".into(), guid, index: 4, ifindex: 7, mtu: 5, ack_delay };
        let has_address = address == self.own && !self.wire.lock().unwrap().no_addresses;
        Ok(has_address.then_some((device, 3)))
    }

    fn own_address(&mut self, ipv4: bool) -> Result<Option<IpAddr>, Errno> {
        Ok(Some(self.own).filter(|own| own.is_ipv4() == ipv4))
    }

    fn source_for(&mut self, destination: SocketAddr, _: Option<SocketAddr>) -> Result<SocketAddr, Errno> {
        if destination.is_ipv4() { Ok((self.own, 0).into()) } else { Err(Errno(libc::ENETUNREACH)) }
    }

    fn use_device(&mut self, _: Option<&str>) -> Result<(), Errno> {
        if self.wire.lock().unwrap().no_device {
            return Err(Errno(libc::ENODEV));
        }
        self.wire.lock().unwrap().ready.insert(self.own);
        Ok(())
    }

    fn send(&mut self, to: &Address, mad: &Mad) {
        self.wire.lock().unwrap().mads.push_back((*to, *mad));
    }

    fn removed(&mut self) -> Vec<String> {
        std::mem::take(&mut self.wire.lock().unwrap().failed)
    }

    fn has_failed(&self) -> bool {
        !self.wire.lock().unwrap().failed.is_empty()
    }

    fn take_packets(&mut self, device: &str) {
        assert_eq!(device, "weir_t0");
        let mut wire = self.wire.lock().unwrap();
        wire.looked.push((self.own, *self.shown.lock().unwrap()));
    }

    fn take(&mut self, _: Option<u64>) -> Vec<(Address, Mad)> {
        Vec::new()
    }

    fn resume(&mut self, _: Instant) -> Option<Instant> {
        None
    }

    fn claim(&mut self, service: u64) -> Result<(), Errno> {
        let new = self.wire.lock().unwrap().claims.insert((self.own, service));
        if new { Ok(()) } else { Err(Errno(libc::EADDRINUSE)) }
    }

    fn open(&mut self, service: u64) -> Result<(), Errno> {
        self.wire.lock().unwrap().opened.insert((self.own, service));
        Ok(())
    }

    fn release(&mut self, service: u64) {
        let mut wire = self.wire.lock().unwrap();
        wire.claims.remove(&(self.own, service));
        wire.opened.remove(&(self.own, service));
    }

    fn lives(&mut self, _: &Address, process: u32) -> Option<bool> {
        self.wire.lock().unwrap().one_host.as_ref().map(|processes| processes.contains(&process))
    }

    fn settle(&mut self) {}

    fn rest(&mut self) {}

    fn ports(&self) -> RangeInclusive<u16> {
        40000..=40003 + self.wire.lock().unwrap().more_ports
    }

    fn may_bind(&self, port: u16) -> bool {
        port >= 1024
    }

    fn log(&mut self, why: fmt::Arguments<'_>) {
        self.wire.lock().unwrap().said.push(why.to_string());
    }

    fn random(&mut self) -> u32 {
        self.counter = self.counter.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.counter
    }
}

/// How many events a file shows.
pub struct Shown(pub Arc<Mutex<usize>>);

impl Signal for Shown {
    fn show(&mut self, count: usize) {
        *self.0.lock().unwrap() = count;
    }
}

/// A program: its manager and one file.
pub struct Process {
    pub manager: Manager,
    pub file: u64,
    pub shown: Arc<Mutex<usize>>,
    pub address: IpAddr,
    pub option: RefCell<Vec<u8>>,
    pub other: Rc<RefCell<Option<u64>>>,
}

pub struct Reads<'a>(pub &'a RefCell<Vec<u8>>, pub Option<u64>);

impl Program for Reads<'_> {
    fn file_of(&self, _: i32) -> Option<u64> {
        self.1
    }
    fn read(&self, _: u64, len: usize) -> Vec<u8> {
        self.0.borrow()[..len].to_vec()
    }
}

/// The address that stands for "there is a response".
pub const SOMEWHERE: u64 = 0x1000;

impl Process {
    pub fn new(address: [u8; 4], prefix: u32, wire: &Arc<Mutex<Wire>>) -> Process {
        let shown = Arc::new(Mutex::new(0));
        let host = Memory { own: address.into(), wire: wire.clone(), counter: prefix, shown: shown.clone() };
        let mut manager = Manager::new(Box::new(host), prefix, 20);
        let file = manager.open(Box::new(Shown(shown.clone())));
        let (option, other) = (RefCell::default(), Rc::default());
        Process { manager, file, shown, address: address.into(), option, other }
    }

    pub fn raw(&mut self, now: Instant, cmd: u32, body: &[u8], output: u16) -> Outcome {
        let header = Header { cmd, input: body.len() as u16, output };
        let bytes = [header.as_bytes(), body].concat();
        let (file, other) = (self.file, *self.other.borrow());
        self.manager.command(now, file, &bytes, &Reads(&self.option, other))
    }

    pub fn run<C: IntoBytes + zerocopy::Immutable>(&mut self, cmd: u32, body: C) -> Result<(), Errno> {
        assert_eq!(self.raw(self.manager.now, cmd, body.as_bytes(), 0)?, Done::Nothing);
        Ok(())
    }

    pub fn ask<C: IntoBytes + zerocopy::Immutable, R: FromBytes>(&mut self, cmd: u32, body: C) -> Result<R, Errno> {
        match self.raw(self.manager.now, cmd, body.as_bytes(), size_of::<R>() as u16)? {
            Done::Response(SOMEWHERE, bytes) => Ok(R::read_from_bytes(&bytes).unwrap()),
            other => panic!("{other:?}"),
        }
    }

    pub fn create(&mut self, uid: u64, port_space: u16) -> u32 {
        let command = CreateId { uid, response: SOMEWHERE, port_space, ..CreateId::default() };
        self.ask::<_, Created>(command::CREATE_ID, command).unwrap().id
    }

    pub fn destroy(&mut self, id: u32) -> u32 {
        let command = DestroyId { response: SOMEWHERE, id, reserved: 0 };
        self.ask::<_, Reported>(command::DESTROY_ID, command).unwrap().events
    }

    pub fn bind(&mut self, id: u32, address: &str) -> Result<(), Errno> {
        let mut command = BindIp { id, ..BindIp::default() };
        address::write(Some(address.parse().unwrap()), &mut command.address);
        self.run(command::BIND_IP, command)
    }

    pub fn listen(&mut self, id: u32, address: &str, backlog: u32) -> Result<(), Errno> {
        self.bind(id, address)?;
        self.run(command::LISTEN, Listen { id, backlog })
    }

    pub fn event(&mut self) -> Option<abi::Event> {
        let command = GetEvent { response: SOMEWHERE };
        let size = size_of::<abi::Event>() as u16;
        match self.raw(self.manager.now, command::GET_EVENT, command.as_bytes(), size).unwrap() {
            Done::Wait => None,
            Done::Response(_, bytes) => Some(abi::Event::read_from_bytes(&bytes).unwrap()),
            Done::Nothing => panic!("no response"),
        }
    }

    #[track_caller]
    pub fn expect(&mut self, uid: u64, kind: u32) -> abi::Event {
        let event = self.event().expect("an event");
        assert_eq!((event.uid, event.event), (uid, kind), "status {}", event.status as i32);
        event
    }

    /// Resolves address and route.
    pub fn resolve(&mut self, uid: u64, id: u32, to: &str) {
        let mut command = ResolveIp { id, timeout_ms: 2000, ..ResolveIp::default() };
        address::write(Some(to.parse().unwrap()), &mut command.destination);
        self.run(command::RESOLVE_IP, command).unwrap();
        assert_eq!(self.expect(uid, event::ADDR_RESOLVED).id, id);
        self.run(command::RESOLVE_ROUTE, ResolveRoute { id, timeout_ms: 2000 }).unwrap();
        self.expect(uid, event::ROUTE_RESOLVED);
    }

    pub fn connect(&mut self, id: u32, private: &[u8]) -> Result<(), Errno> {
        self.run(command::CONNECT, Connect { id, parameters: parameters(0x1000 + id, private), ..Connect::default() })
    }

    pub fn attributes(&mut self, id: u32, state: u32) -> Result<QpAttr, Errno> {
        self.ask(command::INIT_QP_ATTR, InitQpAttr { response: SOMEWHERE, id, state })
    }
}

pub fn parameters(qp_num: u32, data: &[u8]) -> ConnectionParameters {
    let (private_data, private_data_len) = crate::events::private(data);
    ConnectionParameters {
        qp_num,
        private_data,
        private_data_len,
        responder_resources: 4,
        initiator_depth: 2,
        retry_count: 15,
        rnr_retry_count: 6,
        valid: 1,
        ..ConnectionParameters::default()
    }
}

pub fn connection(event: &abi::Event) -> ConnectionParameters {
    ConnectionParameters::read_from_prefix(&event.parameters).unwrap().0
}

pub fn datagram(event: &abi::Event) -> DatagramParameters {
    DatagramParameters::read_from_bytes(&event.parameters).unwrap()
}

/// A client on 10.0.0.1 and a server on 10.0.0.2.
pub struct Pair {
    pub client: Process,
    pub server: Process,
    pub wire: Arc<Mutex<Wire>>,
    pub now: Instant,
}

impl Pair {
    pub fn new() -> Pair {
        let wire = Arc::default();
        let (client, server) =
            (Process::new([10, 0, 0, 1], 1 << 20, &wire), Process::new([10, 0, 0, 2], 2 << 20, &wire));
        Pair { client, server, wire, now: Instant(0) }
    }

    /// Delivers MADs until there is none. Requests to a service that no process has opened are lost.
    pub fn deliver(&mut self) {
        loop {
            let sent = std::mem::take(&mut self.wire.lock().unwrap().mads);
            if sent.is_empty() {
                break;
            }
            let arrived = sent.into_iter().map(|(to, mad)| {
                let from = Address { local: to.remote, remote: to.local, device: 7 };
                (from, mad)
            });
            let (here, there): (Vec<_>, Vec<_>) = arrived.partition(|(from, _)| from.local == self.client.address);
            self.client.manager.arrived(self.now, &here);
            self.server.manager.arrived(self.now, &there);
        }
    }

    /// Loses the MADs that are on their way; returns the number of requests among them.
    pub fn lose(&self) -> usize {
        let lost = std::mem::take(&mut self.wire.lock().unwrap().mads);
        lost.iter().filter(|(_, mad)| mad[17] == 0x10).count()
    }

    /// Time passes, in steps at which something is due.
    pub fn pass(&mut self, seconds: u64) {
        let end = Instant(self.now.0 + seconds * 1_000_000_000);
        loop {
            let next = [&self.client, &self.server].map(|process| process.manager.next());
            let Some(next) = next.into_iter().flatten().min().filter(|next| *next <= end) else { break };
            self.now = next.max(self.now);
            self.client.manager.tick(self.now);
            self.server.manager.tick(self.now);
            self.deliver();
        }
        self.now = end;
        (self.client.manager.now, self.server.manager.now) = (end, end);
    }

    /// The ids of a new connection: the client's and the server's.
    pub fn connected(&mut self, listener_uid: u64, uid: u64, port: u16) -> (u32, u32) {
        let id = self.client.create(uid, port_space::TCP);
        self.client.resolve(uid, id, &format!("10.0.0.2:{port}"));
        self.client.connect(id, b"hello").unwrap();
        self.deliver();
        let request = self.server.expect(listener_uid, event::CONNECT_REQUEST);
        let parameters = parameters(0x2000 + request.id, b"yes");
        let accept = Accept { uid: uid + 1000, id: request.id, parameters, ..Accept::default() };
        self.server.run(command::ACCEPT, accept).unwrap();
        self.deliver();
        let response = self.client.expect(uid, event::CONNECT_RESPONSE);
        assert_eq!(
            (connection(&response).qp_num, &connection(&response).private_data[..3]),
            (parameters.qp_num, &b"yes"[..])
        );
        self.client.run(command::ACCEPT, Accept { id, ..Accept::default() }).unwrap();
        self.deliver();
        self.server.expect(uid + 1000, event::ESTABLISHED);
        (id, request.id)
    }
}
