//! All connections of a process, found by the process's ID and by those of the peer, and their deadlines.

use crate::connection::{Connection, Remote};
use crate::{Address, Config, Error};
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use weir_transport::Instant;

/// An ID or a QPN of a peer is unique in its adapter. The address is part of the key, so that a peer cannot speak for
/// another one.
type RemoteKey = (IpAddr, u64, u32);

pub(crate) struct Table {
    entries: HashMap<u32, Entry>,
    by_comm_id: HashMap<RemoteKey, u32>,
    by_qpn: HashMap<RemoteKey, u32>,
    /// By the route and the request ID of a SIDR_REQ.
    by_request: HashMap<(Address, u32), u32>,
    deadlines: BTreeSet<(Instant, u32)>,
    ids: Ids,
    half_open: HalfOpen,
}

struct Entry {
    connection: Connection,
    deadline: Option<Instant>,
    half_open: bool,
}

/// The order in which communication IDs are given: no ID comes again before all others were used. A peer that sees some
/// IDs cannot easily tell those of others.
struct Ids {
    prefix: u32,
    bits: u32,
    keys: [u32; 3],
    next: u32,
}

impl Ids {
    fn new(config: &Config) -> Ids {
        let mut state = config.seed;
        let keys = std::array::from_fn(|_| {
            // The constant of a linear congruential generator with 64 bits; its upper bits are the good ones.
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 32) as u32
        });
        let bits = config.id_bits.min(32);
        Ids { prefix: config.id_prefix & !mask(bits), bits, keys, next: 0 }
    }

    /// The next ID: every step maps the numbers of that many bits onto themselves.
    fn next(&mut self) -> u32 {
        let mut number = self.next;
        self.next = self.next.wrapping_add(1);
        for key in self.keys {
            number = (number ^ key).wrapping_mul(key | 1) & mask(self.bits);
            number ^= number >> (self.bits / 2).max(1);
        }
        self.prefix | number
    }
}

fn mask(bits: u32) -> u32 {
    u32::MAX.checked_shr(32 - bits).unwrap_or(0)
}

/// Requests that the caller has not decided about.
struct HalfOpen {
    limit: usize,
    limit_per_peer: usize,
    count: usize,
    of_peer: HashMap<IpAddr, usize>,
}

impl Table {
    pub fn new(config: &Config) -> Table {
        Table {
            entries: HashMap::new(),
            by_comm_id: HashMap::new(),
            by_qpn: HashMap::new(),
            by_request: HashMap::new(),
            deadlines: BTreeSet::new(),
            ids: Ids::new(config),
            half_open: HalfOpen {
                limit: config.max_half_open,
                limit_per_peer: config.max_half_open_per_peer,
                count: 0,
                of_peer: HashMap::new(),
            },
        }
    }

    /// How many there are, with those in timewait.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Gives the connection an ID.
    pub fn insert(&mut self, connection: Connection) -> Result<u32, Error> {
        // ID 0 is none in some messages. The eighth that stays free makes a free ID near.
        if self.entries.len() as u64 >= (u64::from(mask(self.ids.bits)) + 1) * 7 / 8 {
            return Err(Error::NoIds);
        }
        loop {
            let id = self.ids.next();
            if id != 0 && !self.entries.contains_key(&id) {
                self.entries.insert(id, Entry { connection, deadline: None, half_open: false });
                return Ok(id);
            }
        }
    }

    /// Inserts the connection that a peer asks for. None if the peer, or all peers together, have asked for as many as
    /// they may.
    pub fn insert_half_open(&mut self, connection: Connection) -> Option<u32> {
        let peer = connection.address.remote;
        let HalfOpen { limit, limit_per_peer, count, ref of_peer } = self.half_open;
        if count >= limit || of_peer.get(&peer).is_some_and(|count| *count >= limit_per_peer) {
            return None;
        }
        let id = self.insert(connection).ok()?;
        self.entry(id).half_open = true;
        self.half_open.count += 1;
        *self.half_open.of_peer.entry(peer).or_default() += 1;
        Some(id)
    }

    /// The connection does not count as half-open any more.
    pub fn opened(&mut self, id: u32) {
        let entry = self.entry(id);
        if !std::mem::take(&mut entry.half_open) {
            return;
        }
        let peer = entry.connection.address.remote;
        self.half_open.count -= 1;
        if let Some(count) = self.half_open.of_peer.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                self.half_open.of_peer.remove(&peer);
            }
        }
    }

    pub fn get(&self, id: u32) -> Option<&Connection> {
        self.entries.get(&id).map(|entry| &entry.connection)
    }

    pub fn get_mut(&mut self, id: u32) -> Option<&mut Connection> {
        self.entries.get_mut(&id).map(|entry| &mut entry.connection)
    }

    /// The connection of an ID that the caller has just found.
    pub fn at(&mut self, id: u32) -> &mut Connection {
        &mut self.entry(id).connection
    }

    fn entry(&mut self, id: u32) -> &mut Entry {
        self.entries.get_mut(&id).expect("the ID is that of a connection")
    }

    /// The connection of that ID, if it is one with the sender of a MAD.
    pub fn with_peer(&mut self, id: u32, from: &Address) -> Option<&mut Connection> {
        self.get_mut(id).filter(|connection| connection.address == *from)
    }

    pub fn remove(&mut self, id: u32) {
        self.release_remote(id);
        self.set_deadline(id, None);
        self.opened(id);
        self.entries.remove(&id);
    }

    /// The connection that the peer knows by that communication ID.
    pub fn of_comm_id(&self, peer: IpAddr, ca_guid: u64, comm_id: u32) -> Option<u32> {
        self.by_comm_id.get(&(peer, ca_guid, comm_id)).copied()
    }

    /// The connection of that QP of the peer.
    pub fn of_qpn(&self, peer: IpAddr, ca_guid: u64, qpn: u32) -> Option<u32> {
        self.by_qpn.get(&(peer, ca_guid, qpn)).copied()
    }

    /// The SIDR_REQ of that ID.
    pub fn of_request(&self, from: &Address, request_id: u32) -> Option<u32> {
        self.by_request.get(&(*from, request_id)).copied()
    }

    /// The connection takes the communication ID and the QP of its peer. Both must be free.
    pub fn take_remote(&mut self, id: u32, remote: Remote) {
        let connection = self.at(id);
        connection.remote = Some(remote);
        let peer = connection.address.remote;
        self.by_comm_id.insert((peer, remote.ca_guid, remote.comm_id), id);
        self.by_qpn.insert((peer, remote.ca_guid, remote.qpn), id);
    }

    /// The entry takes the request ID of its SIDR_REQ. It must be free.
    pub fn take_request(&mut self, id: u32, request_id: u32) {
        let connection = self.at(id);
        connection.remote = Some(Remote { comm_id: request_id, ca_guid: 0, qpn: 0 });
        let address = connection.address;
        self.by_request.insert((address, request_id), id);
    }

    /// Other connections can have the communication ID, QP or request ID of the peer.
    pub fn release_remote(&mut self, id: u32) {
        let connection = self.at(id);
        let Some(remote) = connection.remote else { return };
        let address = connection.address;
        for (map, number) in [(&mut self.by_comm_id, remote.comm_id), (&mut self.by_qpn, remote.qpn)] {
            let key = (address.remote, remote.ca_guid, number);
            if map.get(&key) == Some(&id) {
                map.remove(&key);
            }
        }
        if self.by_request.get(&(address, remote.comm_id)) == Some(&id) {
            self.by_request.remove(&(address, remote.comm_id));
        }
    }

    pub fn deadline(&self, id: u32) -> Option<Instant> {
        self.entries.get(&id)?.deadline
    }

    pub fn set_deadline(&mut self, id: u32, deadline: Option<Instant>) {
        let before = std::mem::replace(&mut self.entry(id).deadline, deadline);
        if let Some(before) = before {
            self.deadlines.remove(&(before, id));
        }
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, id));
        }
    }

    pub fn first_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// All connections.
    pub fn connections(&self) -> impl Iterator<Item = (u32, &Connection)> {
        self.entries.iter().map(|(id, entry)| (*id, &entry.connection))
    }

    /// Panics unless every index, deadline and counter is that of an entry, and every entry's is there.
    #[cfg(feature = "testing")]
    pub fn check(&self) {
        for (map, number) in [(&self.by_comm_id, (|r| r.comm_id) as fn(Remote) -> u32), (&self.by_qpn, |r| r.qpn)] {
            for ((peer, guid, key), id) in map {
                let connection = &self.entries[id].connection;
                let remote = connection.remote.expect("an indexed connection knows its peer");
                assert_eq!((connection.address.remote, remote.ca_guid, number(remote)), (*peer, *guid, *key));
            }
        }
        for ((address, request), id) in &self.by_request {
            let resolution = &self.entries[id].connection;
            assert_eq!((resolution.address, resolution.remote_comm_id()), (*address, *request));
        }
        for (deadline, id) in &self.deadlines {
            assert_eq!(self.entries[id].deadline, Some(*deadline));
        }
        let count = |has: fn(&Entry) -> bool| self.entries.values().filter(|entry| has(entry)).count();
        assert_eq!(self.deadlines.len(), count(|entry| entry.deadline.is_some()));
        assert_eq!(self.half_open.count, count(|entry| entry.half_open));
        assert_eq!(self.half_open.count, self.half_open.of_peer.values().sum());
        assert!(self.half_open.count <= self.half_open.limit);
        let mut waiting = self.entries.values().filter(|entry| entry.connection.forgotten);
        assert!(waiting.all(|entry| entry.deadline.is_some()), "a forgotten connection ends by itself");
    }

    /// A connection with a deadline that is reached; it has no deadline any more.
    pub fn take_expired(&mut self, now: Instant) -> Option<u32> {
        let (deadline, id) = *self.deadlines.first()?;
        if deadline > now {
            return None;
        }
        self.set_deadline(id, None);
        Some(id)
    }
}
