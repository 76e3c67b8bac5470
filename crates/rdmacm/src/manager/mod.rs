//! The connection manager of a process: what the kernel's `ucma` and `rdma_cm` do. It has no thread, descriptor or
//! clock: commands come in by [`Manager::command`], MADs by [`Manager::arrived`], time as an argument; MADs leave by
//! the [`Host`].

mod arrivals;
mod attributes;
mod connect;
mod end;
mod ending;
mod failures;
pub mod id;
mod multicast;
mod option;
mod query;
mod removal;
mod setup;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_ends;
mod vanished;
mod written;

use crate::abi::{self, command, event};
use crate::events::{Parameters, Queue, Queued, Signal};
use crate::host::Host;
use crate::ports::{Owner, Ports};
use crate::table::Table;
use id::{Group, Id, State};
use std::collections::{HashMap, HashSet};
use weir_cm::{Address, Cm, Config, ConnectionId, Event};
use weir_device::Errno;
use weir_transport::Instant;
use weir_wire::mad::Mad;
use zerocopy::{FromBytes, IntoBytes};

/// All that the rdma_cm files of a process have.
pub struct Manager {
    host: Box<dyn Host>,
    cm: Cm,
    /// The bits of a communication id below the number of its process.
    id_bits: u32,
    files: HashMap<u64, Queue>,
    next_file: u64,
    ids: Table<Id>,
    groups: Table<Group>,
    ports: Ports,
    connections: HashMap<ConnectionId, u32>,
    now: Instant,
    /// Ids want requests, but there is no device: when to look for one.
    look_at: Option<Instant>,
    /// There are connections to processes of this host: when to look if one has ended without a message.
    peers_at: Option<Instant>,
    /// Connections of which the last look missed the peer's process.
    missing: HashSet<ConnectionId>,
    /// When the log had a line about a full backlog.
    full_said: Option<Instant>,
    /// The process ends.
    ending: Option<ending::Ending>,
}

/// What a command reads of the program.
pub trait Program {
    /// The file that a descriptor stands for.
    fn file_of(&self, descriptor: i32) -> Option<u64>;
    /// Bytes of the program's memory.
    fn read(&self, address: u64, len: usize) -> Vec<u8>;
}

/// The result of a command.
#[derive(Debug, PartialEq, Eq)]
pub enum Done {
    /// It is done.
    Nothing,
    /// These bytes belong at this address of the program.
    Response(u64, Vec<u8>),
    /// There is no event yet.
    Wait,
}

type Outcome = Result<Done, Errno>;

const EINVAL: Errno = Errno(libc::EINVAL);

/// MADs that are handled before their events are. The answers fit into what `Cm` keeps.
const BATCH: usize = 64;

impl Manager {
    /// A manager without files. `prefix` are the upper bits of the communication ids of the process; `bits` lower ones
    /// are free.
    pub fn new(mut host: Box<dyn Host>, prefix: u32, bits: u32) -> Manager {
        let seed = u64::from(host.random()) << 32 | u64::from(host.random());
        let cm = Cm::new(Config { id_prefix: prefix, id_bits: bits, seed, ..Config::default() });
        Manager {
            host,
            cm,
            id_bits: bits,
            files: HashMap::new(),
            next_file: 1,
            ids: Table::default(),
            groups: Table::default(),
            ports: Ports::default(),
            connections: HashMap::new(),
            now: Instant(0),
            look_at: None,
            peers_at: None,
            missing: HashSet::new(),
            full_said: None,
            ending: None,
        }
    }

    /// Opens a file; returns its number.
    pub fn open(&mut self, signal: Box<dyn Signal>) -> u64 {
        let number = self.next_file;
        self.next_file += 1;
        self.files.insert(number, Queue::new(signal));
        number
    }

    /// A file is closed: its ids end.
    pub fn close(&mut self, now: Instant, file: u64) {
        self.now = now;
        // Its events go first: no id has to search thousands of them for its own.
        let _queue = self.files.remove(&file);
        let ids: Vec<u32> = self.ids.iter().filter(|(_, id)| id.file == file).map(|(number, _)| number).collect();
        for number in ids {
            self.destroy(number);
        }
        self.work();
    }

    /// Returns whether there are no files.
    pub fn is_unused(&self) -> bool {
        self.files.is_empty()
    }

    /// Its surroundings.
    pub fn host(&mut self) -> &mut dyn Host {
        &mut *self.host
    }

    /// The program is about to write a command to this descriptor of a file.
    pub fn used_by(&mut self, file: u64, descriptor: i32) {
        if let Some(queue) = self.files.get_mut(&file) {
            queue.used_by(descriptor);
        }
    }

    /// Runs a command that the program has written to a file. Errors: those of the kernel.
    pub fn command(&mut self, now: Instant, file: u64, bytes: &[u8], program: &dyn Program) -> Outcome {
        self.now = now;
        let (header, rest) = abi::Header::read_from_prefix(bytes).map_err(|_| EINVAL)?;
        if header.cmd >= command::COUNT {
            return Err(EINVAL);
        }
        let input = rest.get(..usize::from(header.input)).ok_or(EINVAL)?;
        let room = usize::from(header.output);
        let done = match header.cmd {
            command::CREATE_ID => self.create_id(file, parse(input)?, room),
            command::DESTROY_ID => self.destroy_id(file, parse(input)?, room),
            command::MIGRATE_ID => self.migrate_id(file, parse(input)?, room, program),
            command::BIND_IP => self.bind_ip(file, parse(input)?),
            command::BIND => self.bind(file, parse(input)?),
            command::RESOLVE_IP => self.resolve_ip(file, parse(input)?),
            command::RESOLVE_ADDR => self.resolve_addr(file, parse(input)?),
            command::RESOLVE_ROUTE => self.resolve_route(file, parse(input)?),
            command::QUERY_ROUTE => self.query_route(file, parse(input)?, room),
            command::QUERY => self.query(file, parse(input)?, room),
            command::CONNECT => self.connect(file, parse_extended(input, size_of::<abi::Ece>())?),
            command::LISTEN => self.listen(file, parse(input)?),
            command::ACCEPT => self.accept(file, parse_extended(input, size_of::<abi::Ece>())?),
            command::REJECT => self.reject(file, parse(input)?),
            command::DISCONNECT => self.disconnect(file, parse(input)?),
            command::INIT_QP_ATTR => self.init_qp_attr(file, parse(input)?, room),
            command::GET_EVENT => self.get_event(file, parse(input)?, room),
            command::SET_OPTION => self.set_option(file, parse(input)?, program),
            command::NOTIFY => self.notify(file, parse(input)?),
            command::JOIN_IP_MCAST => self.join_ip_multicast(file, parse(input)?, room),
            command::JOIN_MCAST => self.join_multicast(file, parse(input)?, room),
            command::RESOLVE_IB_SERVICE => self.resolve_ib_service(file, parse(input)?),
            command::WRITE_CM_EVENT => self.write_event(file, parse(input)?),
            command::LEAVE_MCAST => self.leave_multicast(file, parse(input)?, room),
            _ => Err(Errno(libc::ENOSYS)),
        };
        self.work();
        done
    }

    /// MADs have come.
    pub fn arrived(&mut self, now: Instant, mads: &[(Address, Mad)]) {
        self.now = now;
        self.count_answers(mads);
        for batch in mads.chunks(BATCH) {
            batch.iter().for_each(|(from, mad)| self.cm.handle(now, from, mad));
            self.work();
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant) {
        self.now = now;
        if self.host.has_failed() {
            let failed = self.host.removed();
            self.devices_removed(now, &failed);
        }
        self.look_for_device();
        self.look_for_peers();
        self.cm.handle_timeout(now);
        self.work();
    }

    /// When to [`tick`](Self::tick) next.
    pub fn next(&self) -> Option<Instant> {
        let at_once = self.host.has_failed().then_some(self.now);
        self.cm.poll_timeout().into_iter().chain(self.look_at).chain(self.peers_at).chain(at_once).min()
    }

    /// Sends MADs and takes what has happened to connections.
    fn work(&mut self) {
        loop {
            let batch: Vec<Event> = std::iter::from_fn(|| self.cm.poll_event()).collect();
            if !batch.is_empty() {
                self.take_packets_before(&batch);
                batch.into_iter().for_each(|event| self.happened(event));
                continue;
            }
            let Some((to, mad)) = self.cm.poll_transmit() else { return };
            self.host.send(&to, &mad);
        }
    }

    /// The id of a file: ENOENT if there is none, EINVAL if it is another file's, ENXIO if its device is gone.
    fn id(&mut self, file: u64, number: u32) -> Result<&mut Id, Errno> {
        match self.ids.get_mut(number) {
            None => Err(Errno(libc::ENOENT)),
            Some(id) if id.file != file => Err(EINVAL),
            Some(id) if id.state == State::Removed => Err(Errno(libc::ENXIO)),
            Some(id) => Ok(id),
        }
    }

    /// Queues an event of an id, unless the program does not know the id yet.
    fn raise(&mut self, number: u32, kind: u32, status: i32, parameters: Parameters) {
        let Some(id) = self.ids.get(number).filter(|id| id.uid != 0) else { return };
        let response = abi::Event {
            uid: id.uid,
            id: number,
            event: kind,
            status: status as u32,
            parameters: parameters.bytes(),
            reserved: 0,
            ece: abi::Ece { vendor_id: id.ece.vendor_id, attr_mod: id.ece.options },
        };
        if let Some(queue) = self.files.get_mut(&id.file) {
            queue.push(Queued { id: number, group: None, request: None, response });
        }
    }

    fn get_event(&mut self, file: u64, command: abi::GetEvent, room: usize) -> Outcome {
        let shortest = size_of::<abi::Event>() - size_of::<abi::Ece>() - size_of::<u32>();
        if room < shortest {
            return Err(Errno(libc::ENOSPC));
        }
        let Some(event) = self.files.get_mut(&file).ok_or(EINVAL)?.pop() else { return Ok(Done::Wait) };
        if let Some(id) = self.ids.get_mut(event.id) {
            id.events_reported += 1;
            if event.response.event == event::CONNECT_REQUEST {
                id.backlog += 1;
            }
        }
        if let Some(group) = event.group.and_then(|group| self.groups.get_mut(group)) {
            group.events_reported += 1;
        }
        if let Some(id) = event.request.and_then(|request| self.ids.get_mut(request)) {
            // The listener may have moved since the request came.
            id.file = file;
        }
        Ok(respond(command.response, &event.response, room))
    }

    /// What an id claims of its port.
    fn owner(&self, number: u32) -> Option<(u16, Owner)> {
        let id = self.ids.get(number)?;
        let owner = Owner { id: number, address: id.local?, reuse: id.reuse, family_only: id.is_family_only() };
        Some((id.space, owner))
    }
}

/// A command with exactly the members that it has, or more.
fn parse<T: FromBytes>(input: &[u8]) -> Result<T, Errno> {
    T::read_from_prefix(input).map(|(command, _)| command).map_err(|_| EINVAL)
}

/// A command; older programs do not send its last `new` bytes.
fn parse_extended<T: FromBytes + IntoBytes>(input: &[u8], new: usize) -> Result<T, Errno> {
    let mut command = T::new_zeroed();
    let len = input.len().min(size_of::<T>());
    if len < size_of::<T>() - new {
        return Err(EINVAL);
    }
    command.as_mut_bytes()[..len].copy_from_slice(&input[..len]);
    Ok(command)
}

/// As much of a response as the program has room for.
fn respond<T: IntoBytes + zerocopy::Immutable>(to: u64, response: &T, room: usize) -> Done {
    let bytes = response.as_bytes();
    Done::Response(to, bytes[..room.min(bytes.len())].to_vec())
}

/// ENOSPC if the program has not even room for `least` bytes of a response.
fn check_room(room: usize, least: usize) -> Result<(), Errno> {
    if room < least { Err(Errno(libc::ENOSPC)) } else { Ok(()) }
}
