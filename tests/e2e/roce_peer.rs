//! A RoCEv2 peer without Weir: a UDP socket on port 4791 and hand-made packets, with one message in flight.

use anyhow::{Context, Result, bail, ensure};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use weir_stage::{Side, Stage};
use weir_wire::icrc::{self, Verdict};
use weir_wire::ip::Envelope;
use weir_wire::{Aeth, Bth, Deth, Headers, Opcode, Operation, Packet, Psn, ROCE_PORT, Service, Syndrome};

/// Path MTU, bytes.
pub const MTU: usize = 1024;
/// Retransmission timeout.
const RETRANSMIT_AFTER: Duration = Duration::from_millis(100);

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct End {
    pub address: IpAddr,
    pub qpn: u32,
    /// PSN of its first request.
    pub psn: u32,
}

/// The peer, connected to one QP.
pub struct RocePeer<'s> {
    socket: &'s UdpSocket,
    local: End,
    remote: End,
    /// PSN of the next request to send, and the expected PSN of the other side's requests.
    next: Psn,
    expected: Psn,
    /// The oldest PSN sent that is not acknowledged.
    unacknowledged: Psn,
    /// Number of complete messages received.
    msn: u32,
    assembling: Vec<u8>,
    received: Option<Vec<u8>>,
    /// Drops the last packet of this many of the next messages.
    pub drop_last: u32,
    /// Number of packets dropped so far.
    pub dropped: u32,
    /// Number of dropped packets that the other side has retransmitted.
    pub retransmitted: u32,
    /// PSN of the dropped packet that the other side has not retransmitted yet.
    awaited: Option<Psn>,
}

/// Binds port 4791 of an address of a side.
pub fn bind(stage: &Stage, side: Side, address: IpAddr) -> Result<UdpSocket> {
    let socket = stage.enter(side, || UdpSocket::bind((address, ROCE_PORT)))?.context("cannot bind port 4791")?;
    if address.is_ipv4() {
        // Makes the kernel send Identification 0 and Don't Fragment, both of which the ICRC covers.
        set(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
    } else {
        // Adapters send UDP checksum 0. The libc crate does not define the option for this target.
        const UDP_NO_CHECK6_TX: i32 = 101;
        set(&socket, libc::SOL_UDP, UDP_NO_CHECK6_TX, 1)?;
    }
    socket.set_read_timeout(Some(Duration::from_millis(10)))?;
    Ok(socket)
}

fn set(socket: &UdpSocket, level: i32, option: i32, value: i32) -> Result<()> {
    // SAFETY: the option takes an int, and the call passes its address and size.
    let rc = unsafe {
        let len = size_of_val(&value) as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), len)
    };
    ensure!(rc == 0, "socket option {option}: {}", std::io::Error::last_os_error());
    Ok(())
}

impl<'s> RocePeer<'s> {
    pub fn new(socket: &'s UdpSocket, local: End, remote: End) -> Self {
        RocePeer {
            socket,
            local,
            remote,
            next: Psn::new(local.psn),
            expected: Psn::new(remote.psn),
            unacknowledged: Psn::new(local.psn),
            msn: 0,
            assembling: vec![],
            received: None,
            drop_last: 0,
            dropped: 0,
            retransmitted: 0,
            awaited: None,
        }
    }

    /// Sends a message by SEND, retransmits it, and waits for its ACK and for one message of the other side.
    pub fn exchange(&mut self, message: &[u8], timeout: Duration) -> Result<Vec<u8>> {
        let first = self.next;
        let end = first.plus(message.len().div_ceil(MTU) as u32);
        let until = Instant::now() + timeout;
        while Instant::now() < until {
            self.send(message, first)?;
            self.next = end;
            let again = Instant::now() + RETRANSMIT_AFTER;
            while Instant::now() < again {
                self.receive()?;
                if self.unacknowledged == end
                    && let Some(received) = self.received.take()
                {
                    return Ok(received);
                }
            }
        }
        let missing = if self.unacknowledged == end { "no message" } else { "no acknowledgement" };
        bail!("{missing} from QP {:#x} within {timeout:?}", self.remote.qpn)
    }

    /// Sends a datagram to a UD QP, once, and waits for a datagram of that QP.
    pub fn datagram(&mut self, message: &[u8], qkey: u32, timeout: Duration) -> Result<Vec<u8>> {
        let mut bth = self.bth(Operation::SendOnly, self.next);
        bth.opcode = Opcode::new(Service::Ud, Operation::SendOnly);
        bth.pad = (message.len().wrapping_neg() & 3) as u8;
        let mut headers = Headers::new(bth);
        headers.put(Deth { qkey: qkey.into(), src_qp: self.local.qpn.into() });
        self.emit(&headers, message)?;
        self.next = self.next.next();
        let until = Instant::now() + timeout;
        while Instant::now() < until {
            self.receive()?;
            if let Some(received) = self.received.take() {
                return Ok(received);
            }
        }
        bail!("no datagram from QP {:#x} within {timeout:?}", self.remote.qpn)
    }

    /// Sends a message to a UC QP by SEND, each packet once, and does not wait.
    pub fn send_without_retransmission(&mut self, message: &[u8]) -> Result<()> {
        let emit = |i: usize, packet: (Headers, &[u8])| {
            // A veth queues about a thousand packets.
            if i % 256 == 255 {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.emit(&packet.0, packet.1)
        };
        self.packets(Service::Uc, message, self.next).enumerate().try_for_each(|(i, packet)| emit(i, packet))?;
        self.next = self.next.plus(message.len().div_ceil(MTU) as u32);
        Ok(())
    }

    fn send(&self, message: &[u8], first: Psn) -> Result<()> {
        self.packets(Service::Rc, message, first).try_for_each(|(headers, payload)| self.emit(&headers, payload))
    }

    /// The packets of a SEND.
    fn packets<'m>(
        &self,
        service: Service,
        message: &'m [u8],
        first: Psn,
    ) -> impl Iterator<Item = (Headers, &'m [u8])> + use<'m> {
        let dest = self.remote.qpn;
        let count = message.len().div_ceil(MTU);
        message.chunks(MTU).enumerate().map(move |(i, payload)| {
            let operation = match (i == 0, i + 1 == count) {
                (true, true) => Operation::SendOnly,
                (true, false) => Operation::SendFirst,
                (false, false) => Operation::SendMiddle,
                (false, true) => Operation::SendLast,
            };
            let mut bth = Bth::new(Opcode::new(service, operation), dest, first.plus(i as u32));
            bth.ack_req = i + 1 == count && service == Service::Rc;
            bth.pad = (payload.len().wrapping_neg() & 3) as u8;
            (Headers::new(bth), payload)
        })
    }

    /// Receives and handles one packet, if one arrives before the read timeout.
    fn receive(&mut self) -> Result<()> {
        let mut bytes = [0; 2 * MTU];
        let (len, from) = match self.socket.recv_from(&mut bytes) {
            Ok(got) => got,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let bytes = &bytes[..len];
        ensure!(from.ip() == self.remote.address, "a packet from {from}");
        let packet = Packet::parse(bytes)?;
        let envelope = self.envelope(from, self.socket.local_addr()?);
        let verdict = icrc::verify(&envelope, bytes);
        // A UDP socket does not show the Identification; `verify` solves for it.
        ensure!(verdict != Verdict::Bad, "a wrong ICRC in {:?}", packet.headers.bth);
        ensure!(packet.headers.bth.dest_qp == self.local.qpn, "a packet for another QP: {:?}", packet.headers.bth);
        match packet.headers.bth.opcode.operation() {
            Some(Operation::Acknowledge) => self.acknowledged(&packet),
            Some(Operation::SendFirst | Operation::SendMiddle | Operation::SendLast | Operation::SendOnly) => {
                self.request(&packet)
            }
            _ => bail!("an unexpected packet: {:?}", packet.headers.bth),
        }
    }

    fn acknowledged(&mut self, packet: &Packet<'_>) -> Result<()> {
        let aeth = packet.headers.get::<Aeth>().context("an ACK without AETH")?;
        let syndrome = Syndrome::from_byte(aeth.syndrome());
        match syndrome {
            Syndrome::Ack(_) => self.unacknowledged = packet.headers.bth.psn.next(),
            // The responder is not ready or misses a packet: `exchange` retransmits after `RETRANSMIT_AFTER`.
            Syndrome::RnrNak(_) | Syndrome::Nak(weir_wire::NakCode::PsnSequence) => (),
            _ => bail!("an error syndrome: {syndrome:?}"),
        }
        Ok(())
    }

    fn request(&mut self, packet: &Packet<'_>) -> Result<()> {
        let bth = packet.headers.bth;
        let is_last = matches!(bth.opcode.operation(), Some(Operation::SendLast | Operation::SendOnly));
        if bth.psn != self.expected {
            if bth.psn.since(self.expected) < 0 {
                self.acknowledge()?;
            }
            return Ok(());
        }
        if is_last && self.drop_last > 0 {
            self.drop_last -= 1;
            self.dropped += 1;
            self.awaited = Some(bth.psn);
            return Ok(());
        }
        if self.awaited == Some(bth.psn) {
            self.awaited = None;
            self.retransmitted += 1;
        }
        self.expected = bth.psn.next();
        self.assembling.extend_from_slice(packet.payload);
        if is_last {
            self.msn += 1;
            self.received = Some(std::mem::take(&mut self.assembling));
        }
        if bth.ack_req { self.acknowledge() } else { Ok(()) }
    }

    fn acknowledge(&self) -> Result<()> {
        let bth = self.bth(Operation::Acknowledge, self.expected.minus(1));
        let mut headers = Headers::new(bth);
        headers.put(Aeth::new(Syndrome::ACK_UNLIMITED.to_byte(), self.msn));
        self.emit(&headers, &[])
    }

    fn bth(&self, operation: Operation, psn: Psn) -> Bth {
        Bth::new(Opcode::new(Service::Rc, operation), self.remote.qpn, psn)
    }

    fn emit(&self, headers: &Headers, payload: &[u8]) -> Result<()> {
        let mut bytes = vec![0; headers.len()];
        headers.emit(&mut bytes);
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len() + usize::from(headers.bth.pad), 0);
        let to = SocketAddr::new(self.remote.address, ROCE_PORT);
        let icrc = icrc::compute(&self.envelope(self.socket.local_addr()?, to), &bytes);
        bytes.extend_from_slice(&icrc.to_le_bytes());
        self.socket.send_to(&bytes, to)?;
        Ok(())
    }

    fn envelope(&self, from: SocketAddr, to: SocketAddr) -> Envelope {
        Envelope {
            src: from.ip(),
            dst: to.ip(),
            src_port: from.port(),
            dst_port: to.port(),
            ip_id: 0,
            dont_fragment: true,
        }
    }
}
