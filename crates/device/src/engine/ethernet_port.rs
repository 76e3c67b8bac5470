//! The packet socket of an adapter with raw packet QPs, and how frames leave through it.

use crate::Errno;
use crate::engine::staging::fill;
use crate::memory::access::Memory;
use crate::memory::keys::{Cached, Regions};
use crate::memory::window::User;
use crate::paging::QpFaults;
use crate::shared::state::AdapterState;
use crate::stat::sheet;
use crate::steering::{Rules, program};
use std::io::ErrorKind;
use std::sync::Arc;
use weir_link::Ethernet;
use weir_transport::{Egress, Outgoing, Refused, Side};

/// The packet socket of an adapter and its rules.
pub struct EthernetPort {
    pub socket: Ethernet,
    /// Frames may have come, also of rules that are gone.
    pub listens: bool,
    pub rules: Rules,
    /// One frame.
    pub buffer: Box<[u8]>,
}

/// An Ethernet header with a VLAN tag.
const HEADER: usize = 18;

impl EthernetPort {
    /// A socket that receives nothing yet.
    pub fn new(socket: Ethernet, adapter: &AdapterState) -> EthernetPort {
        let buffer = vec![0; longest_frame(adapter)].into_boxed_slice();
        EthernetPort { socket, listens: false, rules: Rules::default(), buffer }
    }

    /// Receives from now on.
    pub fn begin(&mut self, adapter: &AdapterState) -> Result<(), Errno> {
        self.filter()?;
        if !self.listens {
            self.socket.listen()?;
            adapter.pace.watch(self.socket.descriptor())?;
            self.listens = true;
        }
        Ok(())
    }

    /// Tells the kernel which frames the rules may match.
    pub fn filter(&self) -> std::io::Result<()> {
        self.socket.set_filter(&program(self.rules.iter()))
    }
}

/// Sends the frames of one QP.
pub struct EthernetEgress<'a> {
    pub port: &'a mut EthernetPort,
    pub user: User,
    pub faults: &'a Arc<QpFaults>,
    pub regions: &'a Regions,
    pub cached: &'a mut Cached,
    pub shown: &'static sheet::Device,
}

impl Egress for EthernetEgress<'_> {
    fn push(&mut self, packet: &Outgoing<'_>) -> Result<(), Refused> {
        let frame = &mut self.port.buffer[..packet.payload.len()];
        let (user, regions, faults, side) = (self.user, self.regions, self.faults, Side::Requester);
        let mut memory = Memory { user, side, regions, cached: self.cached, faults };
        fill(&mut memory, &packet.payload, frame).map_err(Refused::Denied)?;
        match self.port.socket.send(frame) {
            Ok(()) => {
                self.shown.traffic.packets_sent.bump(1);
                self.shown.traffic.bytes_sent.bump(frame.len() as u64);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(Refused::Full),
            // The frame is lost, as on a wire: too short or too long, or the interface is down.
            Err(_) => self.shown.traffic.packets_lost.bump(1),
        }
        Ok(())
    }
}

/// Bytes of the longest frame of the interface.
pub fn longest_frame(adapter: &AdapterState) -> usize {
    adapter.device.if_mtu as usize + HEADER
}
