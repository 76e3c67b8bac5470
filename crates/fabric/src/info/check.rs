//! Whether the provider can do what a program asks for.

use crate::NAME;
use crate::info::asked::{Asked, hinted};
use crate::info::offer::{
    DIRECTIONS, IOV_LIMIT, MAX_MESSAGE, MR_MODE, ORDER, PRIMARY, QUEUE, RX_FLAGS, SECONDARY, TX_FLAGS, longest_ordered,
    subnet,
};
use crate::rdma::Interface;
use std::ffi::{CStr, c_char};
use weir_fabric_abi::*;
use weir_msg::Settings;

/// Compares a program's hints with the provider. The error says what does not fit.
pub fn check(asked: &Asked<'_>, settings: &Settings) -> Result<(), String> {
    let Some(hints) = asked.hints else { return Ok(()) };
    none(hints.caps & !(PRIMARY | DIRECTIONS | SECONDARY), "capabilities")?;
    let formats = [FI_FORMAT_UNSPEC, FI_SOCKADDR, FI_SOCKADDR_IN, FI_SOCKADDR_IN6];
    ensure(formats.contains(&hints.addr_format), "the address format")?;
    endpoint(asked, settings)?;
    domain(asked)?;
    transmit(asked, settings)?;
    receive(asked)?;
    if let Some(hint) = hinted(asked, |hints| hints.fabric_attr)
        && !hint.prov_name.is_null()
    {
        // SAFETY: the program's string.
        let name = unsafe { CStr::from_ptr(hint.prov_name) };
        ensure(name.to_bytes().eq_ignore_ascii_case(NAME.to_bytes()), "the provider's name")?;
    }
    Ok(())
}

/// Whether the device and the network of an interface have the names that a program asks for.
pub fn names(asked: &Asked<'_>, interface: &Interface) -> bool {
    // SAFETY: the program's strings, or none.
    let is = |name: *const c_char, own: &str| unsafe {
        name.is_null() || CStr::from_ptr(name).to_bytes().eq_ignore_ascii_case(own.as_bytes())
    };
    hinted(asked, |hints| hints.domain_attr).is_none_or(|hint| is(hint.name, &interface.device))
        && hinted(asked, |hints| hints.fabric_attr).is_none_or(|hint| is(hint.name, &subnet(interface)))
}

fn endpoint(asked: &Asked<'_>, settings: &Settings) -> Result<(), String> {
    let Some(hint) = hinted(asked, |hints| hints.ep_attr) else { return Ok(()) };
    // No other kind of endpoint is offered, so that libfabric does not build datagrams above it.
    ensure(matches!(hint.r#type, FI_EP_UNSPEC | FI_EP_RDM), "the type of endpoint")?;
    ensure(hint.protocol == FI_PROTO_UNSPEC, "the protocol")?;
    ensure(hint.max_msg_size <= MAX_MESSAGE, "the length of messages")?;
    ensure(hint.tx_ctx_cnt <= 1 && hint.rx_ctx_cnt <= 1, "the number of contexts")?;
    ensure(hint.auth_key_size == 0, "authorization keys")?;
    let longest = hint.max_order_raw_size.max(hint.max_order_war_size).max(hint.max_order_waw_size);
    ensure(longest <= longest_ordered(settings), "the length of atomics in order")
}

fn domain(asked: &Asked<'_>) -> Result<(), String> {
    let Some(hint) = hinted(asked, |hints| hints.domain_attr) else { return Ok(()) };
    ensure(hint.threading <= FI_THREAD_ENDPOINT, "the threading")?;
    ensure(hint.control_progress != FI_PROGRESS_AUTO && hint.data_progress != FI_PROGRESS_AUTO, "automatic progress")?;
    ensure(hint.av_type <= FI_AV_TABLE, "the type of address vector")?;
    ensure(hint.cq_data_size <= 4, "the size of completion data")?;
    ensure(hint.mr_key_size <= 8, "the size of keys")?;
    ensure(hint.max_ep_tx_ctx <= 1 && hint.max_ep_rx_ctx <= 1, "the number of contexts of an endpoint")?;
    ensure(hint.max_ep_stx_ctx == 0 && hint.max_ep_srx_ctx == 0, "shared contexts")?;
    none(hint.caps & !(FI_LOCAL_COMM | FI_REMOTE_COMM), "capabilities of the domain")?;
    ensure(hint.auth_key_size == 0, "authorization keys")?;
    memory(asked, hint.mr_mode)
}

/// Programs say which conditions of registration they can meet.
fn memory(asked: &Asked<'_>, mode: std::ffi::c_int) -> Result<(), String> {
    let caps = asked.hints.map_or(0, |hints| hints.caps);
    let rma = caps == 0 || caps & (FI_RMA | FI_ATOMIC) != 0;
    if FI_VERSION_LT(asked.version, FI_VERSION(1, 5)) {
        return ensure(mode != FI_MR_SCALABLE, "FI_MR_SCALABLE");
    }
    ensure(mode == FI_MR_BASIC || !rma || mode & MR_MODE == MR_MODE, "the memory registration mode")
}

fn transmit(asked: &Asked<'_>, settings: &Settings) -> Result<(), String> {
    let Some(hint) = hinted(asked, |hints| hints.tx_attr) else { return Ok(()) };
    none(hint.caps & !(PRIMARY | DIRECTIONS | SECONDARY), "capabilities of sends")?;
    none(hint.op_flags & !TX_FLAGS, "default flags of sends")?;
    none(hint.msg_order & !ORDER, "the order of sends")?;
    none(hint.comp_order & !FI_ORDER_NONE, "the order of completions")?;
    ensure(hint.inject_size <= settings.longest_injected(), "the size of injected messages")?;
    ensure(hint.size <= QUEUE, "the number of sends")?;
    ensure(hint.iov_limit <= IOV_LIMIT && hint.rma_iov_limit <= 1, "the number of buffers")
}

fn receive(asked: &Asked<'_>) -> Result<(), String> {
    let Some(hint) = hinted(asked, |hints| hints.rx_attr) else { return Ok(()) };
    none(hint.caps & !(PRIMARY | DIRECTIONS | SECONDARY), "capabilities of receives")?;
    none(hint.op_flags & !RX_FLAGS, "default flags of receives")?;
    none(hint.msg_order & !ORDER, "the order of receives")?;
    none(hint.comp_order & !FI_ORDER_NONE, "the order of completions")?;
    ensure(hint.size <= QUEUE && hint.iov_limit <= IOV_LIMIT, "the number of receives")
}

fn ensure(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

fn none(bits: u64, what: &str) -> Result<(), String> {
    if bits == 0 { Ok(()) } else { Err(format!("{what}: {bits:#x}")) }
}
