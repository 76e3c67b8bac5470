//! Runs the safe interface of libibverbs and librdmacm on Weir's adapter of loopback: each trial is a process of its own
//! under `weir run`, which is this program again, with the name of the trial's part.

use libtest_mimic::{Arguments, Failed, Trial};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};
use weir_abi::*;
use weir_odp_fi::rdma::*;

/// Names the part in the process under `weir run`.
const PART: &str = "WEIR_FABRIC_PART";
const SOON: Duration = Duration::from_secs(10);
const LISTENER: u64 = 1;
const CLIENT: u64 = 2;
const SERVER: u64 = u64::MAX - 3;
const SIZE: usize = 300_000;

const PARTS: [(&str, fn()); 6] = [
    ("interfaces include loopback and leave no descriptor open", interfaces_of_loopback),
    ("two connections exchange SEND, WRITE and READ in on-demand memory and part", exchange),
    ("a notification comes by the completion channel", notification),
    ("a port without a listener, and a rejecting program, refuse", refusals),
    ("a connection can be dropped in every state", drops),
    ("a self-connection receives what it sends", self_connection),
];

fn main() -> ExitCode {
    if let Ok(part) = std::env::var(PART) {
        let (_, part) = PARTS.iter().find(|(name, _)| *name == part).expect("a part of this program");
        part();
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    // Processes that share an address also share its connection management: a refusal then takes seconds.
    arguments.test_threads.get_or_insert(1);
    let folder = std::env::var_os("WEIR_LIB_DIR").map(PathBuf::from);
    let trials = PARTS.map(|(name, _)| {
        let available = folder.is_some();
        let folder = folder.clone().unwrap_or_default();
        let trial = Trial::test(name, move || run_part(&folder.join("../../bin/weir"), name));
        let trial = if available { trial } else { trial.with_kind("WEIR_LIB_DIR is not set: `make test` sets it") };
        trial.with_ignored_flag(!available)
    });
    libtest_mimic::run(&arguments, trials.into()).exit_code()
}

fn run_part(weir: &std::path::Path, name: &str) -> Result<(), Failed> {
    let mut command = Command::new("timeout");
    command.arg("60").arg(weir).arg("run").arg("--").arg(std::env::current_exe()?);
    let output = command.env(PART, name).env("WEIR_INTERFACE", "lo").output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {}: {said}", output.status).into()) }
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn interfaces_of_loopback() {
    let found = interfaces().unwrap();
    let address = IpAddr::from(Ipv4Addr::LOCALHOST);
    let lo = Interface { address, prefix: 8, name: "lo".into(), device: "weir_lo".into(), port_num: 1 };
    assert!(found.contains(&lo), "{found:?}");
    let before = descriptors();
    assert_eq!(interfaces().unwrap(), found);
    assert_eq!(descriptors(), before);

    let adapter = Adapter::open(local(0)).unwrap();
    let attributes = adapter.attributes();
    assert_eq!((attributes.device.as_str(), attributes.ethernet, attributes.active), ("weir_lo", true, true));
    assert!(attributes.odp.explicit && attributes.odp.write && attributes.odp.read, "{:?}", attributes.odp);
    assert!(attributes.mtu >= 256 && attributes.speed > 0 && attributes.max_message_size > 1 << 20, "{attributes:?}");
    // TEST-NET-1 is the address of no machine.
    let other = SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1).into(), 0);
    assert!(Adapter::open(other).is_err());
}

/// Memory and what the QPs of a side need.
struct Side {
    queues: Queues,
    region: Region,
    memory: Box<[u8]>,
}

impl Side {
    fn new(adapter: &Arc<Adapter>, byte: u8) -> Side {
        let memory = vec![byte; SIZE].into_boxed_slice();
        let access = IBV_ACCESS_LOCAL_WRITE
            | IBV_ACCESS_REMOTE_WRITE
            | IBV_ACCESS_REMOTE_READ
            | weir_abi::IBV_ACCESS_ON_DEMAND as i32;
        // SAFETY: the memory is plain bytes, which are read when nothing is in flight.
        let region = unsafe { adapter.register(memory.as_ptr().expose_provenance() as u64, SIZE, access) }.unwrap();
        let cq = CompletionQueue::new(adapter, 16, true).unwrap();
        let caps = ibv_qp_cap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 };
        Side { queues: Queues { send_cq: cq.clone(), recv_cq: cq, caps }, region, memory }
    }

    fn start(&self) -> u64 {
        self.memory.as_ptr().addr() as u64
    }

    fn sge(&self) -> ibv_sge {
        ibv_sge { addr: self.start(), length: SIZE as u32, lkey: self.region.lkey() }
    }

    fn receive(&self, qp: &QueuePair) {
        let mut sge = self.sge();
        let mut request = ibv_recv_wr { wr_id: 7, next: std::ptr::null_mut(), sg_list: &mut sge, num_sge: 1 };
        // SAFETY: the memory is valid longer than the QP.
        unsafe { qp.post_recv(&mut request) }.unwrap();
    }

    /// Posts a request, with the peer's memory for WRITE and READ.
    fn send(&self, qp: &QueuePair, opcode: i32, peer: &Side) {
        let mut sge = self.sge();
        // SAFETY: a structure of integers and pointers, of which those below are read.
        let mut request: ibv_send_wr = unsafe { std::mem::zeroed() };
        request.wr_id = opcode as u64 + 100;
        request.sg_list = &mut sge;
        request.num_sge = 1;
        request.opcode = opcode;
        request.send_flags = IBV_SEND_SIGNALED;
        request.wr.rdma = ibv_wr_rdma { remote_addr: peer.start(), rkey: peer.region.rkey() };
        // SAFETY: the memory is valid longer than the QP.
        unsafe { qp.post_send(&mut request) }.unwrap();
    }

    fn completion(&self) -> ibv_wc {
        let mut found = [EMPTY_COMPLETION];
        within(|| (self.queues.send_cq.poll(&mut found).unwrap() == 1).then_some(()));
        found[0]
    }

    fn succeeds(&self, wr_id: u64) {
        let completion = self.completion();
        assert_eq!((completion.wr_id, completion.status), (wr_id, IBV_WC_SUCCESS), "{completion:?}");
    }

    /// A byte as the adapter has left it.
    fn at(&self, index: usize) -> u8 {
        // SAFETY: the memory of this side; nothing writes it now.
        unsafe { std::ptr::read_volatile(&self.memory[index]) }
    }
}

fn within<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + SOON;
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(Instant::now() < end, "nothing happened in {SOON:?}");
        sleep(Duration::from_micros(100));
    }
}

fn event(channel: &Arc<EventChannel>) -> Event {
    within(|| channel.next().unwrap())
}

/// A client with the events up to its connection request, and a QP if `queues` are given.
fn start(channel: &Arc<EventChannel>, adapter: &Arc<Adapter>, to: SocketAddr, queues: &Queues) -> Connection {
    let client = Connection::connect_start(channel, adapter, local(0), to, SOON, CLIENT).unwrap();
    let resolved = event(channel);
    assert!(matches!(resolved.kind, EventKind::AddressResolved), "{resolved:?}");
    assert_eq!((resolved.token, resolved.id), (CLIENT, client.id()));
    client.resolve_route(SOON).unwrap();
    assert!(matches!(event(channel).kind, EventKind::RouteResolved));
    client.create_qp(queues).unwrap();
    assert!(client.create_qp(queues).is_err_and(|error| error == Errno(libc::EEXIST)));
    assert_eq!(client.connect(&[0; MAX_CONNECT_DATA + 1]), Err(Errno(libc::EINVAL)));
    client.connect(b"hello").unwrap();
    client
}

fn request(channel: &Arc<EventChannel>) -> ConnectRequest {
    let event = event(channel);
    assert_eq!(event.token, LISTENER);
    let EventKind::ConnectRequest(request) = event.kind else { panic!("{event:?}") };
    assert!(request.private_data.starts_with(b"hello\0") && request.peer.ip() == local(0).ip(), "{request:?}");
    request
}

/// A client and a server that are connected.
fn connected(adapter: &Arc<Adapter>, sides: [&Side; 2]) -> (Arc<EventChannel>, [Connection; 2]) {
    let channel = EventChannel::new().unwrap();
    let listener = Listener::bind(&channel, local(0), 4, LISTENER).unwrap();
    assert_ne!(listener.local_address().port(), 0);
    let client = start(&channel, adapter, listener.local_address(), &sides[0].queues);
    let server = Connection::from_request(request(&channel), adapter, SERVER).unwrap();
    let qp = server.create_qp(&sides[1].queues).unwrap();
    assert!(qp.caps().max_recv_wr >= 8 && qp.caps().max_inline_data >= 16);
    server.accept(b"welcome").unwrap();
    let mut tokens = [0; 2].map(|_| {
        let event = event(&channel);
        let EventKind::Established { private_data } = event.kind else { panic!("{event:?}") };
        assert_eq!(private_data.starts_with(b"welcome"), event.token == CLIENT);
        event.token
    });
    tokens.sort_unstable();
    assert_eq!(tokens, [CLIENT, SERVER]);
    assert_eq!(client.peer_address(), Some(listener.local_address()));
    (channel, [client, server])
}

fn exchange() {
    let adapter = Adapter::open(local(0)).unwrap();
    let [a, b, c] = [1, 2, 3].map(|byte| Side::new(&adapter, byte));
    a.region.prefetch(a.start(), SIZE, false, true).unwrap();
    b.region.prefetch(b.start(), SIZE, true, false).unwrap();
    assert!(adapter.prefetch(0xdead_beef, a.start(), SIZE, false, true).is_err());
    let (channel, [client, server]) = connected(&adapter, [&a, &b]);
    let (from, to) = (client.qp().unwrap(), server.qp().unwrap());

    b.receive(to);
    a.send(from, IBV_WR_SEND, &b);
    b.succeeds(7);
    a.succeeds(100 + IBV_WR_SEND as u64);
    assert_eq!((b.at(0), b.at(SIZE - 1)), (1, 1));
    b.send(to, IBV_WR_RDMA_WRITE, &c);
    b.succeeds(100 + IBV_WR_RDMA_WRITE as u64);
    assert_eq!((c.at(0), c.at(SIZE - 1)), (1, 1));
    let d = Side::new(&adapter, 4);
    a.send(from, IBV_WR_RDMA_READ, &d);
    a.succeeds(100 + IBV_WR_RDMA_READ as u64);
    assert_eq!((a.at(0), a.at(SIZE - 1)), (4, 4));

    b.receive(to);
    client.disconnect().unwrap();
    disconnected(&channel, SERVER);
    server.disconnect().unwrap();
    disconnected(&channel, CLIENT);
    server.fail().unwrap();
    assert_eq!(b.completion().status, IBV_WC_WR_FLUSH_ERR);
}

/// Waits for this event of a connection.
fn disconnected(channel: &Arc<EventChannel>, token: u64) {
    within(|| {
        let event = channel.next().unwrap()?;
        (matches!(event.kind, EventKind::Disconnected) && event.token == token).then_some(())
    });
}

fn notification() {
    let adapter = Adapter::open(local(0)).unwrap();
    let [a, b] = [1, 2].map(|byte| Side::new(&adapter, byte));
    let (_channel, [client, server]) = connected(&adapter, [&a, &b]);
    let cq = &b.queues.recv_cq;
    assert_eq!(cq.take_notifications(), Ok(0));
    cq.request_notification().unwrap();
    b.receive(server.qp().unwrap());
    a.send(client.qp().unwrap(), IBV_WR_SEND, &b);
    let mut poll = libc::pollfd { fd: cq.channel_fd().unwrap(), events: libc::POLLIN, revents: 0 };
    // SAFETY: a local variable.
    assert_eq!(unsafe { libc::poll(&mut poll, 1, SOON.as_millis() as i32) }, 1);
    assert_eq!(cq.take_notifications(), Ok(1));
    b.succeeds(7);
}

fn refusals() {
    let adapter = Adapter::open(local(0)).unwrap();
    let a = Side::new(&adapter, 1);
    let channel = EventChannel::new().unwrap();
    let listener = Listener::bind(&channel, local(0), 4, LISTENER).unwrap();
    let address = listener.local_address();
    let rejected = |client: Connection| {
        let event = event(&channel);
        assert_eq!((event.token, event.id), (CLIENT, client.id()));
        let EventKind::Rejected { reason, private_data } = event.kind else { panic!("{event:?}") };
        (reason, private_data)
    };
    let client = start(&channel, &adapter, address, &a.queues);
    request(&channel).reject(b"busy").unwrap();
    let (reason, data) = rejected(client);
    assert!(reason == 28 && data.starts_with(b"busy"), "{reason} {data:?}");
    // A request that is dropped is rejected.
    let client = start(&channel, &adapter, address, &a.queues);
    drop(request(&channel));
    assert_eq!(rejected(client).0, 28);
    drop(listener);
    let client = start(&channel, &adapter, address, &a.queues);
    assert_eq!(rejected(client).0, 8);
}

fn drops() {
    let adapter = Adapter::open(local(0)).unwrap();
    let [a, b] = [1, 2].map(|byte| Side::new(&adapter, byte));
    let channel = EventChannel::new().unwrap();
    let listener = Listener::bind(&channel, local(0), 4, LISTENER).unwrap();
    let address = listener.local_address();
    // While the address is being resolved; with an event that was not taken.
    let clients = EventChannel::new().unwrap();
    for wait in [0, 100] {
        drop(Connection::connect_start(&clients, &adapter, local(0), address, SOON, CLIENT).unwrap());
        sleep(Duration::from_millis(wait));
    }
    // With a request that the server has not taken, then with one that it has not accepted.
    drop(start(&clients, &adapter, address, &a.queues));
    let client = start(&clients, &adapter, address, &a.queues);
    let server = Connection::from_request(request(&channel), &adapter, SERVER).unwrap();
    server.create_qp(&b.queues).unwrap();
    drop(client);
    drop(server);
    // Connected: the peer gets an event.
    let (channel, [client, server]) = connected(&adapter, [&a, &b]);
    drop(client);
    disconnected(&channel, SERVER);
    drop(server);
}

fn self_connection() {
    let adapter = Adapter::open(local(0)).unwrap();
    let [a, b] = [1, 2].map(|byte| Side::new(&adapter, byte));
    let connection = SelfConnection::new(&adapter, &a.queues).unwrap();
    b.receive(connection.qp());
    a.send(connection.qp(), IBV_WR_SEND, &b);
    let mut ids = [a.completion(), a.completion()].map(|completion| {
        assert_eq!(completion.status, IBV_WC_SUCCESS, "{completion:?}");
        completion.wr_id
    });
    ids.sort_unstable();
    assert_eq!(ids, [7, 100 + IBV_WR_SEND as u64]);
    assert_eq!((b.at(0), b.at(SIZE - 1)), (1, 1));
    connection.qp().fail().unwrap();
}
