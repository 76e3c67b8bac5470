//! Options of an id (SET_OPTION).

use super::id::State;
use super::query::PATH_FLAGS;
use super::{Done, EINVAL, Manager, Outcome, Program};
use crate::abi::{self, event};
use crate::events::Parameters;
use weir_device::Errno;

/// Levels and options.
const LEVEL_ID: u32 = 0;
const LEVEL_IB: u32 = 1;
const TYPE_OF_SERVICE: u32 = 0;
const REUSE_ADDRESS: u32 = 1;
const FAMILY_ONLY: u32 = 2;
const ACK_TIMEOUT: u32 = 3;
const IB_PATH: u32 = 1;
/// The longest value: a few paths.
const LONGEST: u32 = 4096;
/// Bytes of a path with its flags.
const PATH: usize = 72;

impl Manager {
    pub(super) fn set_option(&mut self, file: u64, command: abi::SetOption, program: &dyn Program) -> Outcome {
        if command.len > LONGEST {
            return Err(EINVAL);
        }
        self.id(file, command.id)?;
        let value = program.read(command.value, command.len as usize);
        match (command.level, command.name) {
            (LEVEL_ID, name) => self.set_id_option(file, command.id, name, &value),
            (LEVEL_IB, IB_PATH) => self.set_path(file, command.id, &value),
            _ => Err(Errno(libc::ENOSYS)),
        }
    }

    fn set_id_option(&mut self, file: u64, number: u32, name: u32, value: &[u8]) -> Outcome {
        let byte = || <[u8; 1]>::try_from(value).map(|[byte]| byte).map_err(|_| EINVAL);
        let flag = || value.try_into().map(|bytes| i32::from_ne_bytes(bytes) != 0).map_err(|_| EINVAL);
        let id = self.id(file, number)?;
        match name {
            TYPE_OF_SERVICE => id.traffic_class = Some(byte()?),
            REUSE_ADDRESS => {
                let reuse = flag()?;
                if id.state != State::Idle && (!reuse || id.state == State::Listen) {
                    return Err(EINVAL);
                }
                id.reuse = reuse;
            }
            FAMILY_ONLY => {
                let only = flag()?;
                if id.state != State::Idle && id.state != State::Bound {
                    return Err(EINVAL);
                }
                id.family_only = Some(only);
            }
            ACK_TIMEOUT => {
                let timeout = byte()?;
                if id.is_datagram() || timeout > 31 {
                    return Err(EINVAL);
                }
                id.ack_timeout = Some(timeout);
            }
            _ => return Err(Errno(libc::ENOSYS)),
        }
        if let Some((space, owner)) = self.owner(number) {
            self.ports.change(space, owner.address.port(), number, |entry| {
                (entry.reuse, entry.family_only) = (owner.reuse, owner.family_only);
            });
        }
        Ok(Done::Nothing)
    }

    /// The program knows the path: the route is resolved by that.
    fn set_path(&mut self, file: u64, number: u32, value: &[u8]) -> Outcome {
        if !value.len().is_multiple_of(PATH) {
            return Err(EINVAL);
        }
        let usable = |path: &&[u8]| path.first_chunk().is_some_and(|flags| u32::from_ne_bytes(*flags) == PATH_FLAGS);
        value.chunks(PATH).find(usable).ok_or(EINVAL)?;
        let id = self.id(file, number)?;
        if id.attached.is_none() || id.state != State::AddressResolved {
            return Err(EINVAL);
        }
        (id.state, id.has_path) = (State::RouteResolved, true);
        self.raise(number, event::ROUTE_RESOLVED, 0, Parameters::None);
        Ok(Done::Nothing)
    }
}
