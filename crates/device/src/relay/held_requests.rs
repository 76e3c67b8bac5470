//! Requests for connections to a port on which nothing listens at this moment, although something did shortly before.
//! A server that ends its listener after the first connection and listens again for the next one, in the same port space
//! or another, is slower than its client now and then: perftest does so with `-R`. A request that comes between waits
//! for the listener for a while, as if the network had delayed it. All others are refused at once.

use std::net::IpAddr;
use std::time::Duration;
use weir_link::Arrival;
use weir_transport::Instant;
use weir_wire::cm::Message;
use weir_wire::{ICRC_LEN, mad};

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
/// Bytes of a BTH, of a DETH, and of the datagram of a MAD.
const BTH: usize = 12;
const DETH: usize = 8;
const DATAGRAM: usize = BTH + DETH + mad::LEN + ICRC_LEN;

/// The requests that wait, and the ports that were used lately. Turns of the engine fill both lists, which never grow.
pub struct HeldRequests {
    /// When each port was used last.
    used: Vec<(u16, Instant)>,
    held: Vec<HeldRequest>,
}

/// A request that waits.
pub struct HeldRequest {
    pub service: u64,
    pub arrival: Arrival,
    pub datagram: [u8; DATAGRAM],
    since: Instant,
    next: Instant,
    wait: Duration,
}

impl HeldRequests {
    /// No requests, and room for all.
    pub fn new() -> HeldRequests {
        HeldRequests { used: Vec::with_capacity(PORTS), held: Vec::with_capacity(MOST) }
    }

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
        let Ok(datagram) = datagram.try_into() else { return false };
        if !self.used.iter().any(used) || self.held.len() == MOST && !self.make_room(arrival.from.ip()) {
            return false;
        }
        self.held.push(HeldRequest {
            service,
            arrival: *arrival,
            datagram,
            since: now,
            next: now + FIRST_WAIT,
            wait: FIRST_WAIT,
        });
        true
    }

    /// Takes a place from the sender that has the most, for one that has fewer: no sender keeps all places. The request
    /// is lost, as on a wire, and its sender will repeat it. Returns whether there is a place.
    fn make_room(&mut self, from: IpAddr) -> bool {
        let count = |of: IpAddr| self.held.iter().filter(|held| held.from() == of).count();
        let latest = self.held.iter().enumerate().max_by_key(|(_, held)| (count(held.from()), held.since));
        let Some((at, latest)) = latest else { return true };
        let fairer = count(latest.from()) > count(from) + 1;
        if fairer {
            self.held.swap_remove(at);
        }
        fairer
    }

    /// A sender has given up the request with that communication id of its own.
    pub fn give_up(&mut self, from: IpAddr, id: u32) {
        self.held.retain(|held| held.from() != from || !held.has_id(id));
    }

    /// The oldest request that is due: its listener should be looked for again.
    pub fn take_due(&mut self, now: Instant) -> Option<HeldRequest> {
        let due = self.held.iter().enumerate().filter(|(_, held)| held.next <= now);
        let (at, _) = due.min_by_key(|(_, held)| held.since)?;
        Some(self.held.swap_remove(at))
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
    fn from(&self) -> IpAddr {
        self.arrival.from.ip()
    }

    /// Whether it is a REQ with that communication id of its sender.
    fn has_id(&self, id: u32) -> bool {
        let message = Message::parse(&self.datagram[BTH + DETH..][..mad::LEN]);
        matches!(message, Ok((_, Message::Req(req))) if req.local_comm_id == id)
    }

    /// A repetition differs in its BTH, which has the PSN, and its ICRC only.
    fn is_repeated(&self, arrival: &Arrival, datagram: &[u8]) -> bool {
        let rest = BTH..DATAGRAM - ICRC_LEN;
        self.from() == arrival.from.ip() && datagram.get(rest.clone()) == Some(&self.datagram[rest])
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
    use weir_wire::cm::{Req, SidrReq};

    impl HeldRequests {
        /// The number of requests of a sender.
        fn count(&self, from: u8) -> usize {
            self.held.iter().filter(|held| held.from() == arrival(from).from.ip()).count()
        }
    }

    const TCP: u64 = 0x0106_1d2f;
    const UDP: u64 = 0x0111_1d2f;

    fn arrival(from: u8) -> Arrival {
        Arrival::new(([10, 0, 0, from], 7).into(), ROCE_PORT, 0, 0)
    }

    #[test]
    fn only_requests_to_a_port_that_was_used_lately_wait() {
        let (mut requests, start) = (HeldRequests::new(), Instant(1_000_000_000));
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
        let (mut requests, start) = (HeldRequests::new(), Instant(1_000_000_000));
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
        let (mut requests, start) = (HeldRequests::new(), Instant(1_000_000_000));
        for number in 0..200 {
            requests.note_use(TCP + number, start);
        }
        assert_eq!(requests.used.len(), PORTS);
        let held = (0..200).filter(|number| requests.hold(TCP + 199, &arrival(2), &[*number; 280], start)).count();
        assert_eq!(held, MOST);
    }

    #[test]
    fn no_sender_keeps_all_places() {
        let (mut requests, start) = (HeldRequests::new(), Instant(1_000_000_000));
        requests.note_use(TCP, start);
        let mut hold = |from, number| requests.hold(TCP, &arrival(from), &[number; DATAGRAM], start);
        assert_eq!((0..200).filter(|number| hold(2, *number)).count(), MOST, "alone it may have all");
        for from in 3..=5 {
            assert_eq!((0..200).filter(|number| hold(from, *number)).count(), MOST / (from as usize - 1));
        }
        assert!(!hold(2, 250), "it has its share");
        assert!(hold(2, 0), "its oldest still waits");
        assert_eq!(requests.held.len(), MOST);
        assert_eq!((2..=5).map(|from| requests.count(from)).collect::<Vec<_>>(), [MOST / 4; 4]);
    }

    #[test]
    fn a_request_that_its_sender_gave_up_waits_no_longer() {
        let (mut requests, start) = (HeldRequests::new(), Instant(1_000_000_000));
        requests.note_use(TCP, start);
        let datagram = |id: u32, message: fn(u32) -> Message| {
            let mut datagram = [0; DATAGRAM];
            datagram[BTH + DETH..][..mad::LEN].copy_from_slice(&message(id).emit(1, 0));
            datagram
        };
        let req = |id| Message::Req(Req { local_comm_id: id, ..Req::default() });
        let sidr_req = |id| Message::SidrReq(SidrReq { request_id: id, ..SidrReq::default() });
        for (from, datagram) in [(2, datagram(7, req)), (2, datagram(8, req)), (3, datagram(7, req))] {
            assert!(requests.hold(TCP, &arrival(from), &datagram, start));
        }
        assert!(requests.hold(TCP, &arrival(2), &datagram(7, sidr_req), start));
        requests.give_up(arrival(2).from.ip(), 7);
        assert_eq!((requests.count(2), requests.count(3)), (2, 1), "the REQ of that sender and id only");
        assert!(!requests.held.iter().any(|held| held.from() == arrival(2).from.ip() && held.has_id(7)));
    }
}
