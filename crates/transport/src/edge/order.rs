//! Packets that have arrived, and when each may be performed.

use std::collections::{BTreeSet, VecDeque};
use weir_wire::edge::{Order, Seq};

/// Holds arrived packets of type `T` until their [`Order`] allows them, and knows which have been performed.
#[derive(Debug)]
pub struct Sequencer<T> {
    /// All packets before it have been performed; the low 32 bits are its sequence number.
    performed: u64,
    /// Those of the packets from `performed` on, by the low bits of their number.
    slots: Box<[Slot<T>]>,
    /// Packets that may be performed, in the order in which they became so.
    ready: VecDeque<u64>,
    /// The packet that is waited for, and the packet that waits.
    after_one: BTreeSet<(u64, u64)>,
    after_all: BTreeSet<(u64, u64)>,
}

#[derive(Debug, Default)]
enum Slot<T> {
    #[default]
    Absent,
    Held(T),
    Performed,
}

/// Whether a packet's order is one that its sender can mean: an earlier packet.
pub fn is_sound(seq: Seq, order: Order) -> bool {
    match order {
        Order::Any => true,
        Order::AfterOne(other) | Order::AfterAll(other) => other.before(seq),
    }
}

impl<T> Sequencer<T> {
    /// For a window of so many packets, the first of which is `first`.
    pub fn new(window: u32, first: Seq) -> Sequencer<T> {
        Sequencer {
            // Not near 0, because numbers of long ago are looked at, too.
            performed: 1 << 32 | u64::from(first.0),
            slots: (0..window.next_power_of_two()).map(|_| Slot::Absent).collect(),
            ready: VecDeque::new(),
            after_one: BTreeSet::new(),
            after_all: BTreeSet::new(),
        }
    }

    /// All packets before this one have been performed.
    pub fn performed(&self) -> Seq {
        Seq(self.performed as u32)
    }

    /// Takes a packet that arrives for the first time, within the window, with a sound order. `packet` makes what is kept of
    /// it, and gets whether it has to wait for others.
    pub fn arrive(&mut self, seq: Seq, order: Order, packet: impl FnOnce(bool) -> T) {
        let at = self.position(seq);
        debug_assert!(at >= self.performed && at - self.performed < self.slots.len() as u64);
        let waits = match order {
            Order::Any => false,
            Order::AfterOne(other) => !self.is_performed(other),
            Order::AfterAll(other) => self.position(other) >= self.performed,
        };
        *self.slot(at) = Slot::Held(packet(waits));
        match order {
            Order::AfterOne(other) if waits => _ = self.after_one.insert((self.position(other), at)),
            Order::AfterAll(other) if waits => _ = self.after_all.insert((self.position(other), at)),
            _ => self.ready.push_back(at),
        }
    }

    /// The next packet that may be performed. The caller does so before it calls again.
    pub fn next(&mut self) -> Option<(Seq, T)> {
        let at = self.ready.pop_front()?;
        let Slot::Held(packet) = std::mem::replace(self.slot(at), Slot::Performed) else {
            unreachable!("a packet is ready once, and held until then")
        };
        while let Some(&(other, waiting)) = self.after_one.range((at, 0)..=(at, u64::MAX)).next() {
            self.after_one.remove(&(other, waiting));
            self.ready.push_back(waiting);
        }
        while matches!(self.slot(self.performed), Slot::Performed) {
            *self.slot(self.performed) = Slot::Absent;
            self.performed += 1;
        }
        while let Some(&(other, waiting)) = self.after_all.first().filter(|(other, _)| *other < self.performed) {
            self.after_all.remove(&(other, waiting));
            self.ready.push_back(waiting);
        }
        Some((Seq(at as u32), packet))
    }

    fn is_performed(&mut self, seq: Seq) -> bool {
        let at = self.position(seq);
        at < self.performed || matches!(self.slot(at), Slot::Performed)
    }

    /// The number in 64 bits.
    fn position(&self, seq: Seq) -> u64 {
        self.performed.wrapping_add_signed(i64::from(seq.since(self.performed())))
    }

    fn slot(&mut self, at: u64) -> &mut Slot<T> {
        let mask = self.slots.len() as u64 - 1;
        &mut self.slots[(at & mask) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Seq = Seq(u32::MAX - 2);

    fn at(n: u32) -> Seq {
        FIRST.plus(n)
    }

    /// Performs all that may be; returns the packets.
    fn perform(sequencer: &mut Sequencer<u32>) -> Vec<u32> {
        let mut all = vec![];
        while let Some((_, packet)) = sequencer.next() {
            all.push(packet);
        }
        all
    }

    #[test]
    fn packets_without_an_order_are_performed_as_they_come() {
        let mut sequencer = Sequencer::new(8, FIRST);
        for n in [5, 1, 7] {
            sequencer.arrive(at(n), Order::Any, |_| n);
        }
        assert_eq!(perform(&mut sequencer), [5, 1, 7]);
        assert_eq!(sequencer.performed(), FIRST);
        sequencer.arrive(FIRST, Order::Any, |_| 0);
        assert_eq!(perform(&mut sequencer), [0]);
        assert_eq!(sequencer.performed(), at(2));
    }

    #[test]
    fn a_packet_waits_for_another() {
        let mut sequencer = Sequencer::new(8, FIRST);
        sequencer.arrive(at(4), Order::AfterOne(at(3)), |waits| {
            assert!(waits);
            4
        });
        sequencer.arrive(at(5), Order::AfterOne(at(3)), |_| 5);
        sequencer.arrive(at(6), Order::AfterOne(at(5)), |_| 6);
        assert_eq!(perform(&mut sequencer), [0; 0]);
        sequencer.arrive(at(3), Order::Any, |_| 3);
        assert_eq!(perform(&mut sequencer), [3, 4, 5, 6]);
        sequencer.arrive(at(7), Order::AfterOne(at(4)), |waits| {
            assert!(!waits);
            7
        });
        assert_eq!(perform(&mut sequencer), [7], "for one that has been performed it does not wait");
        sequencer.arrive(at(0), Order::AfterOne(Seq(FIRST.0 - 1)), |_| 0);
        assert_eq!(perform(&mut sequencer), [0], "nor for one of long ago");
    }

    #[test]
    fn a_packet_waits_for_all_before_another() {
        let mut sequencer = Sequencer::new(8, FIRST);
        sequencer.arrive(at(2), Order::AfterAll(at(1)), |_| 2);
        sequencer.arrive(at(4), Order::AfterAll(at(3)), |_| 4);
        sequencer.arrive(at(1), Order::Any, |_| 1);
        assert_eq!(perform(&mut sequencer), [1]);
        sequencer.arrive(at(3), Order::Any, |_| 3);
        sequencer.arrive(at(0), Order::Any, |_| 0);
        assert_eq!(perform(&mut sequencer), [3, 0, 2, 4]);
        assert_eq!(sequencer.performed(), at(5));
    }

    #[test]
    fn an_order_speaks_of_an_earlier_packet() {
        assert!(is_sound(Seq(5), Order::AfterOne(Seq(4))) && is_sound(Seq(0), Order::AfterAll(Seq(u32::MAX))));
        assert!(!is_sound(Seq(5), Order::AfterOne(Seq(5))) && !is_sound(Seq(5), Order::AfterAll(Seq(6))));
    }
}
