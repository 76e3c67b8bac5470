//! Multicast groups. On RoCE a join is local: the address of a group is its GID, and librdmacm attaches the QP.

use super::id::{Group, State, UDP_QKEY};
use super::{EINVAL, Manager, Outcome, check_room, respond};
use crate::abi::{self, AddressVector, DatagramParameters, GlobalRoute, event};
use crate::address;
use crate::events::{Parameters, Queued};
use std::net::SocketAddr;
use weir_device::Errno;

/// The QP number of multicast packets (IBTA 10.5.2).
const MULTICAST_QPN: u32 = 0xff_ffff;
/// Join flags: full member; full member that only sends.
const JOIN_FLAGS: [u16; 2] = [0, 1];

impl Manager {
    pub(super) fn join_ip_multicast(&mut self, file: u64, command: abi::JoinIpMulticast, room: usize) -> Outcome {
        let address = address::parse(&command.address).map_err(|_| EINVAL)?;
        self.join(file, command.id, command.uid, address, command.response, room)
    }

    pub(super) fn join_multicast(&mut self, file: u64, command: abi::JoinMulticast, room: usize) -> Outcome {
        let bytes = command.address.get(..usize::from(command.size)).ok_or(EINVAL)?;
        if !JOIN_FLAGS.contains(&command.flags) {
            return Err(EINVAL);
        }
        let address = address::parse(bytes).map_err(|_| EINVAL)?;
        self.join(file, command.id, command.uid, address, command.response, room)
    }

    fn join(
        &mut self,
        file: u64,
        number: u32,
        uid: u64,
        address: Option<SocketAddr>,
        response: u64,
        room: usize,
    ) -> Outcome {
        check_room(room, size_of::<abi::Created>())?;
        let id = self.id(file, number)?;
        let address = address.ok_or(EINVAL)?.ip();
        let resolved = matches!(id.state, State::Bound | State::AddressResolved | State::RouteResolved);
        let attached = id.attached.clone().filter(|_| resolved && id.is_datagram()).ok_or(EINVAL)?;
        let traffic_class = id.traffic_class.unwrap_or(0);
        let group = Group { id: number, events_reported: 0 };
        let group = self.groups.insert(group).ok_or(Errno(libc::ENOMEM))?;
        let id = self.id(file, number)?;
        id.groups.push(group);
        if id.qkey == 0 {
            id.qkey = UDP_QKEY;
        }
        const HOPS: u8 = 64;
        let parameters = DatagramParameters {
            qp_num: MULTICAST_QPN,
            qkey: UDP_QKEY,
            address: AddressVector {
                grh: GlobalRoute {
                    dgid: address::gid(address),
                    sgid_index: attached.gid_index,
                    hop_limit: HOPS,
                    traffic_class,
                    ..GlobalRoute::default()
                },
                is_global: 1,
                port: 1,
                ..AddressVector::default()
            },
            ..DatagramParameters::default()
        };
        let event = abi::Event {
            uid,
            id: group,
            event: event::MULTICAST_JOIN,
            parameters: Parameters::Datagram(parameters).bytes(),
            ..abi::Event::default()
        };
        if let Some(queue) = self.files.get_mut(&file) {
            queue.push(Queued { id: number, group: Some(group), request: None, response: event });
        }
        Ok(respond(response, &abi::Created { id: group }, room))
    }

    pub(super) fn leave_multicast(&mut self, file: u64, command: abi::DestroyId, room: usize) -> Outcome {
        check_room(room, size_of::<abi::Reported>())?;
        let number = self.groups.get(command.id).ok_or(Errno(libc::ENOENT))?.id;
        let id = self.id(file, number).map_err(|_| EINVAL)?;
        id.groups.retain(|group| *group != command.id);
        if let Some(queue) = self.files.get_mut(&file) {
            queue.take(|event| event.group == Some(command.id));
        }
        let events = self.groups.remove(command.id).map_or(0, |group| group.events_reported);
        Ok(respond(command.response, &abi::Reported { events }, room))
    }
}
