//! The receiving side: a slot's socket, and connections from the process that holds port 4791.
//!
//! Any user may connect. A connection of a user that is refused is closed, and does not keep others from theirs:
//! while it waits for the decision, later connections of other users are accepted, and connections are read in turn.

use crate::os::{clock, descriptors, seqpacket};
use crate::relay::port_authority::{PortAuthority, PortOwners};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use weir_transport::Instant;

/// The most connections: of the holder, of the previous holder, and of a process that only pretends to be the holder.
const LINKS: usize = 4;
/// The most connections that wait for the decision whether their users are accepted.
const UNDECIDED: usize = 4;

/// The socket of a name, and its connections.
pub struct Incoming {
    listener: OwnedFd,
    links: Vec<Link>,
    /// Connections of users about which the process has not decided, one of each user.
    undecided: Vec<Link>,
    authority: PortAuthority,
}

/// A connection of a process that hands packets over.
pub struct Link {
    socket: OwnedFd,
    user: u32,
    /// Since when it waits for the decision whether its user is accepted.
    waits: Option<Instant>,
}

impl AsRawFd for Link {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// The result of receiving.
pub enum Received {
    /// A message, and the user of the process that sent it.
    Message {
        len: usize,
        user: u32,
    },
    /// A connection has ended. Its descriptor is still open.
    Ended(Link),
    Nothing,
}

/// A new connection, and the one that was ended for it.
pub struct Accepted {
    pub new: RawFd,
    pub ended: Option<Link>,
}

impl Incoming {
    /// Claims a name. `AddrInUse` if another process has it.
    pub fn claim(name: &str) -> io::Result<Incoming> {
        Ok(Self::of(seqpacket::claim(name)?))
    }

    /// The connections that come in by this socket.
    pub fn of(listener: OwnedFd) -> Incoming {
        Incoming {
            listener,
            links: Vec::with_capacity(LINKS),
            undecided: Vec::with_capacity(UNDECIDED),
            authority: PortAuthority::new(),
        }
    }

    /// Returns whether there are connections.
    pub fn is_connected(&self) -> bool {
        !self.links.is_empty()
    }

    /// Accepts a connection, if there is one of a user that is accepted. Error: the process has no descriptor left.
    pub fn accept(&mut self, now: Instant) -> io::Result<Option<Accepted>> {
        for _ in 0..FORGERIES {
            let link = match self.take_decided(now) {
                Some(link) => link,
                None if self.undecided.len() == UNDECIDED => return Ok(None),
                None => {
                    let Some(link) = self.take_new()? else { return Ok(None) };
                    if !is_decided(&mut self.authority, &link, now) {
                        self.put_off(link);
                        continue;
                    }
                    link
                }
            };
            if !self.authority.may_connect(link.user, now) {
                continue;
            }
            let ended = (self.links.len() == LINKS).then(|| {
                // The first was read longest ago.
                let of_user = self.links.iter().position(|other| other.user == link.user);
                self.links.remove(of_user.unwrap_or(0))
            });
            let new = link.as_raw_fd();
            self.links.push(Link { waits: None, ..link });
            return Ok(Some(Accepted { new, ended }));
        }
        Ok(None)
    }

    /// A connection waits until the owners of port 4791 are read. It takes the place of an earlier one of its user, so
    /// that no user keeps others waiting.
    fn put_off(&mut self, link: Link) {
        if let Some(at) = self.undecided.iter().position(|other| other.user == link.user) {
            descriptors::forget(&[self.undecided.remove(at).as_raw_fd()]);
        }
        descriptors::register(&[link.as_raw_fd()]);
        self.undecided.push(link);
    }

    /// A connection that waited for the owners of port 4791, if it is decided by now whether its user is accepted.
    fn take_decided(&mut self, now: Instant) -> Option<Link> {
        let authority = &mut self.authority;
        let at = self.undecided.iter().position(|link| is_decided(authority, link, now))?;
        let link = self.undecided.remove(at);
        descriptors::forget(&[link.as_raw_fd()]);
        Some(link)
    }

    /// A new connection.
    fn take_new(&mut self) -> io::Result<Option<Link>> {
        loop {
            let socket = match seqpacket::accept(&self.listener) {
                Ok(socket) => socket,
                Err(error) if seqpacket::is_short(&error) => return Err(error),
                // There is none, or it was closed meanwhile.
                Err(_) => return Ok(None),
            };
            if let Ok(user) = seqpacket::user(&socket) {
                return Ok(Some(Link { socket, user, waits: Some(clock::now()) }));
            }
        }
    }

    /// Returns whether the owners of port 4791 must be read, since the last call: a connection or a message waits for
    /// that.
    pub fn take_owners_request(&mut self) -> bool {
        self.authority.take_read_request()
    }

    /// Takes the owners of port 4791; reading them began at `began` and has ended. Returns the earlier ones in
    /// `owners`.
    pub fn renew_owners(&mut self, owners: &mut PortOwners, began: Instant, now: Instant) {
        self.authority.renew(owners, began, now);
    }

    /// Receives a message. The caller must check for each packet in it whether its user is still accepted.
    pub fn receive(&mut self, buffer: &mut [u8], now: Instant) -> Received {
        for at in 0..self.links.len() {
            let link = &mut self.links[at];
            let since = *link.waits.get_or_insert(now);
            if !self.authority.is_decided(link.user, since, now) {
                continue;
            }
            link.waits = None;
            match seqpacket::receive(&link.socket, buffer) {
                // The holder sends no message without a packet, so the connection has ended.
                Ok(0) => return Received::Ended(self.links.remove(at)),
                Ok(len) if len <= buffer.len() => {
                    let user = link.user;
                    // The other connections come first at the next call.
                    self.links[at..].rotate_left(1);
                    return Received::Message { len, user };
                }
                // It is longer than any message of the holder.
                Ok(_) => return Received::Ended(self.links.remove(at)),
                Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => {}
                Err(_) => return Received::Ended(self.links.remove(at)),
            }
        }
        Received::Nothing
    }

    /// The descriptors of the name and of its connections that are accepted.
    pub fn descriptors(&self) -> Vec<RawFd> {
        self.links.iter().map(Link::as_raw_fd).chain([self.listener.as_raw_fd()]).collect()
    }

    /// Returns whether packets from an address are accepted if a process of a user hands them over.
    pub fn accepts_from(&mut self, user: u32, from: IpAddr, now: Instant) -> bool {
        self.authority.accepts_from(user, from, now)
    }
}

impl AsRawFd for Incoming {
    fn as_raw_fd(&self) -> RawFd {
        self.listener.as_raw_fd()
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        for link in &self.undecided {
            descriptors::forget(&[link.as_raw_fd()]);
        }
    }
}

/// Returns whether it is decided if the user of a new connection is accepted.
fn is_decided(authority: &mut PortAuthority, link: &Link, now: Instant) -> bool {
    authority.is_decided(link.user, link.waits.unwrap_or(now), now)
}

/// The most connections that one call refuses: a flood of them must not delay the engine.
const FORGERIES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    use std::io::IoSlice;

    fn claimed(test: &str) -> (String, Incoming) {
        let name = format!("weir/test/{test}/{}", std::process::id());
        let incoming = Incoming::claim(&name).unwrap();
        (name, incoming)
    }

    fn message(incoming: &mut Incoming, buffer: &mut [u8]) -> Option<usize> {
        match incoming.receive(buffer, clock::now()) {
            Received::Message { len, .. } => Some(len),
            Received::Ended(_) => None,
            Received::Nothing => panic!("nothing came"),
        }
    }

    #[test]
    fn empty_and_oversized_messages_end_a_connection_and_no_other() {
        let (name, mut incoming) = claimed("lengths");
        let good = seqpacket::connect(&name).unwrap();
        assert!(incoming.accept(clock::now()).unwrap().is_some());
        for len in [0, 101, 60_000] {
            let bad = seqpacket::connect(&name).unwrap();
            assert!(incoming.accept(clock::now()).unwrap().is_some());
            seqpacket::send(&bad, &vec![1; len]).unwrap();
            seqpacket::send(&bad, &[1; 10]).unwrap();
            assert_eq!(message(&mut incoming, &mut [0; 100]), None, "{len} bytes");
            assert_eq!(incoming.links.len(), 1);
            seqpacket::send(&good, &[1; 100]).unwrap();
            assert_eq!(message(&mut incoming, &mut [0; 100]), Some(100));
        }
        drop(good);
        assert_eq!(message(&mut incoming, &mut [0; 100]), None);
        assert!(!incoming.is_connected());
        assert!(matches!(incoming.receive(&mut [0; 100], clock::now()), Received::Nothing));
    }

    #[test]
    fn new_connections_take_the_place_of_old_ones_and_busy_ones_take_turns() {
        let (name, mut incoming) = claimed("turns");
        let mut connections = Vec::new();
        for number in 0..LINKS + 3 {
            connections.push(seqpacket::connect(&name).unwrap());
            let accepted = incoming.accept(clock::now()).unwrap().unwrap();
            assert_eq!(accepted.ended.is_some(), number >= LINKS);
        }
        assert_eq!(incoming.links.len(), LINKS);
        for (number, connection) in connections.iter().enumerate() {
            for _ in 0..3 {
                let sent = seqpacket::send(connection, &vec![1; number + 1]);
                assert_eq!(sent.is_ok(), number >= 3, "{number}: {sent:?}");
            }
        }
        let got: Vec<_> = (0..3 * LINKS).map(|_| message(&mut incoming, &mut [0; 100]).unwrap()).collect();
        assert_eq!(got, [4, 5, 6, 7].repeat(3));
    }

    #[test]
    fn descriptors_in_a_message_are_not_received() {
        let (name, mut incoming) = claimed("descriptors");
        let connection = seqpacket::connect(&name).unwrap();
        assert!(incoming.accept(clock::now()).unwrap().is_some());
        let (reader, writer) = std::io::pipe().unwrap();
        let (parts, file) = ([IoSlice::new(b"something")], [writer.as_raw_fd()]);
        let files = [ControlMessage::ScmRights(&file)];
        sendmsg::<()>(connection.as_raw_fd(), &parts, &files, MsgFlags::empty(), None).unwrap();
        drop(writer);
        assert_eq!(message(&mut incoming, &mut [0; 100]), Some(9));
        let mut poll = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd on the stack.
        unsafe { libc::poll(&mut poll, 1, 0) };
        assert_eq!(poll.revents, libc::POLLHUP, "the pipe has no writer left");
    }

    /// Any user may connect, from a socket of any name.
    #[test]
    fn sockets_of_every_name_may_connect() {
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, connect, socket};
        let (name, mut incoming) = claimed("names");
        let path = std::env::temp_dir().join(format!("weir-slot-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let longest = format!("{:0>107}", std::process::id());
        let to = UnixAddr::new_abstract(name.as_bytes()).unwrap();
        let from = [
            None,
            Some(UnixAddr::new(&path).unwrap()),
            Some(UnixAddr::new_abstract(longest.as_bytes()).unwrap()),
            Some(UnixAddr::new_unnamed()),
        ];
        let mut connections = Vec::new();
        for from in from {
            let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
            if let Some(from) = &from {
                bind(socket.as_raw_fd(), from).unwrap();
            }
            connect(socket.as_raw_fd(), &to).unwrap();
            seqpacket::send(&socket, b"message").unwrap();
            assert!(incoming.accept(clock::now()).unwrap().is_some(), "{from:?}");
            assert_eq!(message(&mut incoming, &mut [0; 100]), Some(7), "{from:?}");
            connections.push(socket);
        }
        std::fs::remove_file(&path).unwrap();
        // Datagram sockets, which need no connection, cannot send to it.
        let datagrams = std::os::unix::net::UnixDatagram::unbound().unwrap();
        assert!(nix::sys::socket::sendto(datagrams.as_raw_fd(), b"", &to, MsgFlags::empty()).is_err());
    }

    /// In its own network namespace and with its own user, both of which are properties of a thread.
    #[test]
    #[ignore = "needs root"]
    fn another_user_is_accepted_with_the_port() {
        use std::net::{SocketAddr, UdpSocket};
        let test = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let (name, mut incoming) = claimed("users");
            let from: IpAddr = [10, 1, 2, 3].into();
            let mut accepts_from = |port: Option<SocketAddr>, user: u32| {
                let connect = || {
                    // SAFETY: changes the user of this thread only, where the library's call would change that of all
                    // threads.
                    assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) }, 0);
                    (seqpacket::connect(&name).unwrap(), port.map(|address| UdpSocket::bind(address).unwrap()))
                };
                let _held = std::thread::scope(|scope| scope.spawn(connect).join().unwrap());
                incoming.authority = PortAuthority::new();
                let mut accepted = incoming.accept(clock::now()).unwrap().is_some();
                // Only another user's connection needs the owners of the port.
                assert_eq!(incoming.take_owners_request(), user != 0);
                assert!(user == 0 || !accepted, "it waits until the owners are known");
                if user != 0 {
                    let began = clock::now();
                    incoming.renew_owners(&mut PortOwners::read(), began, clock::now());
                    accepted = incoming.accept(clock::now()).unwrap().is_some();
                }
                accepted && incoming.accepts_from(user, from, clock::now())
            };
            let (v4, v6) = (Some("0.0.0.0:4791".parse().unwrap()), Some("[::]:4791".parse().unwrap()));
            assert!(accepts_from(None, 0), "root");
            assert!(!accepts_from(None, 12345), "a user with a connection and nothing else");
            assert!(!accepts_from(v6, 12345), "the port of the other family");
            assert!(accepts_from(v4, 12345));
            assert!(!accepts_from(v4, 65534), "the overflow UID, which several users share");
        };
        std::thread::spawn(test).join().unwrap();
    }

    /// A flood of connections that are refused delays the holder's connection, but does not prevent it.
    #[test]
    #[ignore = "needs root"]
    fn connections_of_others_are_refused() {
        let test = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let (name, mut incoming) = claimed("flood");
            let flood = || {
                // SAFETY: changes the user of this thread only, where the library's call would change that of all
                // threads.
                assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 12345, 12345, 12345) }, 0);
                std::iter::from_fn(|| seqpacket::connect(&name).ok()).take(1000).collect::<Vec<_>>()
            };
            let flood = std::thread::scope(|scope| scope.spawn(flood).join().unwrap());
            assert!(flood.len() < 1000, "the number of connections is limited");
            assert!(incoming.accept(clock::now()).unwrap().is_none(), "none of them, and not all in one call");
            let holder = seqpacket::connect(&name).unwrap();
            // The owners are not read meanwhile: the flood's connections wait for that, and the holder's does not.
            let mut look = || incoming.accept(clock::now()).unwrap();
            let looks = (0..flood.len()).take_while(|_| look().is_none()).count();
            assert!(looks <= flood.len() / FORGERIES, "{looks}");
            seqpacket::send(&holder, b"message").unwrap();
            assert_eq!(message(&mut incoming, &mut [0; 100]), Some(7));
            assert!(incoming.take_owners_request());
            assert_eq!(incoming.undecided.len(), 1, "a connection takes the place of its user's earlier one");
            let began = clock::now();
            incoming.renew_owners(&mut PortOwners::read(), began, clock::now());
            assert!(incoming.accept(clock::now()).unwrap().is_none());
            for refused in &flood {
                assert_eq!(seqpacket::send(refused, b"message").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
            }
        };
        std::thread::spawn(test).join().unwrap();
    }
}
