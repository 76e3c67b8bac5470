//! What an id says about its addresses and its path (QUERY_ROUTE, QUERY).

use super::id::{Id, PACKET_LIFE_TIME};
use super::{Done, Manager, Outcome, check_room, respond};
use crate::abi::{self, AddressResponse, PathRecord, RouteResponse};
use crate::{address, ports};
use std::mem::offset_of;
use weir_device::Errno;
use weir_wire::DEFAULT_PKEY;
use zerocopy::IntoBytes;

/// What QUERY asks for.
const ADDRESSES: u32 = 0;
const PATHS: u32 = 1;
const GIDS: u32 = 2;
/// The path is for management and data, the first, and for packets of both directions (IB_PATH_GMP, PRIMARY, OUTBOUND and
/// INBOUND_REVERSE of <rdma/ib_user_sa.h>).
pub(super) const PATH_FLAGS: u32 = 1 | 2 | 8 | 32;
/// Bytes of a path as IBTA table 205 has it, and of its flags before it.
const IB_PATH: usize = 64;
/// "Exactly this", of MTU, rate and life time.
const EXACTLY: u8 = 2;
/// As `enum ibv_rate`: 10 Gbit/s.
const RATE: u8 = 3;

impl Manager {
    pub(super) fn query_route(&mut self, file: u64, command: abi::Query, room: usize) -> Outcome {
        check_room(room, offset_of!(RouteResponse, device_index))?;
        let id = self.id(file, command.id)?;
        let mut response = RouteResponse::default();
        address::write(id.local, &mut response.source);
        address::write(id.remote, &mut response.destination);
        if let Some(attached) = &id.attached {
            response.node_guid = attached.device.guid.to_be();
            (response.device_index, response.port) = (attached.device.index, 1);
            response.path_count = u32::from(id.has_path);
            response.paths[0] = path(id);
        }
        Ok(respond(command.response, &response, room))
    }

    pub(super) fn query(&mut self, file: u64, command: abi::Query, room: usize) -> Outcome {
        let id = self.id(file, command.id)?;
        match command.option {
            ADDRESSES => {
                check_room(room, offset_of!(AddressResponse, device_index))?;
                let mut response = of_device(id);
                response.source_size = address::write(id.local, &mut response.source);
                response.destination_size = address::write(id.remote, &mut response.destination);
                Ok(respond(command.response, &response, room))
            }
            GIDS => {
                check_room(room, offset_of!(AddressResponse, device_index))?;
                let mut response = of_device(id);
                let service = |port| ports::service(id.space, port);
                if let Some(local) = id.local {
                    let gid = address::gid(local.ip());
                    response.source_size =
                        address::write_ib(gid, DEFAULT_PKEY, service(local.port()), &mut response.source);
                }
                if let Some(remote) = id.remote {
                    let (gid, service) = (address::gid(remote.ip()), service(remote.port()));
                    response.destination_size =
                        address::write_ib(gid, DEFAULT_PKEY, service, &mut response.destination);
                }
                Ok(respond(command.response, &response, room))
            }
            PATHS => {
                let head = size_of::<abi::PathResponse>();
                check_room(room, head)?;
                let count = u32::from(id.has_path);
                let response = abi::PathResponse { path_count: count, reserved: 0 };
                let mut bytes = response.as_bytes().to_vec();
                if count > 0 && room >= head + 8 + IB_PATH {
                    bytes.extend(PATH_FLAGS.to_ne_bytes());
                    bytes.extend([0; 4]);
                    bytes.extend(ib_path(&path(id)));
                }
                Ok(Done::Response(command.response, bytes))
            }
            _ => Err(Errno(libc::ENOSYS)),
        }
    }
}

fn of_device(id: &Id) -> AddressResponse {
    let mut response = AddressResponse::default();
    if let Some(attached) = &id.attached {
        response.node_guid = attached.device.guid.to_be();
        (response.device_index, response.port) = (attached.device.index, 1);
        response.pkey = DEFAULT_PKEY;
    }
    response
}

/// The path of an id.
fn path(id: &Id) -> PathRecord {
    let gid = |address: Option<std::net::SocketAddr>| address.map_or([0; 16], |address| address::gid(address.ip()));
    let mut path =
        PathRecord { sgid: gid(id.local), dgid: gid(id.remote), pkey: DEFAULT_PKEY.to_be(), ..PathRecord::default() };
    if id.has_path {
        let mtu = id.attached.as_ref().map_or(0, |attached| attached.device.mtu);
        path.mtu = if id.agreed.path_mtu > 0 { id.agreed.path_mtu } else { mtu }.into();
        (path.hop_limit, path.traffic_class) = (64, id.traffic_class.unwrap_or(id.agreed.traffic_class));
        (path.reversible, path.numb_path, path.rate) = (1, 1, RATE);
        (path.mtu_selector, path.rate_selector, path.packet_life_time_selector) = (EXACTLY, EXACTLY, EXACTLY);
        path.packet_life_time =
            id.ack_timeout.filter(|timeout| *timeout > 0).map_or(PACKET_LIFE_TIME, |timeout| timeout - 1);
    }
    path
}

/// A path as subnet administration has it (IBTA 15.2.5.16).
fn ib_path(path: &PathRecord) -> [u8; IB_PATH] {
    let mut bytes = [0; IB_PATH];
    bytes[8..24].copy_from_slice(&path.dgid);
    bytes[24..40].copy_from_slice(&path.sgid);
    bytes[47] = path.hop_limit;
    bytes[48] = path.traffic_class;
    bytes[49] = (path.reversible as u8) << 7 | path.numb_path;
    bytes[50..52].copy_from_slice(&path.pkey.to_ne_bytes());
    bytes[52..54].copy_from_slice(&u16::from(path.sl).to_be_bytes());
    bytes[54] = path.mtu_selector << 6 | path.mtu as u8;
    bytes[55] = path.rate_selector << 6 | path.rate;
    bytes[56] = path.packet_life_time_selector << 6 | path.packet_life_time;
    bytes
}
