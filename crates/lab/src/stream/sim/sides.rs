//! What the sender's and the receiver's program do with completions.

use anyhow::{Result, ensure};
use weir_sim::{QpId, Simulation};
use weir_transport::{Completion, Data, Instant, Queue, RecvWr, SendFlags, SendOp, SendWr, Sge, Status};

/// A side's work.
pub enum Does {
    Send(Sender),
    Receive(Receiver),
}

/// The memory of messages: message n has area n mod `number`.
#[derive(Default)]
pub struct Areas {
    pub first: u64,
    pub stride: u64,
    pub number: u64,
}

/// The sender: a stream of WRITEs with immediate data.
#[derive(Default)]
pub struct Sender {
    pub from: Areas,
    pub lkey: u32,
    pub to: Areas,
    pub rkey: u32,
    pub size: u64,
    pub outstanding: u64,
    pub depth: u64,
    /// Every so many work requests are signalled, and the last.
    pub signal: u64,
    /// Messages before the measurement, and in it.
    pub warm: u64,
    pub messages: u64,
    /// Acknowledgements in the measurement.
    pub acks: u64,
    /// When the measurement began and ended.
    pub measured: Option<Instant>,
    pub ended: Option<Instant>,
    /// It has just begun; the caller clears this.
    pub just_measured: bool,
    pub counts: Counts,
}

/// The receiver: it posts receives again, and acknowledges messages.
#[derive(Default)]
pub struct Receiver {
    pub ack_every: u64,
    pub warm: u64,
    pub messages: u64,
    pub received: u64,
    pub counts: Counts,
}

/// What a side counts.
#[derive(Default)]
pub struct Counts {
    /// Work requests, and those of them that a signalled completion retired.
    posted: u64,
    retired: u64,
    /// Messages that were acknowledged.
    acked: u64,
    /// Receives to post again.
    owed: u64,
}

/// The send queue of the receiver, and how many ACKs have one signal.
pub const ACK_DEPTH: u64 = 64;
const ACK_SIGNAL: u64 = 32;

impl Does {
    /// Takes a completion.
    pub fn take(&mut self, sim: &Simulation, queue: Queue, completion: &Completion) -> Result<()> {
        ensure!(completion.status == Status::Success, "a work request failed: {:?}", completion.status);
        match self {
            Does::Send(sender) => sender.take(sim.now(), queue, completion),
            Does::Receive(receiver) => receiver.take(queue, completion),
        }
        Ok(())
    }

    /// Posts a work request, if there is one to post.
    pub fn act(&mut self, sim: &mut Simulation, qp: QpId) -> Result<bool> {
        let owed = match self {
            Does::Send(sender) => &mut sender.counts.owed,
            Does::Receive(receiver) => &mut receiver.counts.owed,
        };
        // Before the acknowledgement that lets a message come for it.
        if *owed > 0 {
            *owed -= 1;
            receive(sim, qp)?;
            return Ok(true);
        }
        match self {
            Does::Send(sender) => sender.act(sim, qp),
            Does::Receive(receiver) => receiver.act(sim, qp),
        }
    }
}

impl Sender {
    fn take(&mut self, now: Instant, queue: Queue, completion: &Completion) {
        match queue {
            Queue::Send => self.counts.retired = completion.wr_id + 1,
            _ => {
                self.counts.acked = completion.imm.into();
                self.acks += u64::from(self.measured.is_some());
                self.counts.owed += 1;
            }
        }
        let all = self.warm + self.messages;
        if self.counts.acked == all && self.counts.retired == all {
            self.ended.get_or_insert(now);
        }
    }

    fn act(&mut self, sim: &mut Simulation, qp: QpId) -> Result<bool> {
        let (n, all) = (self.counts.posted, self.warm + self.messages);
        if n == self.warm && self.measured.is_none() {
            // The measurement begins when all before it has ended.
            if self.counts.acked < n || self.counts.retired < n {
                return Ok(false);
            }
            self.measured = Some(sim.now());
            self.just_measured = true;
        }
        if n == all || n - self.counts.acked >= self.outstanding || n - self.counts.retired >= self.depth {
            return Ok(false);
        }
        let signalled = (n + 1).is_multiple_of(self.signal) || n + 1 == self.warm || n + 1 == all;
        let flags = if signalled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let op = SendOp::WriteImm { remote_addr: self.to.of(n), rkey: self.rkey, imm: n as u32 };
        let data = [Sge { addr: self.from.of(n), length: self.size as u32, lkey: self.lkey }];
        sim.post_send(qp, &SendWr { wr_id: n, op, flags, data: Data::Gather(&data) })?;
        self.counts.posted += 1;
        Ok(true)
    }
}

impl Receiver {
    fn take(&mut self, queue: Queue, completion: &Completion) {
        match queue {
            Queue::Send => self.counts.retired = completion.wr_id + 1,
            _ => {
                self.received += 1;
                self.counts.owed += 1;
            }
        }
    }

    fn act(&mut self, sim: &mut Simulation, qp: QpId) -> Result<bool> {
        let open = self.received - self.counts.acked;
        let last = self.received == self.warm || self.received == self.warm + self.messages;
        let due = open >= self.ack_every || (open > 0 && last);
        if !due || self.counts.posted - self.counts.retired >= ACK_DEPTH {
            return Ok(false);
        }
        let signalled = (self.counts.posted + 1).is_multiple_of(ACK_SIGNAL);
        let flags = if signalled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let op = SendOp::SendImm { imm: self.received as u32 };
        sim.post_send(qp, &SendWr { wr_id: self.counts.posted, op, flags, data: Data::Gather(&[]) })?;
        self.counts.posted += 1;
        self.counts.acked = self.received;
        Ok(true)
    }
}

impl Areas {
    /// The address of a message.
    fn of(&self, n: u64) -> u64 {
        self.first + n % self.number * self.stride
    }
}

/// Posts a receive without memory.
pub fn receive(sim: &mut Simulation, qp: QpId) -> Result<()> {
    Ok(sim.post_recv(qp, &RecvWr { wr_id: 0, sges: &[] })?)
}
