//! Requests for connections to a port on which nothing listens at this moment, although something did shortly before.
//! A server that ends its listener after the first connection and listens again for the next one, in the same port space
//! or another, is slower than its client now and then: perftest does so with `-R`. A request that comes between waits
//! for the listener for a while, as if the network had delayed it. All others are refused at once.

use std::time::Duration;
use weir_link::Arrival;
use weir_transport::Instant;
use weir_wire::ICRC_LEN;

/// For how long a port counts as used after a request to it got to a listener.
const USED_FOR: Duration = Duration::from_secs(10);
/// How many used ports are remembered.
const PORTS: usize = 64;
/// How long a request waits at most.
const LONGEST: Duration = Duration::from_secs(1);
/// How many requests wait at most.
const MOST: usize = 64;
/// The first wait before a listener is looked for again; the wait doubles up to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(1);
const LONGEST_WAIT: Duration = Duration::from_millis(16);
/// Bytes of a BTH.
const BTH: usize = 12;

/// The requests that wait, and the ports that were used lately.
#[derive(Default)]
pub struct HeldRequests {
    /// When each port was used last.
    used: Vec<(u16, Instant)>,
    held: Vec<HeldRequest>,
}

/// A request that waits.
pub struct HeldRequest {
    pub service: u64,
    pub arrival: Arrival,
    pub datagram: Vec<u8>,
    since: Instant,
    next: Instant,
    wait: Duration,
}

impl HeldRequests {
    /// A request has got to a listener.
    pub fn note_use(&mut self, service: u64, now: Instant) {
        let port = port(service);
        self.used.retain(|(used, last)| *used != port && now - *last < USED_FOR);
        if self.used.len() == PORTS {
            self.used.remove(0);
        }
        self.used.push((port, now));
    }

    /// Nothing listens for a request. Returns whether it waits for a listener: if not, it must be refused. A repetition
    /// of a request that waits already is dropped.
    pub fn hold(&mut self, service: u64, arrival: &Arrival, datagram: &[u8], now: Instant) -> bool {
        let same = |held: &HeldRequest| held.service == service && held.is_repeated(arrival, datagram);
        if self.held.iter().any(same) {
            return true;
        }
        let used = |(used, last): &(u16, Instant)| *used == port(service) && now - *last < USED_FOR;
        if self.held.len() == MOST || !self.used.iter().any(used) {
            return false;
        }
        self.held.push(HeldRequest {
            service,
            arrival: *arrival,
            datagram: datagram.to_vec(),
            since: now,
            next: now + FIRST_WAIT,
            wait: FIRST_WAIT,
        });
        true
    }

    /// A request that is due: its listener should be looked for again.
    pub fn take_due(&mut self, now: Instant) -> Option<HeldRequest> {
        let at = self.held.iter().position(|held| held.next <= now)?;
        Some(self.held.remove(at))
    }

    /// There is no listener yet. Returns the request if it has waited for long enough.
    pub fn put_back(&mut self, mut held: HeldRequest, now: Instant) -> Option<HeldRequest> {
        if now - held.since >= LONGEST {
            return Some(held);
        }
        held.wait = (2 * held.wait).min(LONGEST_WAIT);
        held.next = now + held.wait;
        self.held.push(held);
        None
    }

    /// When the next request is due.
    pub fn next(&self) -> Option<Instant> {
        self.held.iter().map(|held| held.next).min()
    }
}

impl HeldRequest {
    /// A repetition differs in its BTH, which has the PSN, and its ICRC only.
    fn is_repeated(&self, arrival: &Arrival, datagram: &[u8]) -> bool {
        let rest = |bytes: &[u8]| BTH..bytes.len().saturating_sub(ICRC_LEN).max(BTH);
        self.arrival.from.ip() == arrival.from.ip()
            && self.datagram.get(rest(&self.datagram)) == datagram.get(rest(datagram))
    }
}

/// The port in the service id of an IP port space (IBTA A11.2).
fn port(service: u64) -> u16 {
    service as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_wire::ROCE_PORT;

    const TCP: u64 = 0x0106_1d2f;
    const UDP: u64 = 0x0111_1d2f;

    fn arrival(from: u8) -> Arrival {
        Arrival::new(([10, 0, 0, from], 7).into(), ROCE_PORT, 0, 0)
    }

    #[test]
    fn only_requests_to_a_port_that_was_used_lately_wait() {
        let (mut requests, start) = (HeldRequests::default(), Instant(1_000_000_000));
        assert!(!requests.hold(TCP, &arrival(2), &[1; 280], start), "nothing has listened there");
        requests.note_use(TCP, start);
        let late = start + USED_FOR;
        assert!(!requests.hold(TCP, &arrival(2), &[1; 280], late));
        let soon = start + USED_FOR / 2;
        assert!(!requests.hold(TCP + 1, &arrival(2), &[1; 280], soon), "another port");
        assert!(requests.hold(TCP, &arrival(2), &[1; 280], soon));
        assert!(requests.hold(UDP, &arrival(2), &[1; 280], soon), "the port in another port space");
        assert!(requests.hold(TCP, &arrival(2), &[1; 280], soon), "a repetition");
        assert_eq!(requests.held.len(), 2);
        assert!(requests.hold(TCP, &arrival(3), &[1; 280], soon), "another sender");
        assert_eq!(requests.held.len(), 3);
    }

    #[test]
    fn a_request_waits_for_a_second() {
        let (mut requests, start) = (HeldRequests::default(), Instant(1_000_000_000));
        requests.note_use(TCP, start);
        assert!(requests.hold(TCP, &arrival(2), &[1; 280], start));
        assert!(requests.take_due(start).is_none());
        let (mut now, mut looks) = (start, 0);
        loop {
            now = now.max(requests.next().unwrap());
            let held = requests.take_due(now).unwrap();
            looks += 1;
            if let Some(over) = requests.put_back(held, now) {
                assert_eq!((over.service, over.datagram.len()), (TCP, 280));
                break;
            }
        }
        assert!(now - start >= LONGEST && now - start < LONGEST + LONGEST_WAIT);
        assert!(looks < 100 && requests.next().is_none());
    }

    #[test]
    fn requests_and_ports_are_limited() {
        let (mut requests, start) = (HeldRequests::default(), Instant(1_000_000_000));
        for number in 0..200 {
            requests.note_use(TCP + number, start);
        }
        assert_eq!(requests.used.len(), PORTS);
        let held = (0..200).filter(|number| requests.hold(TCP + 199, &arrival(2), &[*number; 280], start)).count();
        assert_eq!(held, MOST);
    }
}
