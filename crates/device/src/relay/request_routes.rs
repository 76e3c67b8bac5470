//! To which services requests for connections were handed over. A peer that gives up before it has an answer cannot say
//! the communication id of this side: its REJ has none (IBTA 12.6.7). It goes where the request went.

use std::collections::VecDeque;
use std::net::IpAddr;

/// How many requests are remembered.
const MOST: usize = 1024;

/// The services of the latest requests, by their senders and the senders' communication ids.
#[derive(Default)]
pub struct RequestRoutes(VecDeque<(IpAddr, u32, u64)>);

impl RequestRoutes {
    /// A request with the sender's communication id was handed over to a service.
    pub fn note(&mut self, from: IpAddr, id: u32, service: u64) {
        if self.find(from, id) == Some(service) {
            return;
        }
        if self.0.len() == MOST {
            self.0.pop_front();
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

    #[test]
    fn the_latest_request_counts() {
        let [first, second] = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
        let mut routes = RequestRoutes::default();
        assert_eq!(routes.find(first, 7), None);
        for (from, service) in [(first, 1), (second, 2), (first, 3), (first, 3)] {
            routes.note(from, 7, service);
        }
        assert_eq!((routes.find(first, 7), routes.find(second, 7), routes.find(first, 8)), (Some(3), Some(2), None));
        assert_eq!(routes.0.len(), 3, "a repetition takes no place");
        (0..MOST as u32).for_each(|id| routes.note(second, id + 100, 9));
        assert_eq!((routes.0.len(), routes.find(first, 7)), (MOST, None));
    }
}
