//! One `fi_info` of the provider.

use crate::info::address::name_of;
use crate::info::allocate;
use crate::info::asked::{Asked, hinted};
use crate::rdma::{Interface, OdpCapabilities};
use std::ffi::{CString, c_int};
use std::net::{IpAddr, SocketAddr};
use weir_fabric_abi::*;
use weir_msg::{Scheme, Settings};

/// What kinds of operations there are.
pub const PRIMARY: u64 = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
/// Their directions.
pub const DIRECTIONS: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
/// What the provider has without being asked.
pub const SECONDARY: u64 = FI_MULTI_RECV | FI_LOCAL_COMM | FI_REMOTE_COMM | FI_SOURCE | FI_DIRECTED_RECV;
/// What must hold of a program's registered memory.
pub const MR_MODE: c_int = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
/// Messages of a peer, and atomics of a peer, are in order.
pub const ORDER: u64 =
    FI_ORDER_SAS | FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW;
/// Flags that may be defaults of sends.
pub const TX_FLAGS: u64 =
    FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE;
/// Flags that may be defaults of receives.
pub const RX_FLAGS: u64 = FI_COMPLETION | FI_MULTI_RECV;
/// Longest message, bytes.
pub const MAX_MESSAGE: usize = 1 << 40;
/// Most pieces of a buffer.
pub const IOV_LIMIT: usize = weir_msg::MAX_PIECES;
/// Operations that programs may count on to be open.
pub const QUEUE: usize = 1024;

/// Atomics of so many bytes are in one message, and so in order.
pub fn longest_ordered(settings: &Settings) -> usize {
    settings.slot as usize / 4
}

/// The scheme on an adapter with these capabilities: without on-demand paging, memory is pinned.
pub fn effective_scheme(scheme: Scheme, odp: &OdpCapabilities) -> Scheme {
    let able = odp.explicit && odp.read && odp.write;
    if able || !scheme.on_demand() { scheme } else { Scheme::PinDown }
}

/// What a program gets, before `next`.
pub fn offer(
    asked: &Asked<'_>,
    settings: &Settings,
    interface: &Interface,
    source: SocketAddr,
    destination: Option<SocketAddr>,
    next: *mut fi_info,
) -> *mut fi_info {
    let raw = allocate::info();
    // SAFETY: new memory, with all attributes.
    let info = unsafe { &mut *raw };
    info.next = next;
    info.caps = capabilities(asked);
    let (source, format) = (name_of(source), if source.is_ipv4() { FI_SOCKADDR_IN } else { FI_SOCKADDR_IN6 });
    info.addr_format = format;
    (info.src_addr, info.src_addrlen) = (allocate::bytes(source.as_bytes()), source.as_bytes().len());
    if let Some(destination) = destination.map(name_of) {
        let bytes = destination.as_bytes();
        (info.dest_addr, info.dest_addrlen) = (allocate::bytes(bytes), bytes.len());
    }
    // SAFETY: as above.
    let (tx, rx, ep) = unsafe { (&mut *info.tx_attr, &mut *info.rx_attr, &mut *info.ep_attr) };
    let caps = info.caps;
    *tx = fi_tx_attr {
        caps: caps & (PRIMARY | FI_SEND | FI_READ | FI_WRITE),
        op_flags: hinted(asked, |hints| hints.tx_attr).map_or(0, |hint| hint.op_flags),
        msg_order: order(hinted(asked, |hints| hints.tx_attr).map_or(0, |hint| hint.msg_order)),
        inject_size: settings.longest_injected(),
        size: QUEUE,
        iov_limit: IOV_LIMIT,
        rma_iov_limit: 1,
        tclass: hinted(asked, |hints| hints.tx_attr).map_or(0, |hint| hint.tclass),
        ..*tx
    };
    *rx = fi_rx_attr {
        caps: caps
            & (PRIMARY | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_MULTI_RECV | FI_SOURCE | FI_DIRECTED_RECV),
        op_flags: hinted(asked, |hints| hints.rx_attr).map_or(0, |hint| hint.op_flags),
        msg_order: order(hinted(asked, |hints| hints.rx_attr).map_or(0, |hint| hint.msg_order)),
        total_buffered_recv: 0,
        size: QUEUE,
        iov_limit: IOV_LIMIT,
        ..*rx
    };
    *ep = fi_ep_attr {
        r#type: FI_EP_RDM,
        protocol: FI_PROTO_UNSPEC,
        protocol_version: 1,
        max_msg_size: MAX_MESSAGE,
        mem_tag_format: 0xaaaa_aaaa_aaaa_aaaa,
        max_order_raw_size: longest_ordered(settings),
        max_order_war_size: longest_ordered(settings),
        max_order_waw_size: longest_ordered(settings),
        tx_ctx_cnt: 1,
        rx_ctx_cnt: 1,
        ..*ep
    };
    domain(asked, info, interface);
    raw
}

/// The order that a program asks for, or all that there is.
fn order(hinted: u64) -> u64 {
    if hinted == FI_ORDER_NONE { ORDER } else { hinted }
}

/// The capabilities that a program gets: those that it asks for, and those that cost nothing.
fn capabilities(asked: &Asked<'_>) -> u64 {
    let all = PRIMARY | DIRECTIONS | SECONDARY;
    let wanted = asked.hints.map_or(0, |hints| hints.caps);
    if wanted == 0 {
        return all;
    }
    let mut caps = wanted;
    if wanted & (FI_MSG | FI_TAGGED) != 0 && wanted & (FI_SEND | FI_RECV) == 0 {
        caps |= FI_SEND | FI_RECV;
    }
    let rma = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    if wanted & (FI_RMA | FI_ATOMIC) != 0 && wanted & rma == 0 {
        caps |= rma;
    }
    // Receives from one peer only would surprise a program that does not ask for them: it may leave the source open.
    caps | (SECONDARY & !FI_DIRECTED_RECV)
}

fn domain(asked: &Asked<'_>, info: &mut fi_info, interface: &Interface) {
    // SAFETY: new memory.
    let (domain, fabric) = unsafe { (&mut *info.domain_attr, &mut *info.fabric_attr) };
    let hint = hinted(asked, |hints| hints.domain_attr);
    let or = |hinted: u32, own: u32| if hinted == 0 { own } else { hinted };
    domain.name = allocate::string(&CString::new(interface.device.as_str()).unwrap_or_default());
    domain.threading = or(hint.map_or(0, |hint| hint.threading), FI_THREAD_SAFE);
    domain.control_progress = FI_PROGRESS_MANUAL;
    domain.data_progress = FI_PROGRESS_MANUAL;
    domain.resource_mgmt = FI_RM_ENABLED;
    domain.av_type = hint.map_or(FI_AV_UNSPEC, |hint| hint.av_type);
    domain.mr_mode = mr_mode(asked);
    domain.mr_key_size = 4;
    domain.cq_data_size = 4;
    domain.cq_cnt = 256;
    domain.ep_cnt = 256;
    domain.tx_ctx_cnt = 256;
    domain.rx_ctx_cnt = 256;
    domain.max_ep_tx_ctx = 1;
    domain.max_ep_rx_ctx = 1;
    domain.cntr_cnt = 256;
    domain.mr_iov_limit = 1;
    domain.mr_cnt = 1 << 16;
    domain.caps = FI_LOCAL_COMM | FI_REMOTE_COMM;
    fabric.name = allocate::string(&CString::new(subnet(interface)).unwrap_or_default());
    fabric.prov_version = FI_VERSION(0, 1);
    fabric.api_version = asked.version;
}

/// How the program's memory must be registered, in words of the version that it asks for.
fn mr_mode(asked: &Asked<'_>) -> c_int {
    let rma = asked.hints.is_none_or(|hints| hints.caps == 0 || hints.caps & (FI_RMA | FI_ATOMIC) != 0);
    let basic = hinted(asked, |hints| hints.domain_attr).is_some_and(|hint| hint.mr_mode == FI_MR_BASIC);
    match rma {
        // MPICH first asks with version 0.0, and takes what it gets as bits.
        _ if basic || asked.version != 0 && FI_VERSION_LT(asked.version, FI_VERSION(1, 5)) => FI_MR_BASIC,
        true => MR_MODE,
        false => 0,
    }
}

/// The name of the network that an interface is in: all endpoints in it reach each other.
pub fn subnet(interface: &Interface) -> String {
    let prefix = u32::from(interface.prefix);
    let network = match interface.address {
        IpAddr::V4(ip) => IpAddr::V4((u32::from(ip) & u32::MAX.checked_shl(32 - prefix).unwrap_or(0)).into()),
        IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) & u128::MAX.checked_shl(128 - prefix).unwrap_or(0)).into()),
    };
    format!("{network}/{prefix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_one_name() {
        let of = |address: &str, prefix| {
            let (address, name, device) = (address.parse().unwrap(), String::new(), String::new());
            subnet(&Interface { address, prefix, name, device, port_num: 1 })
        };
        assert_eq!(of("10.90.1.77", 24), "10.90.1.0/24");
        assert_eq!(of("10.90.1.77", 0), "0.0.0.0/0");
        assert_eq!(of("fd00:0:0:1::5", 64), "fd00:0:0:1::/64");
    }
}
