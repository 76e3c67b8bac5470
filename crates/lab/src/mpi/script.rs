//! What a process does: a list of operations, repeated.

use std::time::Duration;

/// Number of a buffer of the process.
pub type BufferId = usize;

/// An operation of a process. `req` is a number by which the process waits for it; several may share one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    Isend {
        to: usize,
        tag: u32,
        buffer: BufferId,
        len: u64,
        req: u8,
    },
    Irecv {
        from: usize,
        tag: u32,
        buffer: BufferId,
        len: u64,
        req: u8,
    },
    /// Waits for all operations with this number.
    Wait(u8),
    /// Waits for all operations.
    WaitAll,
    /// The process does not call for so long.
    Compute(Duration),
    /// Asks for the window of a process, and waits until it is granted.
    Lock(usize),
    /// Waits for all operations, and gives the window back.
    Unlock(usize),
    /// Writes to the window of a process.
    Put {
        to: usize,
        buffer: BufferId,
        at: u64,
        len: u64,
    },
    /// Reads from the window of a process.
    Get {
        from: usize,
        buffer: BufferId,
        at: u64,
        len: u64,
    },
    /// Remembers the time.
    Mark,
}

/// A process.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// Lengths of its buffers.
    pub buffers: Vec<u64>,
    /// The buffer that its peers may read and write.
    pub window: Option<BufferId>,
    /// What it does so often.
    pub body: Vec<Op>,
    pub times: u32,
    /// What it does afterwards.
    pub last: Vec<Op>,
}

/// Waits for sends of a blocking call have this number.
const SEND: u8 = 250;
/// The same for receives.
const RECEIVE: u8 = 251;

impl Script {
    /// Adds a buffer.
    pub fn buffer(&mut self, len: u64) -> BufferId {
        self.buffers.push(len);
        self.buffers.len() - 1
    }

    /// Adds a send that returns when the buffer may be used again.
    pub fn send(&mut self, to: usize, tag: u32, buffer: BufferId, len: u64) {
        self.body.extend([Op::Isend { to, tag, buffer, len, req: SEND }, Op::Wait(SEND)]);
    }

    /// Adds a receive that returns when the message is there.
    pub fn receive(&mut self, from: usize, tag: u32, buffer: BufferId, len: u64) {
        self.body.extend([Op::Irecv { from, tag, buffer, len, req: RECEIVE }, Op::Wait(RECEIVE)]);
    }

    /// The operation number `at` of all; `None`: there are no more.
    pub fn op(&self, at: usize) -> Option<Op> {
        let repeated = self.body.len() * self.times as usize;
        if at < repeated { Some(self.body[at % self.body.len()]) } else { self.last.get(at - repeated).copied() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_is_repeated_and_the_rest_is_not() {
        let (body, last) = (vec![Op::Mark, Op::WaitAll], vec![Op::Lock(1)]);
        let script = Script { body, times: 2, last, ..Script::default() };
        let all: Vec<Op> = (0..).map_while(|at| script.op(at)).collect();
        assert_eq!(all, [Op::Mark, Op::WaitAll, Op::Mark, Op::WaitAll, Op::Lock(1)]);
    }
}
