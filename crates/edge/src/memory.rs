//! The memory of this process, as a connection's packets read and write it.
//!
//! WRITEs of this side are sent from where they are: the program leaves them as they are until they are complete. What the
//! peer reads is copied: a packet that goes again must not have what was written since.

use crate::allowed::{Access, Allowed};
use crate::meter::{Meter, Part};
use crate::payload::{Payload, Pool, Seen};
use std::ptr::with_exposed_provenance_mut;
use weir_guarded::copy;
use weir_link::Iovec;
use weir_transport::edge::{Fault, Memory};

/// The memory, for one connection.
pub struct Local<'a> {
    pub allowed: &'a mut Allowed,
    pub pool: &'a Pool,
    pub meter: &'a Meter,
    /// Of this side's WRITEs too.
    pub copy_sends: bool,
    pub seen: &'a Seen,
}

impl Memory for Local<'_> {
    type Bytes = Payload;

    fn read(&mut self, address: u64, bytes: u32, by_peer: bool) -> Result<Payload, Fault> {
        if by_peer && !self.allowed.permits(address, bytes.into(), Access::READ) {
            return Err(Fault);
        }
        let place = Iovec { addr: address as usize, len: bytes as usize };
        let _copying = self.meter.during(Part::SendCopy);
        if by_peer || self.copy_sends {
            return self.pool.copy(place).map_err(|_| Fault);
        }
        if self.seen.is_readable(place) { Ok(Payload::Place(place)) } else { Err(Fault) }
    }

    fn write(&mut self, address: u64, bytes: &Payload, by_peer: bool) -> Result<(), Fault> {
        let Iovec { addr, len } = bytes.iovec();
        if by_peer && !self.allowed.permits(address, len as u64, Access::WRITE) {
            return Err(Fault);
        }
        let _copying = self.meter.during(Part::ReceiveCopy);
        let to = with_exposed_provenance_mut::<u8>(address as usize);
        // SAFETY: `to` is memory of the program in any state. The payload is in the inbox or in a buffer of the pool, and so
        // valid. `Owner::current` has installed the handler.
        unsafe { copy::copy(to, std::ptr::with_exposed_provenance(addr), len) }.map_err(|_| Fault)
    }

    fn nothing(&mut self) -> Payload {
        Payload::Nothing
    }
}
