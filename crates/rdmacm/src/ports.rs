//! Ports: which ids of this process have bound them. Another process cannot bind a port that this process has claimed.

use crate::address;
use crate::host::Host;
use std::collections::HashMap;
use std::net::SocketAddr;
use weir_device::Errno;

/// A port space and a port: the service id of both (IBTA A11.2).
pub fn service(space: u16, port: u16) -> u64 {
    u64::from(space) << 16 | u64::from(port)
}

/// An id's claim to a port.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    pub id: u32,
    pub address: SocketAddr,
    pub reuse: bool,
    /// Only addresses of its own family.
    pub family_only: bool,
}

/// The bound ports of a process.
#[derive(Default)]
pub struct Ports(HashMap<u64, Port>);

#[derive(Default)]
struct Port {
    owners: Vec<Owner>,
    /// No other process can bind it.
    claimed: bool,
}

impl Ports {
    /// Binds a port; port 0 stands for any free one, which is returned. `claim`: other processes cannot bind it; without
    /// that, two processes may send from the same port, which no peer can see. EACCES, EADDRINUSE, EADDRNOTAVAIL as
    /// bind(2) on an rdma_cm_id.
    pub fn bind(&mut self, host: &mut dyn Host, space: u16, owner: Owner, claim: bool) -> Result<u16, Errno> {
        let wanted = owner.address.port();
        if wanted != 0 {
            if !host.may_bind(wanted) {
                return Err(Errno(libc::EACCES));
            }
            self.check(space, &owner, owner.reuse)?;
            self.enter(host, space, owner, claim)?;
            return Ok(wanted);
        }
        let range = host.ports();
        let count = u32::from(*range.end()).saturating_sub(u32::from(*range.start())) + 1;
        let first = host.random() % count;
        for step in 0..count {
            let port = range.start() + ((first + step) % count) as u16;
            if self.0.contains_key(&service(space, port)) {
                continue;
            }
            let mut owner = owner;
            owner.address.set_port(port);
            match self.enter(host, space, owner, claim) {
                Err(Errno(libc::EADDRINUSE)) => {}
                result => return result.map(|()| port),
            }
        }
        Err(Errno(libc::EADDRNOTAVAIL))
    }

    /// Checks whether an owner may have its port beside the others. `reuse`: ids that both allow reuse share it.
    pub fn check(&self, space: u16, owner: &Owner, reuse: bool) -> Result<(), Errno> {
        let Some(port) = self.0.get(&service(space, owner.address.port())) else { return Ok(()) };
        for other in port.owners.iter().filter(|other| other.id != owner.id) {
            let families_differ = owner.address.is_ipv4() != other.address.is_ipv4();
            if reuse && other.reuse || owner.family_only && other.family_only && families_differ {
                continue;
            }
            if address::is_any(&owner.address) || address::is_any(&other.address) {
                return Err(Errno(libc::EADDRNOTAVAIL));
            }
            if owner.address.ip() == other.address.ip() {
                return Err(Errno(libc::EADDRINUSE));
            }
        }
        Ok(())
    }

    /// Claims a port that an id has bound, and lets requests come.
    pub fn listen(&mut self, host: &mut dyn Host, space: u16, port: u16) -> Result<(), Errno> {
        let service = service(space, port);
        let entry = self.0.entry(service).or_default();
        if !entry.claimed {
            host.claim(service)?;
            entry.claimed = true;
        }
        host.open(service)
    }

    /// The owners of a service's port.
    pub fn owners(&self, service: u64) -> &[Owner] {
        self.0.get(&service).map_or(&[], |port| &port.owners)
    }

    /// Changes what an id allows.
    pub fn change(&mut self, space: u16, port: u16, id: u32, change: impl Fn(&mut Owner)) {
        if let Some(port) = self.0.get_mut(&service(space, port)) {
            port.owners.iter_mut().filter(|owner| owner.id == id).for_each(change);
        }
    }

    /// An id gives its port back.
    pub fn release(&mut self, host: &mut dyn Host, space: u16, port: u16, id: u32) {
        let service = service(space, port);
        let Some(entry) = self.0.get_mut(&service) else { return };
        entry.owners.retain(|owner| owner.id != id);
        if entry.owners.is_empty() {
            if entry.claimed {
                host.release(service);
            }
            self.0.remove(&service);
        }
    }

    fn enter(&mut self, host: &mut dyn Host, space: u16, owner: Owner, claim: bool) -> Result<(), Errno> {
        let service = service(space, owner.address.port());
        let claimed = self.0.get(&service).is_some_and(|port| port.claimed);
        if claim && !claimed {
            host.claim(service)?;
        }
        let port = self.0.entry(service).or_default();
        port.claimed |= claim;
        port.owners.push(owner);
        Ok(())
    }
}
