//! To which services requests for connections were handed over. A peer that gives up before it has an answer cannot say
//! the communication id of this side: its REJ has none (IBTA 12.6.7). It goes where the request went.

use std::collections::VecDeque;
use std::net::IpAddr;

/// How many requests are remembered, and how many of one sender.
const MOST: usize = 1024;
const SHARE: usize = 256;

/// The services of the latest requests, by their senders and the senders' communication ids. Turns of the engine fill
/// the list, which never grows.
pub struct RequestRoutes(VecDeque<(IpAddr, u32, u64)>);

impl RequestRoutes {
    /// No requests, and room for all.
    pub fn new() -> RequestRoutes {
        RequestRoutes(VecDeque::with_capacity(MOST))
    }

    /// A request with the sender's communication id was handed over to a service.
    pub fn note(&mut self, from: IpAddr, id: u32, service: u64) {
        let mut of_sender = self.0.iter().enumerate().filter(|(_, (sender, ..))| *sender == from);
        let oldest = of_sender.clone().next().map(|(at, _)| at);
        let full_share = of_sender.clone().count() == SHARE;
        let same = of_sender.find(|(_, (_, sent, _))| *sent == id).map(|(at, _)| at);
        // An earlier one with that id, or the sender's oldest, or the oldest of all makes room.
        let instead = same.or(oldest.filter(|_| full_share)).or((self.0.len() == MOST).then_some(0));
        if let Some(at) = instead {
            self.0.remove(at);
        }
        self.0.push_back((from, id, service));
    }

    /// The service of the latest request with that communication id of its sender.
    pub fn find(&self, from: IpAddr, id: u32) -> Option<u64> {
        let latest = self.0.iter().rev().find(|(sender, sent, _)| (*sender, *sent) == (from, id));
        latest.map(|(_, _, service)| *service)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts<const N: usize>() -> [IpAddr; N] {
        std::array::from_fn(|host| IpAddr::from([10, 0, 0, host as u8]))
    }

    #[test]
    fn the_latest_request_counts() {
        let [first, second] = hosts();
        let mut routes = RequestRoutes::new();
        assert_eq!(routes.find(first, 7), None);
        for (from, service) in [(first, 1), (second, 2), (first, 3), (first, 3)] {
            routes.note(from, 7, service);
        }
        assert_eq!((routes.find(first, 7), routes.find(second, 7), routes.find(first, 8)), (Some(3), Some(2), None));
        assert_eq!(routes.0.len(), 2, "a repetition takes no place");
    }

    #[test]
    fn a_sender_takes_no_more_than_its_share() {
        let [first, second, others @ ..] = hosts::<6>();
        let mut routes = RequestRoutes::new();
        let capacity = routes.0.capacity();
        (0..2).for_each(|id| routes.note(first, id, 1));
        (0..2 * MOST as u32).for_each(|id| routes.note(second, id, 9));
        assert_eq!((routes.find(first, 0), routes.0.len()), (Some(1), 2 + SHARE));
        routes.note(first, 0, 1);
        // All places are taken, and one more.
        let free = MOST - routes.0.len();
        for number in 0..=free {
            routes.note(others[number / SHARE], number as u32, 9);
        }
        assert_eq!((routes.0.len(), routes.0.capacity()), (MOST, capacity));
        assert_eq!((routes.find(first, 1), routes.find(first, 0)), (None, Some(1)), "a repetition is the latest again");
    }
}
