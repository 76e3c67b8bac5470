//! Messages that wait at the holder because their receiver does not keep up. They are in one block of memory that is
//! reserved once, so that the packet path allocates nothing.
//!
//! The receivers of one user together get at most as many messages as are free: one user gets half of all at the
//! most, and always leaves some to others. A receiver that takes nothing affects its own user only.

use super::message::LONGEST;
use std::io;

/// Number of all messages: 16 MiB.
pub const MESSAGES: usize = 512;
/// No message.
const NONE: u16 = u16::MAX;

/// Memory for messages.
pub struct MessageBuffers {
    /// The messages that were ever used, with capacity for all.
    bytes: Vec<u8>,
    lens: Box<[u16; MESSAGES]>,
    /// The next message in its queue, or in the list of free ones.
    next: Box<[u16; MESSAGES]>,
    free: u16,
    free_count: usize,
}

/// Messages in order. Only the `MessageBuffers` that they belong to can free them.
pub struct Queue {
    first: u16,
    last: u16,
    /// The number of messages.
    pub count: usize,
}

impl Queue {
    /// An empty queue.
    pub const fn new() -> Self {
        Queue { first: NONE, last: NONE, count: 0 }
    }

    /// Returns whether the queue has no message.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl MessageBuffers {
    /// Error: no memory.
    pub fn new() -> io::Result<Self> {
        let next = std::array::from_fn(|at| if at + 1 < MESSAGES { at as u16 + 1 } else { NONE });
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(MESSAGES * LONGEST)?;
        Ok(MessageBuffers { bytes, lens: Box::new([0; MESSAGES]), next: Box::new(next), free: 0, free_count: MESSAGES })
    }

    /// Appends to the last message of a queue, or to a new one where that has no room: `write` gets a message and its
    /// length, and returns its new length. `taken`: the number of messages of the queue's user. Returns whether there
    /// was room.
    pub fn write(
        &mut self,
        queue: &mut Queue,
        taken: usize,
        mut write: impl FnMut(&mut [u8; LONGEST], usize) -> Option<usize>,
    ) -> bool {
        if !queue.is_empty() {
            let len = self.lens[usize::from(queue.last)].into();
            if let Some(len) = write(self.message(queue.last), len) {
                self.lens[usize::from(queue.last)] = len as u16;
                return true;
            }
        }
        if taken >= self.free_count {
            return false;
        }
        let new = self.free;
        if usize::from(new) * LONGEST == self.bytes.len() {
            // Messages that were used before come first in the list, so a new one is the next in the block.
            self.bytes.resize(self.bytes.len() + LONGEST, 0);
        }
        let Some(len) = write(self.message(new), 0) else { return false };
        self.free = std::mem::replace(&mut self.next[usize::from(new)], NONE);
        self.free_count -= 1;
        self.lens[usize::from(new)] = len as u16;
        match queue.is_empty() {
            true => queue.first = new,
            false => self.next[usize::from(queue.last)] = new,
        }
        queue.last = new;
        queue.count += 1;
        true
    }

    /// The oldest message.
    pub fn first(&self, queue: &Queue) -> Option<&[u8]> {
        let first = usize::from(queue.first);
        (!queue.is_empty()).then(|| &self.bytes[first * LONGEST..][..self.lens[first].into()])
    }

    /// Frees the oldest message.
    pub fn drop_first(&mut self, queue: &mut Queue) {
        if queue.is_empty() {
            return;
        }
        let first = queue.first;
        queue.first = std::mem::replace(&mut self.next[usize::from(first)], self.free);
        queue.count -= 1;
        self.free = first;
        self.free_count += 1;
    }

    /// Frees all messages.
    pub fn clear(&mut self, queue: &mut Queue) {
        while !queue.is_empty() {
            self.drop_first(queue);
        }
    }

    fn message(&mut self, at: u16) -> &mut [u8; LONGEST] {
        let at = usize::from(at) * LONGEST;
        (&mut self.bytes[at..at + LONGEST]).try_into().expect("as long")
    }
}

// A length fits into 16 bits, and a message's number is below NONE.
const _: () = assert!(LONGEST <= u16::MAX as usize && MESSAGES < NONE as usize);

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes one byte that fills a message.
    fn fill(buffers: &mut MessageBuffers, queue: &mut Queue, taken: usize, byte: u8) -> bool {
        buffers.write(queue, taken, |message, len| {
            (len == 0).then(|| {
                message[0] = byte;
                1
            })
        })
    }

    #[test]
    fn messages_come_out_in_order_and_are_reused() {
        let (mut buffers, mut queue) = (MessageBuffers::new().unwrap(), Queue::new());
        for round in 0..3 * MESSAGES {
            let count = 1 + round % 7;
            (0..count).for_each(|n| assert!(fill(&mut buffers, &mut queue, 0, n as u8)));
            for n in 0..count {
                assert_eq!(buffers.first(&queue), Some(&[n as u8][..]));
                buffers.drop_first(&mut queue);
            }
            assert_eq!((buffers.first(&queue), buffers.free_count), (None, MESSAGES));
        }
    }

    #[test]
    fn no_user_gets_all_messages() {
        let (mut buffers, mut queue, mut other) = (MessageBuffers::new().unwrap(), Queue::new(), Queue::new());
        let count =
            |buffers: &mut MessageBuffers, queue: &mut Queue| (0..).take_while(|n| fill(buffers, queue, *n, 0)).count();
        assert_eq!(count(&mut buffers, &mut queue), MESSAGES / 2);
        assert_eq!(count(&mut buffers, &mut other), MESSAGES / 4);
        buffers.clear(&mut queue);
        buffers.clear(&mut other);
        assert_eq!(buffers.free_count, MESSAGES);
    }

    #[test]
    fn a_message_is_filled_before_another_is_begun() {
        let (mut buffers, mut queue) = (MessageBuffers::new().unwrap(), Queue::new());
        let byte = |message: &mut [u8; LONGEST], len: usize| {
            *message.get_mut(len)? = len as u8;
            Some(len + 1)
        };
        (0..LONGEST).for_each(|_| assert!(buffers.write(&mut queue, 0, byte)));
        assert_eq!(queue.count, 1);
        assert!(buffers.write(&mut queue, 0, byte));
        assert_eq!((queue.count, buffers.first(&queue).unwrap().len()), (2, LONGEST));
    }
}
