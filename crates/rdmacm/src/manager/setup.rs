//! Making and ending ids, and their addresses and routes.

use super::id::{Attached, Id, QpType, State};
use super::{Done, EINVAL, Manager, Outcome, Program, check_room, respond};
use crate::abi::{self, event};
use crate::address;
use crate::events::Parameters;
use crate::host::is_full;
use std::net::SocketAddr;
use weir_device::Errno;

impl Manager {
    pub(super) fn create_id(&mut self, file: u64, command: abi::CreateId, room: usize) -> Outcome {
        check_room(room, size_of::<abi::Created>())?;
        let qp_type = QpType::of(command.port_space, command.qp_type)?;
        let id = Id::new(file, command.uid, command.port_space, qp_type, self.host.random());
        let id = self.ids.insert(id).ok_or(Errno(libc::ENOMEM))?;
        Ok(respond(command.response, &abi::Created { id }, room))
    }

    pub(super) fn destroy_id(&mut self, file: u64, command: abi::DestroyId, room: usize) -> Outcome {
        check_room(room, size_of::<abi::Reported>())?;
        match self.id(file, command.id) {
            // Nothing else is left to do with it.
            Ok(_) | Err(Errno(libc::ENXIO)) => {}
            Err(error) => return Err(error),
        }
        let events = self.destroy(command.id);
        Ok(respond(command.response, &abi::Reported { events }, room))
    }

    /// Ends an id, its events that the program has not taken, and its requests. Returns the number of events that the
    /// program has taken.
    pub(super) fn destroy(&mut self, number: u32) -> u32 {
        let Some(id) = self.ids.get_mut(number) else { return 0 };
        let (file, connection, groups) = (id.file, id.connection.take(), std::mem::take(&mut id.groups));
        for group in groups {
            self.groups.remove(group);
        }
        self.release_port(number);
        if let Some(connection) = connection {
            self.connections.remove(&connection);
            self.cm.forget(self.now, connection);
        }
        let events = self.files.get_mut(&file).map_or_else(Vec::new, |queue| queue.take(|event| event.id == number));
        let reported = self.ids.remove(number).map_or(0, |id| id.events_reported);
        for request in events.into_iter().filter_map(|event| event.request) {
            self.destroy(request);
        }
        reported
    }

    pub(super) fn migrate_id(
        &mut self,
        file: u64,
        command: abi::MigrateId,
        room: usize,
        program: &dyn Program,
    ) -> Outcome {
        check_room(room, size_of::<abi::Reported>())?;
        let from = program.file_of(command.fd as i32).ok_or(EINVAL)?;
        let id = self.id(from, command.id)?;
        id.file = file;
        let events = id.events_reported;
        let moved = self.files.get_mut(&from).ok_or(EINVAL)?.take(|event| event.id == command.id);
        for event in moved {
            if let Some(request) = event.request.and_then(|request| self.ids.get_mut(request)) {
                request.file = file;
            }
            self.files.get_mut(&file).ok_or(EINVAL)?.push(event);
        }
        Ok(respond(command.response, &abi::Reported { events }, room))
    }

    pub(super) fn bind_ip(&mut self, file: u64, command: abi::BindIp) -> Outcome {
        let address = address::parse(&command.address).and_then(|address| address.ok_or(EINVAL)).map_err(|_| EINVAL)?;
        self.id(file, command.id)?;
        self.bind_to(command.id, address, true)
    }

    pub(super) fn bind(&mut self, file: u64, command: abi::Bind) -> Outcome {
        let bytes = command.address.get(..usize::from(command.size)).filter(|bytes| !bytes.is_empty());
        let bytes = bytes.filter(|_| command.reserved == 0).ok_or(EINVAL)?;
        let address = address::parse(bytes)?.ok_or(EINVAL)?;
        self.id(file, command.id)?;
        self.bind_to(command.id, address, true)
    }

    /// Gives an id an address and a port. `claim`: other processes cannot bind the port, and the process gets ready for
    /// requests, because a server may tell its clients the port before it listens.
    fn bind_to(&mut self, number: u32, address: SocketAddr, claim: bool) -> Outcome {
        let id = self.ids.get(number).ok_or(EINVAL)?;
        if id.state != State::Idle || address::misses_scope(&address) {
            return Err(EINVAL);
        }
        // As in the kernel, where the loopback interface has no device either: it stands for any address.
        let any = self.is_loopback_without_device(&address)?;
        let address = if any { address::any(&address, address.port()) } else { address };
        let attached = match address::is_any(&address) {
            true => None,
            false => Some(self.attach(&address)?.ok_or_else(|| self.no_device(&address))?),
        };
        let id = self.ids.get_mut(number).ok_or(EINVAL)?;
        id.local = Some(address);
        let (space, owner) = self.owner(number).ok_or(EINVAL)?;
        let bound = self.ports.bind(&mut *self.host, space, owner, claim);
        if claim && bound.is_ok() {
            // If it fails, listening fails too.
            let _ = self.host.use_device(attached.as_ref().map(|attached| attached.device.name.as_str()));
        }
        let id = self.ids.get_mut(number).ok_or(EINVAL)?;
        match bound {
            Ok(port) => {
                id.local = Some(with_port(address, port));
                (id.owns_port, id.state, id.attached) = (true, State::Bound, attached);
                Ok(Done::Nothing)
            }
            Err(error) => {
                let error = self.no_port(number, "rdma_bind_addr", error);
                if let Some(id) = self.ids.get_mut(number) {
                    id.local = None;
                }
                Err(error)
            }
        }
    }

    /// Whether it is an address of the loopback interface, which no device has.
    fn is_loopback_without_device(&mut self, address: &SocketAddr) -> Result<bool, Errno> {
        Ok(address.ip().to_canonical().is_loopback() && self.host.device_of(address.ip(), 0)?.is_none())
    }

    /// The device of an address, if there is one.
    fn attach(&mut self, address: &SocketAddr) -> Result<Option<Attached>, Errno> {
        let found = self.host.device_of(address.ip(), scope(address))?;
        Ok(found.map(|(device, gid_index)| Attached { device, gid_index }))
    }

    pub(super) fn resolve_ip(&mut self, file: u64, command: abi::ResolveIp) -> Outcome {
        let parse = |bytes: &[u8]| address::parse(bytes).map_err(|_| EINVAL);
        let (source, destination) = (parse(&command.source)?, parse(&command.destination)?.ok_or(EINVAL)?);
        self.id(file, command.id)?;
        self.resolve(command.id, source, destination)
    }

    pub(super) fn resolve_addr(&mut self, file: u64, command: abi::ResolveAddr) -> Outcome {
        let parse = |bytes: &[u8], size: u16| match bytes.get(..usize::from(size)) {
            Some([]) => Ok(None),
            Some(bytes) => address::parse(bytes),
            None => Err(EINVAL),
        };
        if command.reserved != 0 {
            return Err(EINVAL);
        }
        let source = parse(&command.source, command.source_size)?;
        let destination = parse(&command.destination, command.destination_size)?.ok_or(EINVAL)?;
        self.id(file, command.id)?;
        self.resolve(command.id, source, destination)
    }

    /// Finds the device and the source address for a destination. What the route's look-up refuses is an error of the
    /// call, as in the kernel; a source without a device is an event.
    fn resolve(&mut self, number: u32, source: Option<SocketAddr>, destination: SocketAddr) -> Outcome {
        let state = self.ids.get(number).ok_or(EINVAL)?.state;
        if state == State::Idle {
            let source = source.unwrap_or_else(|| address::any(&destination, 0));
            self.bind_to(number, source, source.port() != 0)?;
        } else if state != State::Bound {
            return Err(EINVAL);
        }
        let id = self.ids.get(number).ok_or(EINVAL)?;
        let (local, attached) = (id.local.ok_or(EINVAL)?, id.attached.clone());
        if local.is_ipv4() != destination.is_ipv4() {
            return Err(EINVAL);
        }
        let chosen = (!address::is_any(&local)).then_some(local);
        // To connect to no address means this machine, as for sockets.
        let target = match (address::is_any(&destination), chosen) {
            (true, Some(local)) => local.ip(),
            (true, None) if destination.is_ipv4() => std::net::Ipv4Addr::LOCALHOST.into(),
            (true, None) => std::net::Ipv6Addr::LOCALHOST.into(),
            (false, _) => destination.ip(),
        };
        let mut destination = destination;
        destination.set_ip(target);
        if self.is_loopback_without_device(&destination)?
            && let Some(own) = self.host.own_address(destination.is_ipv4())?
        {
            destination.set_ip(own);
        }
        let source = self.host.source_for(destination, chosen);
        let source = source.map_err(|error| self.no_route(number, destination.ip(), error))?;
        let attached = match attached {
            Some(attached) => Some(attached),
            None => match self.attach(&source) {
                Err(error) if is_full(error) => return Err(error),
                attached => attached.ok().flatten(),
            },
        };
        let id = self.ids.get_mut(number).ok_or(EINVAL)?;
        id.remote = Some(destination);
        if attached.is_none() {
            self.no_source(destination.ip(), source.ip());
            self.raise(number, event::ADDR_ERROR, -libc::ENODEV, Parameters::None);
            return Ok(Done::Nothing);
        }
        if chosen.is_none() {
            let address = with_port(source, local.port());
            id.local = Some(address);
            let (space, port) = (id.space, local.port());
            self.ports.change(space, port, number, |owner| owner.address = address);
        }
        let id = self.ids.get_mut(number).ok_or(EINVAL)?;
        (id.attached, id.state) = (attached, State::AddressResolved);
        self.raise(number, event::ADDR_RESOLVED, 0, Parameters::None);
        Ok(Done::Nothing)
    }

    pub(super) fn resolve_route(&mut self, file: u64, command: abi::ResolveRoute) -> Outcome {
        let id = self.id(file, command.id)?;
        if id.state != State::AddressResolved {
            return Err(EINVAL);
        }
        (id.state, id.has_path) = (State::RouteResolved, true);
        self.raise(command.id, event::ROUTE_RESOLVED, 0, Parameters::None);
        Ok(Done::Nothing)
    }

    /// An id without an address gets the unspecified IPv4 one and a port, as a socket that listens unbound.
    pub(super) fn bind_to_any(&mut self, number: u32) -> Outcome {
        self.bind_to(number, SocketAddr::from(([0, 0, 0, 0], 0)), true)
    }

    pub(super) fn release_port(&mut self, number: u32) {
        let Some(id) = self.ids.get_mut(number).filter(|id| id.owns_port) else { return };
        id.owns_port = false;
        if let Some(local) = id.local {
            let space = id.space;
            self.ports.release(&mut *self.host, space, local.port(), number);
        }
    }
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// The interface that an address names.
pub(super) fn scope(address: &SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id(),
    }
}
