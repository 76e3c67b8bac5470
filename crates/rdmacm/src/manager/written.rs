//! Commands of rdma-core 60 and later: events that the program writes itself, and services of InfiniBand.

use super::id::State;
use super::{Done, EINVAL, Manager, Outcome};
use crate::abi::{self, event};
use crate::events::Parameters;
use weir_device::Errno;

impl Manager {
    /// `rdma_write_cm_event`: another thread of the program gets the event. librdmacm itself reports by it that
    /// `rdma_resolve_addrinfo` is done.
    pub(super) fn write_event(&mut self, file: u64, command: abi::WriteEvent) -> Outcome {
        if command.event != event::USER && command.event != event::INTERNAL {
            return Err(EINVAL);
        }
        self.id(file, command.id)?;
        let number = *command.parameters.first_chunk().expect("it is longer");
        self.raise(command.id, command.event, command.status as i32, Parameters::Number(number));
        Ok(Done::Nothing)
    }

    /// Only InfiniBand has a subnet administrator that knows services: EOPNOTSUPP, as on every RoCE adapter.
    pub(super) fn resolve_ib_service(&mut self, file: u64, command: abi::ResolveIbService) -> Outcome {
        let id = self.id(file, command.id)?;
        if id.state != State::Bound || id.attached.is_none() {
            return Err(EINVAL);
        }
        Err(Errno(libc::EOPNOTSUPP))
    }
}
