//! The body of a fuzz target: a hostile Weir peer that has agreed to frames.
//!
//! The input bytes choose requests and responses that are right, and then what is wrong with some of them: placement,
//! PSN, opcode, length, or raw bytes. The body keeps a model of the connection, and compares what the QP does with it.

use super::fuzz::length;
use super::host::{Entry, Staging};
use super::memory::Region;
use super::pair::{Node, Pair, SRQ, Setup};
use super::requests::{BASE, KEY, read, remote, sge};
use crate::{Access, Data, Limits, Mtu, Queue, RecvWr, SendFlags, SendOp, SendWr};
use std::ops::Range;
use std::time::Duration;
use weir_trials::Input;
use weir_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Destination, Headers, Ieth, ImmDt, Opcode, Operation as O, Packet, Placement,
    Psn, Reth, Service, XrcEth, frame,
};

const REGION: usize = 12 << 10;
/// What the peer may access, and its key. The rest of the region has a key for local access only.
const GRANTED: Range<u64> = BASE + 1024..BASE + 5120;
const GRANT: u32 = 0x77aa;
/// The buffers of all receives begin here, and each has this length.
const RECEIVES: usize = 6000;
const RECEIVE: usize = 2500;
/// The buffers of READs, one after the other.
const READS: usize = 9000;
const READ: usize = 700;

/// A request of several packets that is not complete.
#[derive(Clone, Copy)]
struct Message {
    destination: Destination,
    write: bool,
    sent: u32,
    length: u32,
}

/// The response packet that is due next, by number.
#[derive(Clone, Copy)]
struct Due {
    operation: O,
    psn: Psn,
    placement: Placement,
    payload: usize,
}

/// The QP under attack, which is node 1, and what a correct peer would know of it.
struct Victim {
    pair: Pair,
    setup: Setup,
    message: Option<Message>,
    /// Requests executed so far.
    messages: u32,
    /// All response packets to its requests, in their order.
    due: Vec<Due>,
    /// The number of responses that the peer has sent.
    answered: usize,
}

/// Feeds frames of a hostile peer to a QP that has receives and outstanding requests. It must not panic, write outside
/// of the granted memory, the receives and the READs' buffers, or execute a frame with another placement than the one
/// that its PSN stands for.
pub fn frames(data: &[u8]) {
    let mut input = Input(data);
    let mut victim = Victim::new(&mut input);
    let before = victim.pair.memory(1, 0, REGION);
    for _ in 0..256 {
        if input.is_empty() {
            break;
        }
        match input.byte() % 16 {
            0 => victim.transmit(),
            1 => {
                victim.pair.now = victim.pair.now + Duration::from_micros(u64::from(input.byte()) * 64);
                let Node { qp, host, .. } = &mut victim.pair.nodes[1];
                qp.handle_timeout(victim.pair.now, host);
            }
            2 => victim.roce_request(&mut input),
            3..7 if !victim.due.is_empty() => victim.response(&mut input),
            _ => victim.request(&mut input),
        }
    }
    victim.transmit();
    let after = victim.pair.memory(1, 0, REGION);
    let reads = READS..READS + 4 * READ;
    for (at, (before, after)) in before.iter().zip(&after).enumerate() {
        let granted = GRANTED.contains(&(BASE + at as u64));
        let receive = (RECEIVES..RECEIVES + RECEIVE).contains(&at);
        assert!(before == after || granted || receive || reads.contains(&at), "byte {at} of the region has changed");
    }
    assert!(victim.pair.canaries_live(), "a byte outside of the region has changed");
    for queue in [Queue::Receive, Queue::Send] {
        let ids = victim.pair.completions(1, queue).into_iter().map(|completion| completion.wr_id);
        assert!(ids.enumerate().all(|(at, id)| id == at as u64), "completions come once and in order");
    }
}

impl Victim {
    fn new(input: &mut Input<'_>) -> Victim {
        let first = input.byte();
        let mtu = [Mtu::M256, Mtu::M512, Mtu::M1024][usize::from(first) % 3];
        let service = [Service::Rc, Service::Rc, Service::Uc, Service::Xrc][usize::from(first / 64)];
        let setup =
            Setup { service, mtu, region: REGION, psn: [0xff_fff8, 0xff_fffa], frames: true, ..Setup::default() };
        let mut pair = setup.pair();
        {
            let mut memory = pair.nodes[1].host.memory.borrow_mut();
            let regions = memory.regions();
            regions[0].access = Access::LOCAL_WRITE;
            let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
            let len = GRANTED.end - GRANTED.start;
            regions.push(Region { key: GRANT, addr: GRANTED.start, len, access, mapped: true });
        }
        for wr_id in 0..u64::from(input.byte() % 8) {
            let sges = [sge(RECEIVES, 1000), sge(RECEIVES + 1000, RECEIVE - 1000)];
            if service == Service::Xrc {
                let mut srqs = pair.nodes[1].host.srqs.borrow_mut();
                srqs.entry(SRQ).or_default().push_back((wr_id, sges.to_vec()));
            } else {
                pair.nodes[1].qp.post_recv(&RecvWr { wr_id, sges: &sges }).expect("room in the receive queue");
            }
        }
        let mut victim = Victim { pair, setup, message: None, messages: 0, due: vec![], answered: 0 };
        if service == Service::Rc {
            victim.post(input.byte());
            victim.transmit();
        }
        victim
    }

    /// Posts requests, a READ and others by bits, and enters the responses that they ask for.
    fn post(&mut self, bits: u8) {
        let mtu = self.setup.mtu.bytes();
        let mut psn = Psn::new(self.setup.psn[1]);
        for (number, bits) in [bits & 3, bits >> 2 & 3, bits >> 4 & 3, bits >> 6].into_iter().enumerate() {
            let (remote_addr, rkey) = remote(0);
            let (op, at, len) = match bits {
                0 => (SendOp::Send, 0, 10),
                1 => (SendOp::AtomicWrite { remote_addr, rkey }, 0, 8),
                _ => (read(0), READS + number * READ, if bits == 2 { READ } else { 5 }),
            };
            let wr =
                SendWr { wr_id: number as u64, op, flags: SendFlags::SIGNALED, data: Data::Gather(&[sge(at, len)]) };
            let to = self.pair.target(1);
            self.pair.nodes[1].qp.post_send_to(&wr, to).expect("room in the send queue");
            let reads = bits >= 2;
            let packets = if reads { len.div_ceil(mtu) } else { 1 };
            for packet in 0..packets {
                let operation = match (reads, packet == 0, packet + 1 == packets) {
                    (false, ..) if bits == 0 => O::Acknowledge,
                    (false, ..) | (_, true, true) => O::ReadResponseOnly,
                    (_, true, false) => O::ReadResponseFirst,
                    (_, false, false) => O::ReadResponseMiddle,
                    (_, false, true) => O::ReadResponseLast,
                };
                let offset = packet * mtu;
                let length = if reads { len } else { 0 };
                let destination = Destination::Message { number: number as u32 };
                let placement = Placement { destination, offset: offset as u32, length: length as u32 };
                self.due.push(Due { operation, psn, placement, payload: (length - offset.min(length)).min(mtu) });
                psn = psn.next();
            }
        }
    }

    /// The next packet of a message, with or without a lie.
    fn request(&mut self, input: &mut Input<'_>) {
        let mtu = self.setup.mtu.bytes() as u32;
        let first = self.message.is_none();
        let message = self.message.unwrap_or_else(|| {
            let choice = input.byte();
            let (write, length) =
                (choice & 1 != 0, [0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu + 7][usize::from(choice >> 1) % 6]);
            let address = GRANTED.start + u64::from(input.byte()) * 16;
            let destination = match write {
                true => Destination::Memory { address, rkey: if choice & 0x80 == 0 { GRANT } else { KEY } },
                false => Destination::Message { number: self.messages },
            };
            Message { destination, write, sent: 0, length }
        });
        let last = message.length - message.sent <= mtu;
        let payload = (message.length - message.sent).min(mtu);
        let variant = usize::from(input.byte());
        let operation = match (message.write, first, last) {
            (false, true, false) => O::SendFirst,
            (false, false, false) => O::SendMiddle,
            (false, false, true) => [O::SendLast, O::SendLastImm, O::SendLastInv][variant % 3],
            (false, true, true) => [O::SendOnly, O::SendOnlyImm, O::SendOnlyInv][variant % 3],
            (true, true, false) => O::WriteFirst,
            (true, false, false) => O::WriteMiddle,
            (true, false, true) => [O::WriteLast, O::WriteLastImm][variant % 2],
            (true, true, true) => [O::WriteOnly, O::WriteOnlyImm][variant % 2],
        };
        let opcode = Opcode::new(self.setup.service, operation);
        let destination = match message.destination {
            Destination::Memory { address, rkey } => {
                Destination::Memory { address: address + u64::from(message.sent), rkey }
            }
            number => number,
        };
        let right = Placement { destination, offset: message.sent, length: message.length };
        let psn = self.expected();
        let executed = self.deliver(input, opcode, psn, right, payload as usize);
        let Some(sent) = executed else { return };
        if self.setup.service == Service::Uc {
            return;
        }
        // A correct responder executes a frame only if it is the one that the model expects.
        let here = match sent.placement {
            Placement { destination: Destination::Message { number }, offset, .. } => {
                !is_write(sent.opcode) && number == self.messages && offset == message.sent
            }
            Placement { destination: Destination::Memory { .. }, offset, .. } if first => offset == 0,
            Placement { destination: there, offset, length } => {
                there == destination && (offset, length) == (message.sent, message.length)
            }
        };
        assert!(here, "a frame was executed that belongs elsewhere: {sent:?}, {right:?}");
        assert!(first || sent.placement.length == message.length, "the length of a message has changed");
        let (begun, length) = (message.sent, sent.placement.length);
        let received = begun + sent.payload as u32;
        assert_eq!(sent.opcode.ends_message(), received == length, "a message ended early or late: {sent:?}");
        self.message = None;
        if sent.opcode.ends_message() {
            self.messages = (self.messages + 1) & 0xff_ffff;
        } else {
            let (write, destination) = match sent.placement.destination {
                Destination::Memory { address, rkey } => {
                    (true, Destination::Memory { address: address - u64::from(begun), rkey })
                }
                number => (false, number),
            };
            self.message = Some(Message { destination, write, sent: received, length });
        }
    }

    /// A READ, an atomic or an ATOMIC WRITE, which are RoCE packets between frames.
    fn roce_request(&mut self, input: &mut Input<'_>) {
        let operation = [O::ReadRequest, O::CompareSwap, O::FetchAdd, O::AtomicWrite][usize::from(input.byte()) % 4];
        let address = GRANTED.start + u64::from(input.byte()) * 16;
        let before = self.expected();
        let mut headers = Headers::new(Bth::new(Opcode::new(self.setup.service, operation), 0x12, before));
        let dma_len = if operation == O::ReadRequest { u32::from(input.byte()) * 8 } else { 8 };
        headers.put(Reth { va: address.into(), rkey: GRANT.into(), dma_len: dma_len.into() });
        headers.put(AtomicEth { va: address.into(), rkey: GRANT.into(), swap_or_add: 5.into(), compare: 1.into() });
        headers.put(XrcEth { srq: SRQ.into() });
        let destination = Destination::Memory { address, rkey: GRANT ^ u32::from(input.byte() & 1) };
        let placement = (operation == O::AtomicWrite).then_some(Placement { destination, offset: 0, length: 8 });
        let payload = if operation == O::AtomicWrite { &[7; 8][..] } else { &[] };
        let Node { qp, host, .. } = &mut self.pair.nodes[1];
        qp.handle_packet(self.pair.now, &Packet { headers, payload, icrc: 0, placement }, host);
        if self.expected() != before && self.setup.service != Service::Uc {
            let right = Destination::Memory { address, rkey: GRANT };
            assert!(placement.is_none_or(|placement| placement.destination == right), "an ATOMIC WRITE elsewhere");
            assert!(self.message.is_none(), "a message was interrupted");
            self.messages = (self.messages + 1) & 0xff_ffff;
        }
    }

    /// The next response packet, with or without a lie.
    fn response(&mut self, input: &mut Input<'_>) {
        let Due { operation, psn, placement, payload } = self.due[self.answered % self.due.len()];
        self.answered += 1;
        let opcode = Opcode::new(Service::Rc, operation);
        if operation == O::Acknowledge {
            let mut headers = Headers::new(Bth::new(opcode, 0x12, psn));
            headers.put(Aeth::new(0x1f, 1));
            headers.put(AtomicAckEth { original: 5.into() });
            let Node { qp, host, .. } = &mut self.pair.nodes[1];
            qp.handle_packet(self.pair.now, &Packet { headers, payload: &[], icrc: 0, placement: None }, host);
        } else {
            self.deliver(input, opcode, psn, placement, payload);
        }
    }

    fn expected(&self) -> Psn {
        self.pair.nodes[1].qp.attr().rq_psn
    }

    /// Sends a frame with this placement to the QP, perhaps changed. Returns what was executed as a request.
    fn deliver(
        &mut self,
        input: &mut Input<'_>,
        mut opcode: Opcode,
        mut psn: Psn,
        mut placement: Placement,
        mut payload: usize,
    ) -> Option<Delivered> {
        let lie = input.byte();
        let small = u32::from(lie >> 4) + 1;
        match lie & 15 {
            0 => placement.offset = placement.offset.wrapping_add(small),
            1 => placement.offset = placement.offset.wrapping_sub(small * self.setup.mtu.bytes() as u32),
            2 => placement.length = placement.length.wrapping_add(small),
            3 => placement.length = placement.length.wrapping_sub(small),
            4 => placement.length = input.word(),
            5 => match &mut placement.destination {
                Destination::Memory { address, .. } => *address = address.wrapping_add(u64::from(input.word())),
                Destination::Message { number } => *number = number.wrapping_add(small) & 0xff_ffff,
            },
            6 => {
                if let Destination::Memory { rkey, .. } = &mut placement.destination {
                    *rkey = [KEY, GRANT, 0][lie as usize / 16 % 3];
                }
            }
            7 => psn = if lie & 0x80 == 0 { psn.plus(small) } else { psn.minus(small) },
            8 => opcode = Opcode(opcode.0 & 0xe0 | input.byte() & 0x1f),
            9 => payload = length(input, self.setup.mtu.bytes()),
            _ => {}
        }
        let bth =
            Bth { pad: (payload.wrapping_neg() & 3) as u8, ack_req: lie & 0x20 != 0, ..Bth::new(opcode, 0x12, psn) };
        let mut headers = Headers::new(bth);
        headers.put(XrcEth { srq: SRQ.into() });
        headers.put(ImmDt { imm: 5.into() });
        headers.put(Aeth::new(if lie == 0xfa { input.byte() } else { 0x1f }, 1));
        headers.put(Ieth { rkey: 78.into() });
        let mut bytes = vec![0; frame::HEADER_LEN];
        frame::emit(&headers, &placement, &mut bytes);
        bytes.extend((0..payload).map(|at| at as u8 ^ 0x5c));
        bytes.resize(bytes.len() + usize::from(bth.pad) + weir_wire::ICRC_LEN, 0);
        if lie & 15 == 11 && lie & 0x80 != 0 {
            let at = usize::from(input.byte()) % frame::HEADER_LEN;
            bytes[at] ^= 1 << (input.byte() % 8);
        }
        let packet = frame::parse_any(&bytes).ok()?;
        // A flipped bit can make it a RoCE packet, to which other rules apply; the region is checked nevertheless.
        let sent = packet.placement.map(|placement| {
            let (opcode, payload) = (packet.headers.bth.opcode, packet.payload.len());
            Delivered { opcode, placement, payload }
        })?;
        let before = self.expected();
        let entries = self.pair.nodes[1].host.journal.len();
        let Node { qp, host, .. } = &mut self.pair.nodes[1];
        qp.handle_packet(self.pair.now, &packet, host);
        self.check_writes(entries, &sent);
        (self.expected() != before && !sent.opcode.is_response()).then_some(sent)
    }

    /// What a frame wrote is where its placement says.
    fn check_writes(&self, from: usize, sent: &Delivered) {
        let Placement { destination, offset, .. } = sent.placement;
        let begin = match destination {
            Destination::Memory { address, .. } => address,
            Destination::Message { number } if sent.opcode.is_response() => {
                BASE + (READS + number as usize * READ) as u64 + u64::from(offset)
            }
            Destination::Message { .. } => BASE + RECEIVES as u64 + u64::from(offset),
        };
        let mut next = begin;
        for entry in &self.pair.nodes[1].host.journal[from..] {
            if let Entry::Write { addr, len } = *entry {
                assert_eq!(addr, next, "written elsewhere: {sent:?}");
                next += len as u64;
            }
        }
        assert!(next == begin || next == begin + sent.payload as u64, "a part of the payload was written: {sent:?}");
    }

    fn transmit(&mut self) {
        let Node { qp, host, .. } = &mut self.pair.nodes[1];
        let mut staging = Staging::new(host.memory.clone(), 64);
        let limits = Limits { request_bytes: 1 << 16, read_bytes: 1 << 16 };
        qp.poll_transmit(self.pair.now, limits, host, &mut staging);
    }
}

/// A frame that the QP has seen.
#[derive(Clone, Copy, Debug)]
struct Delivered {
    opcode: Opcode,
    placement: Placement,
    payload: usize,
}

fn is_write(opcode: Opcode) -> bool {
    (0x06..=0x0b).contains(&(opcode.0 & 0x1f))
}
