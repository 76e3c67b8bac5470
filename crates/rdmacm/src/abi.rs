//! The commands and responses of `<rdma/rdma_user_cm.h>`, ABI version 4, in the byte order and layout of this machine.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Defines structures of the ABI. All their bytes are members, so that they have no padding.
macro_rules! abi {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $(pub $field: $type),* }

        impl Default for $name {
            fn default() -> Self {
                Self::new_zeroed()
            }
        }
    )* };
}

/// Bytes of private data in commands and events.
pub const PRIVATE_DATA: usize = 256;

/// `enum rdma_cm_event_type` of `<rdma/rdma_cma.h>`.
pub mod event {
    pub const ADDR_RESOLVED: u32 = 0;
    pub const ADDR_ERROR: u32 = 1;
    pub const ROUTE_RESOLVED: u32 = 2;
    pub const CONNECT_REQUEST: u32 = 4;
    pub const CONNECT_RESPONSE: u32 = 5;
    pub const UNREACHABLE: u32 = 7;
    pub const REJECTED: u32 = 8;
    pub const ESTABLISHED: u32 = 9;
    pub const DISCONNECTED: u32 = 10;
    pub const DEVICE_REMOVAL: u32 = 11;
    pub const MULTICAST_JOIN: u32 = 12;
    pub const MULTICAST_ERROR: u32 = 13;
    pub const TIMEWAIT_EXIT: u32 = 15;
    pub const USER: u32 = 18;
    pub const INTERNAL: u32 = 19;
}

/// The numbers of the commands.
pub mod command {
    pub const CREATE_ID: u32 = 0;
    pub const DESTROY_ID: u32 = 1;
    pub const BIND_IP: u32 = 2;
    pub const RESOLVE_IP: u32 = 3;
    pub const RESOLVE_ROUTE: u32 = 4;
    pub const QUERY_ROUTE: u32 = 5;
    pub const CONNECT: u32 = 6;
    pub const LISTEN: u32 = 7;
    pub const ACCEPT: u32 = 8;
    pub const REJECT: u32 = 9;
    pub const DISCONNECT: u32 = 10;
    pub const INIT_QP_ATTR: u32 = 11;
    pub const GET_EVENT: u32 = 12;
    pub const SET_OPTION: u32 = 14;
    pub const NOTIFY: u32 = 15;
    pub const JOIN_IP_MCAST: u32 = 16;
    pub const LEAVE_MCAST: u32 = 17;
    pub const MIGRATE_ID: u32 = 18;
    pub const QUERY: u32 = 19;
    pub const BIND: u32 = 20;
    pub const RESOLVE_ADDR: u32 = 21;
    pub const JOIN_MCAST: u32 = 22;
    pub const RESOLVE_IB_SERVICE: u32 = 23;
    pub const WRITE_CM_EVENT: u32 = 24;
    /// The number after the last one.
    pub const COUNT: u32 = 25;
}

/// Port spaces (IBTA A11.2).
pub mod port_space {
    pub const IPOIB: u16 = 0x0002;
    pub const TCP: u16 = 0x0106;
    pub const UDP: u16 = 0x0111;
    pub const IB: u16 = 0x013f;
}

abi! {
    /// Before each command: its number, its bytes after this header, and the bytes at its response address.
    Header { cmd: u32, input: u16, output: u16 }
    CreateId { uid: u64, response: u64, port_space: u16, qp_type: u8, reserved: [u8; 5] }
    /// The response to a command that creates an object.
    Created { id: u32 }
    DestroyId { response: u64, id: u32, reserved: u32 }
    /// The response to a command that ends an object: its events that the program has got.
    Reported { events: u32 }
    BindIp { response: u64, address: [u8; 28], id: u32 }
    Bind { id: u32, size: u16, reserved: u16, address: [u8; 128] }
    ResolveIp { source: [u8; 28], destination: [u8; 28], id: u32, timeout_ms: u32 }
    ResolveAddr {
        id: u32, timeout_ms: u32, source_size: u16, destination_size: u16, reserved: u32,
        source: [u8; 128], destination: [u8; 128],
    }
    ResolveRoute { id: u32, timeout_ms: u32 }
    Query { response: u64, id: u32, option: u32 }
    /// 16-bit members and the flow label are in network byte order.
    PathRecord {
        dgid: [u8; 16], sgid: [u8; 16], dlid: u16, slid: u16, raw_traffic: u32, flow_label: u32, reversible: u32,
        mtu: u32, pkey: u16, hop_limit: u8, traffic_class: u8, numb_path: u8, sl: u8, mtu_selector: u8,
        rate_selector: u8, rate: u8, packet_life_time_selector: u8, packet_life_time: u8, preference: u8,
    }
    RouteResponse {
        node_guid: u64, paths: [PathRecord; 2], source: [u8; 28], destination: [u8; 28], path_count: u32, port: u8,
        reserved: [u8; 3], device_index: u32, reserved1: u32,
    }
    AddressResponse {
        node_guid: u64, port: u8, reserved: u8, pkey: u16, source_size: u16, destination_size: u16, source: [u8; 128],
        destination: [u8; 128], device_index: u32, reserved1: u32,
    }
    /// Paths in the layout of IBTA table 205, each after 8 bytes of flags, follow.
    PathResponse { path_count: u32, reserved: u32 }
    ConnectionParameters {
        qp_num: u32, qkey: u32, private_data: [u8; PRIVATE_DATA], private_data_len: u8, srq: u8,
        responder_resources: u8, initiator_depth: u8, flow_control: u8, retry_count: u8, rnr_retry_count: u8,
        valid: u8,
    }
    GlobalRoute {
        dgid: [u8; 16], flow_label: u32, sgid_index: u8, hop_limit: u8, traffic_class: u8, reserved: u8,
    }
    AddressVector {
        grh: GlobalRoute, dlid: u16, sl: u8, src_path_bits: u8, static_rate: u8, is_global: u8, port: u8, reserved: u8,
    }
    DatagramParameters {
        qp_num: u32, qkey: u32, address: AddressVector, private_data: [u8; PRIVATE_DATA], private_data_len: u8,
        reserved: [u8; 7],
    }
    Ece { vendor_id: u32, attr_mod: u32 }
    Connect { parameters: ConnectionParameters, id: u32, reserved: u32, ece: Ece }
    Listen { id: u32, backlog: u32 }
    Accept { uid: u64, parameters: ConnectionParameters, id: u32, reserved: u32, ece: Ece }
    Reject { id: u32, private_data_len: u8, reason: u8, reserved: [u8; 2], private_data: [u8; PRIVATE_DATA] }
    Disconnect { id: u32 }
    InitQpAttr { response: u64, id: u32, state: u32 }
    Notify { id: u32, event: u32 }
    JoinIpMulticast { response: u64, uid: u64, address: [u8; 28], id: u32 }
    JoinMulticast { response: u64, uid: u64, id: u32, size: u16, flags: u16, address: [u8; 128] }
    GetEvent { response: u64 }
    /// `parameters`: those of a connection or of datagrams, of which the latter are longer, or a number of the program.
    Event {
        uid: u64, id: u32, event: u32, status: u32, parameters: [u8; size_of::<DatagramParameters>()], reserved: u32,
        ece: Ece,
    }
    SetOption { value: u64, id: u32, level: u32, name: u32, len: u32 }
    /// `service`: number, name and flags.
    ResolveIbService { id: u32, reserved: u32, service: [u8; 80] }
    /// `parameters`: a number of the program, in as much room as the longest parameters take.
    WriteEvent {
        id: u32, reserved: u32, event: u32, status: u32, parameters: [u8; size_of::<DatagramParameters>()],
    }
    MigrateId { response: u64, id: u32, fd: u32 }
    /// `struct ib_uverbs_qp_attr`.
    QpAttr {
        mask: u32, state: u32, current_state: u32, path_mtu: u32, path_mig_state: u32, qkey: u32, rq_psn: u32,
        sq_psn: u32, dest_qp_num: u32, access: u32, address: AddressVector, alternate_address: AddressVector,
        max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32, max_recv_sge: u32, max_inline_data: u32,
        pkey_index: u16, alternate_pkey_index: u16, en_sqd_async_notify: u8, sq_draining: u8, max_rd_atomic: u8,
        max_dest_rd_atomic: u8, min_rnr_timer: u8, port: u8, timeout: u8, retry_count: u8, rnr_retry: u8,
        alternate_port: u8, alternate_timeout: u8, reserved: [u8; 5],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// By the header's structures, as a C compiler for x86-64 lays them out.
    #[test]
    fn sizes_and_offsets_are_those_of_the_header() {
        assert_eq!(size_of::<CreateId>(), 24);
        assert_eq!(size_of::<BindIp>(), 40);
        assert_eq!(size_of::<Bind>(), 136);
        assert_eq!(size_of::<ResolveIp>(), 64);
        assert_eq!(size_of::<ResolveAddr>(), 272);
        assert_eq!((size_of::<PathRecord>(), size_of::<RouteResponse>()), (64, 208));
        assert_eq!(offset_of!(RouteResponse, device_index), 200);
        assert_eq!((size_of::<AddressResponse>(), offset_of!(AddressResponse, device_index)), (280, 272));
        assert_eq!((size_of::<ConnectionParameters>(), size_of::<DatagramParameters>()), (272, 304));
        assert_eq!((size_of::<Connect>(), size_of::<Accept>()), (288, 296));
        assert_eq!((size_of::<Event>(), offset_of!(Event, ece)), (336, 328));
        assert_eq!(size_of::<Reject>(), 264);
        assert_eq!((size_of::<JoinIpMulticast>(), size_of::<JoinMulticast>()), (48, 152));
        assert_eq!((size_of::<AddressVector>(), size_of::<QpAttr>()), (32, 144));
        assert_eq!(size_of::<SetOption>(), 24);
        assert_eq!((size_of::<ResolveIbService>(), size_of::<WriteEvent>()), (88, 320));
    }
}
