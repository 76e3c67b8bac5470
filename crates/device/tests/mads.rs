//! MADs as the process that holds port 4791 hands them over: this process. In a process of its own, because the adapter
//! of another test would be the holder, and what it has not handed over yet is lost when it ends.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use weir_device::{Context, Errno, MadSocket, epoll};
use weir_wire::cm::{Dreq, Message, Rej, RejectReason, Req, ServiceId, SidrReq, SidrStatus};

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// A process that takes MADs.
struct Node {
    context: Arc<Context>,
    epoll: Arc<OwnedFd>,
    /// The upper bits of its communication ids.
    prefix: u32,
    own: MadSocket,
}

impl Node {
    fn new() -> Node {
        // One adapter for all tests: it is the holder until the process ends.
        static CONTEXT: OnceLock<Arc<Context>> = OnceLock::new();
        let context = CONTEXT.get_or_init(|| Context::open("weir_lo").unwrap()).clone();
        context.expect_mads();
        let epoll = Arc::new(epoll::create().unwrap());
        let (prefix, own) = MadSocket::of_process(&epoll, 7).unwrap();
        Node { context, epoll, prefix, own }
    }

    fn listen(&self, service: u64) -> MadSocket {
        let mut socket = MadSocket::of_service(service, &self.epoll, 8).unwrap();
        socket.open().unwrap();
        socket
    }

    fn send(&self, message: &Message, tid: u64) {
        self.context.send_mad(HERE, HERE, 1, &message.emit(tid, 0)).unwrap();
    }

    fn request(&self, service: u64, id: u32) {
        let request = Req { local_comm_id: self.prefix | id, service_id: ServiceId(service), ..Req::default() };
        self.send(&Message::Req(request), 77);
    }

    /// The transaction id and the message that come next to the process itself.
    fn next(&mut self) -> (u64, Message) {
        next(&mut [&mut self.own])
    }
}

/// The transaction id and the message that come next to one of the sockets.
fn next(sockets: &mut [&mut MadSocket]) -> (u64, Message) {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let mut got = None;
        for socket in &mut *sockets {
            socket.take(|mad| {
                assert_eq!((mad.from, mad.to), (HERE, HERE));
                let (header, message) = Message::parse(mad.bytes).unwrap();
                assert!(got.replace((header.tid.get(), message)).is_none(), "more than one message");
            });
        }
        if let Some(got) = got {
            return got;
        }
        assert!(Instant::now() < end, "no message came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A service of this test process alone: `port` differs between tests.
fn service(space: u64, port: u16) -> u64 {
    space << 16 | u64::from(std::process::id() as u16 ^ port)
}

const TCP: u64 = 0x0106;
const UDP: u64 = 0x0111;

#[test]
fn mads_come_to_the_process_of_their_service() {
    let mut node = Node::new();
    let prefix = node.prefix;
    let taken = service(TCP, 0);
    let mut socket = MadSocket::of_service(taken, &node.epoll, 8).unwrap();
    assert_eq!(MadSocket::of_service(taken, &node.epoll, 9).map(|_| ()), Err(Errno(libc::EADDRINUSE)));
    socket.open().unwrap();
    node.request(taken, 1);
    assert!(matches!(next(&mut [&mut socket]), (77, Message::Req(req)) if req.local_comm_id == prefix | 1));
    let rej = Rej { remote_comm_id: prefix | 5, reason: RejectReason::TIMEOUT, ..Rej::default() };
    node.send(&Message::Rej(rej), 3);
    assert!(matches!(node.next(), (3, Message::Rej(rej)) if rej.remote_comm_id == prefix | 5));
    // Nothing listens for a service, nor did lately: the holder of the port says so.
    let nowhere = service(TCP, 0x1111);
    node.request(nowhere, 9);
    let (77, Message::Rej(rej)) = node.next() else { panic!("no REJ") };
    assert_eq!((rej.remote_comm_id, rej.message), (prefix | 9, 0));
    assert_eq!(rej.reason, RejectReason::INVALID_SERVICE_ID);
    let request = SidrReq { request_id: prefix | 3, service_id: ServiceId(nowhere), ..SidrReq::default() };
    node.send(&Message::SidrReq(request), 78);
    let (78, Message::SidrRep(answer)) = node.next() else { panic!("no SIDR_REP") };
    assert_eq!((answer.request_id, answer.status), (prefix | 3, SidrStatus::UNSUPPORTED));
    // A connection of a process that has ended.
    let bits = MadSocket::COMMUNICATION_BITS;
    let number = prefix >> bits;
    let other = (if number == 1 { 2 } else { number - 1 }) << bits | 7;
    let gone = Dreq { local_comm_id: prefix | 4, remote_comm_id: other, ..Dreq::default() };
    node.send(&Message::Dreq(gone), 79);
    let (79, Message::Drep(answer)) = node.next() else { panic!("no DREP") };
    assert_eq!(answer.remote_comm_id, prefix | 4);
    assert_eq!(node.context.send_mad(HERE, "::1".parse().unwrap(), 1, &[0; 256]), Err(Errno(libc::EINVAL)));
}

#[test]
fn a_request_between_two_listeners_of_a_port_waits_for_the_second() {
    let mut node = Node::new();
    let prefix = node.prefix;
    let (tcp, udp, nowhere) = (service(TCP, 0x5555), service(UDP, 0x5555), service(TCP, 0x2222));
    let mut first = node.listen(tcp);
    node.request(tcp, 1);
    assert!(matches!(next(&mut [&mut first]), (_, Message::Req(req)) if req.local_comm_id == prefix | 1));
    // Its sender gives up. It does not know the communication id of the request at this side.
    let gives_up = Rej { local_comm_id: prefix | 1, reason: RejectReason::TIMEOUT, ..Rej::default() };
    node.send(&Message::Rej(gives_up), 77);
    assert!(matches!(next(&mut [&mut first]), (_, Message::Rej(rej)) if rej.local_comm_id == prefix | 1));
    drop(first);
    let refused = |message: Message| {
        let Message::Rej(rej) = message else { panic!("no REJ") };
        assert_eq!(rej.reason, RejectReason::INVALID_SERVICE_ID);
        rej.remote_comm_id ^ prefix
    };
    // Each gets to the holder before the next listener exists: a later request, to a port that nothing has used, is
    // refused by then. If this process is stalled for a second, that is too long for a request; it asks again then.
    for (service, first_id) in [(tcp, 10), (udp, 20)] {
        let came = (first_id..).step_by(2).take(4).any(|id| {
            node.request(service, id);
            node.request(nowhere, id + 1);
            assert_eq!(refused(node.next().1), id + 1, "the request before it waits");
            let mut later = node.listen(service);
            match next(&mut [&mut later, &mut node.own]) {
                (_, Message::Req(req)) => req.local_comm_id == prefix | id,
                (_, other) => refused(other) != id,
            }
        });
        assert!(came, "the request to {service:x}");
    }
    // Nothing listens any more.
    node.request(tcp, 4);
    assert_eq!(refused(node.next().1), 4);
}
