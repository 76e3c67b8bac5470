//! The events of a file that the program has not taken yet.

use crate::abi::{self, ConnectionParameters, DatagramParameters};
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// An event.
pub struct Queued {
    /// The id that it is about; of a request, the listener.
    pub id: u32,
    /// The multicast group that it is about.
    pub group: Option<u32>,
    /// The new id that a request has made.
    pub request: Option<u32>,
    pub response: abi::Event,
}

/// What makes a file readable.
pub trait Signal: Send {
    /// There are `count` events now.
    fn show(&mut self, count: usize);
    /// The program has written a command to this descriptor of the file.
    fn used_by(&mut self, _descriptor: i32) {}
}

/// The events of one file.
pub struct Queue {
    events: VecDeque<Queued>,
    signal: Box<dyn Signal>,
}

impl Queue {
    /// No events yet.
    pub fn new(signal: Box<dyn Signal>) -> Queue {
        Queue { events: VecDeque::new(), signal }
    }

    /// Adds an event.
    pub fn push(&mut self, event: Queued) {
        self.events.push_back(event);
        self.signal.show(self.events.len());
    }

    /// The program has written a command to this descriptor of the file.
    pub fn used_by(&mut self, descriptor: i32) {
        self.signal.used_by(descriptor);
    }

    /// Takes the oldest event.
    pub fn pop(&mut self) -> Option<Queued> {
        let event = self.events.pop_front();
        self.signal.show(self.events.len());
        event
    }

    /// Takes the events that fit.
    pub fn take(&mut self, fits: impl Fn(&Queued) -> bool) -> Vec<Queued> {
        let (taken, kept): (VecDeque<_>, VecDeque<_>) = self.events.drain(..).partition(fits);
        self.events = kept;
        self.signal.show(self.events.len());
        taken.into()
    }
}

/// The parameters of an event, in the form that the ABI has for the kind of QP.
pub enum Parameters {
    None,
    Connection(ConnectionParameters),
    Datagram(DatagramParameters),
    /// A number of the program.
    Number([u8; 8]),
}

impl Parameters {
    /// The bytes in the event.
    pub fn bytes(&self) -> [u8; size_of::<DatagramParameters>()] {
        let mut bytes = [0; size_of::<DatagramParameters>()];
        let own = match self {
            Parameters::None => &[][..],
            Parameters::Connection(parameters) => parameters.as_bytes(),
            Parameters::Datagram(parameters) => parameters.as_bytes(),
            Parameters::Number(number) => number,
        };
        bytes[..own.len()].copy_from_slice(own);
        bytes
    }
}

/// Private data as the ABI has it, with its length.
pub fn private(data: &[u8]) -> ([u8; abi::PRIVATE_DATA], u8) {
    let mut bytes = [0; abi::PRIVATE_DATA];
    let len = data.len().min(usize::from(u8::MAX));
    bytes[..len].copy_from_slice(&data[..len]);
    (bytes, len as u8)
}
