//! Steering rules of raw packet QPs, and their counters.

use crate::abi::*;
use crate::buried::bury;
use crate::context;
use crate::ffi::{EINVAL, EOPNOTSUPP, status};
use crate::living::{leave, object};
use crate::qp;
use crate::registry::new_handle;
use std::ffi::c_int;
use std::mem::offset_of;
use std::sync::Arc;
use weir_device::Errno;
use weir_device::steering::{self, Counter, Kind, Layer, Pattern, Rule};

/// An `ibv_flow` and Weir's part of it.
#[repr(C)]
struct Flow {
    ibv: ibv_flow,
    device: weir_device::Flow,
}

/// An `ibv_counters` and Weir's part of it.
#[repr(C)]
struct Counters {
    ibv: ibv_counters,
    device: Arc<steering::Counters>,
}

/// The only port.
const PORT: u8 = 1;

/// Called through `verbs_context`. EOPNOTSUPP for a QP that is not a raw packet QP, and for rules that Weir does not
/// have: sniffer rules, egress rules, inner headers, tunnels other than VXLAN, tags and actions with a handle.
///
/// # Safety
/// As in verbs.h: `attr` is followed by its specifications.
pub unsafe extern "C" fn create_flow(qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow {
    object(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let own = qp::own_checked(qp)?;
            let rule = rule(&*attr)
                .map_err(|(errno, why)| own.device.refuse(errno.0, format_args!("steering rule: {why}")))?;
            let device = own.device.create_flow(rule)?;
            let ibv = ibv_flow { comp_mask: 0, context: (*qp).context, handle: new_handle() };
            Ok(Box::into_raw(Box::new(Flow { ibv, device })).cast())
        }
    })
}

/// Called through `verbs_context`.
///
/// # Safety
/// `flow` is from [`create_flow`] and not used again.
pub unsafe extern "C" fn destroy_flow(flow: *mut ibv_flow) -> c_int {
    status(|| {
        let leaving = leave(flow, "ibv_destroy_flow")?;
        // SAFETY: guaranteed by the caller; created from a Box.
        unsafe {
            if !context::is_inherited((*flow).context) {
                let _left = leaving.done();
                bury(flow.cast::<Flow>());
            }
        }
        Ok(())
    })
}

/// Called through `verbs_context`. EINVAL for a comp_mask.
///
/// # Safety
/// As in verbs.h.
pub unsafe extern "C" fn create_counters(
    context: *mut ibv_context,
    attr: *mut ibv_counters_init_attr,
) -> *mut ibv_counters {
    object(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            context::own_checked(context)?;
            if (*attr).comp_mask != 0 {
                return Err(EINVAL);
            }
        }
        Ok(Box::into_raw(Box::new(Counters { ibv: ibv_counters { context }, device: Arc::default() })).cast())
    })
}

/// Called through `verbs_context`. EBUSY while a rule has the counters.
///
/// # Safety
/// `counters` is from [`create_counters`]; after success it is not used again.
pub unsafe extern "C" fn destroy_counters(counters: *mut ibv_counters) -> c_int {
    status(|| {
        let leaving = leave(counters, "ibv_destroy_counters")?;
        // SAFETY: guaranteed by the caller; created from a Box.
        unsafe {
            own(counters).check_unused().map_err(|errno| {
                let why = "counters: destroy: steering rules have them: ibv_destroy_flow first";
                context::refuse((*counters).context, errno, why)
            })?;
            let _left = leaving.done();
            bury(counters.cast::<Counters>());
        }
        Ok(())
    })
}

/// Called through `verbs_context`. EOPNOTSUPP with a flow: a counter counts for all rules with the object.
///
/// # Safety
/// As in verbs.h.
pub unsafe extern "C" fn attach_counters_point_flow(
    counters: *mut ibv_counters,
    attr: *mut ibv_counter_attach_attr,
    flow: *mut ibv_flow,
) -> c_int {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (own, attr) = unsafe { (own(counters), &*attr) };
        if !flow.is_null() {
            return Err(EOPNOTSUPP);
        }
        let counter = match attr.counter_desc {
            _ if attr.comp_mask != 0 => return Err(EINVAL),
            IBV_COUNTER_PACKETS => Counter::Packets,
            IBV_COUNTER_BYTES => Counter::Bytes,
            _ => return Err(EINVAL),
        };
        own.attach(counter, attr.index)
    })
}

/// Called through `verbs_context`. EINVAL if a counter's place is beyond the end.
///
/// # Safety
/// As in verbs.h.
pub unsafe extern "C" fn read_counters(
    counters: *mut ibv_counters,
    values: *mut u64,
    count: u32,
    _flags: u32,
) -> c_int {
    status(|| {
        if values.is_null() || count == 0 {
            return Err(EINVAL);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { own(counters).read(std::slice::from_raw_parts_mut(values, count as usize)) }
    })
}

/// # Safety
/// `counters` is alive for `'a`.
unsafe fn own<'a>(counters: *const ibv_counters) -> &'a Arc<steering::Counters> {
    // SAFETY: every `ibv_counters` that Weir creates is the start of a `Counters`.
    unsafe { &(*counters.cast::<Counters>()).device }
}

/// Why a rule is refused.
type Refusal = (Errno, &'static str);

/// # Safety
/// The specifications follow `attr`.
unsafe fn rule(attr: &ibv_flow_attr) -> Result<Rule, Refusal> {
    if attr.comp_mask != 0 || attr.port != PORT {
        return Err((EINVAL, "comp_mask is 0 and port is 1, the only port"));
    }
    if attr.flags & !IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0 {
        return Err((EOPNOTSUPP, "of the flags, only IBV_FLOW_ATTR_FLAGS_DONT_TRAP is supported"));
    }
    let kind = match attr.r#type {
        IBV_FLOW_ATTR_NORMAL => Kind::Normal,
        IBV_FLOW_ATTR_ALL_DEFAULT => Kind::AllDefault,
        IBV_FLOW_ATTR_MC_DEFAULT => Kind::MulticastDefault,
        _ => {
            return Err((
                EOPNOTSUPP,
                "the type is IBV_FLOW_ATTR_NORMAL, ALL_DEFAULT or MC_DEFAULT: there is no sniffer",
            ));
        }
    };
    if kind != Kind::Normal && attr.num_of_specs != 0 {
        return Err((EINVAL, "a default rule has no specifications"));
    }
    let (pattern, counters) = (Pattern::default(), Vec::new());
    let mut rule = Rule { kind, priority: attr.priority, pattern, drops: false, counters };
    // SAFETY: guaranteed by the caller.
    let mut next = unsafe { std::ptr::from_ref(attr).add(1).cast::<u8>() };
    for _ in 0..attr.num_of_specs {
        // SAFETY: the specifications follow each other, each with its size; they need not be aligned.
        unsafe {
            let head = next.cast::<ibv_flow_spec_head>().read_unaligned();
            add(&mut rule, next, head)?;
            next = next.add(usize::from(head.size));
        }
    }
    Ok(rule)
}

/// Adds a specification to a rule.
///
/// # Safety
/// The specification has as many bytes as its head says.
unsafe fn add(rule: &mut Rule, at: *const u8, head: ibv_flow_spec_head) -> Result<(), Refusal> {
    /// # Safety
    /// As above.
    unsafe fn read<T: Copy>(at: *const u8, head: ibv_flow_spec_head) -> Result<T, Refusal> {
        if usize::from(head.size) != size_of::<T>() {
            return Err((EINVAL, "the size of a specification is not that of its structure"));
        }
        // SAFETY: guaranteed by the caller.
        Ok(unsafe { at.cast::<T>().read_unaligned() })
    }
    let pattern = &mut rule.pattern;
    // SAFETY: guaranteed by the caller.
    unsafe {
        match head.r#type {
            IBV_FLOW_SPEC_ETH => {
                let ibv_flow_spec_eth { val, mask, .. } = read(at, head)?;
                pattern.add(Layer::Ethernet, 0, &val.dst_mac, &mask.dst_mac);
                pattern.add(Layer::Ethernet, 6, &val.src_mac, &mask.src_mac);
                pattern.add(Layer::EtherType, 0, &val.ether_type.to_ne_bytes(), &mask.ether_type.to_ne_bytes());
                pattern.add(Layer::Vlan, 0, &val.vlan_tag.to_ne_bytes(), &mask.vlan_tag.to_ne_bytes());
            }
            IBV_FLOW_SPEC_IPV4 => {
                let ibv_flow_spec_ipv4 { val, mask, .. } = read(at, head)?;
                pattern.need(Layer::Ipv4);
                pattern.add(Layer::Ipv4, 12, &val.src_ip.to_ne_bytes(), &mask.src_ip.to_ne_bytes());
                pattern.add(Layer::Ipv4, 16, &val.dst_ip.to_ne_bytes(), &mask.dst_ip.to_ne_bytes());
            }
            IBV_FLOW_SPEC_IPV4_EXT => {
                let ibv_flow_spec_ipv4_ext { val, mask, .. } = read(at, head)?;
                pattern.need(Layer::Ipv4);
                pattern.add(Layer::Ipv4, 12, &val.src_ip.to_ne_bytes(), &mask.src_ip.to_ne_bytes());
                pattern.add(Layer::Ipv4, 16, &val.dst_ip.to_ne_bytes(), &mask.dst_ip.to_ne_bytes());
                pattern.add(Layer::Ipv4, 9, &[val.proto], &[mask.proto]);
                pattern.add(Layer::Ipv4, 1, &[val.tos], &[mask.tos]);
                pattern.add(Layer::Ipv4, 8, &[val.ttl], &[mask.ttl]);
                // The three bits before the fragment offset.
                pattern.add(Layer::Ipv4, 6, &[val.flags << 5], &[mask.flags << 5]);
            }
            IBV_FLOW_SPEC_IPV6 => {
                let ibv_flow_spec_ipv6 { val, mask, .. } = read(at, head)?;
                // Both are in the first word, after the version.
                let word = |filter: &ibv_flow_ipv6_filter| {
                    let class = u32::from(filter.traffic_class) << 20;
                    (class | u32::from_be(filter.flow_label) & 0xf_ffff).to_be_bytes()
                };
                pattern.need(Layer::Ipv6);
                pattern.add(Layer::Ipv6, 0, &word(&val), &word(&mask));
                pattern.add(Layer::Ipv6, 6, &[val.next_hdr], &[mask.next_hdr]);
                pattern.add(Layer::Ipv6, 7, &[val.hop_limit], &[mask.hop_limit]);
                pattern.add(Layer::Ipv6, 8, &val.src_ip, &mask.src_ip);
                pattern.add(Layer::Ipv6, 24, &val.dst_ip, &mask.dst_ip);
            }
            IBV_FLOW_SPEC_TCP | IBV_FLOW_SPEC_UDP => {
                let ibv_flow_spec_tcp_udp { val, mask, .. } = read(at, head)?;
                let layer = if head.r#type == IBV_FLOW_SPEC_TCP { Layer::Tcp } else { Layer::Udp };
                pattern.need(layer);
                pattern.add(layer, 0, &val.src_port.to_ne_bytes(), &mask.src_port.to_ne_bytes());
                pattern.add(layer, 2, &val.dst_port.to_ne_bytes(), &mask.dst_port.to_ne_bytes());
            }
            IBV_FLOW_SPEC_VXLAN_TUNNEL => {
                let ibv_flow_spec_tunnel { val, mask, .. } = read(at, head)?;
                pattern.need(Layer::Vxlan);
                // The identifier has 24 bits.
                let bytes = |filter: &ibv_flow_tunnel_filter| filter.tunnel_id.to_ne_bytes();
                pattern.add(Layer::Vxlan, 4, &bytes(&val)[1..], &bytes(&mask)[1..]);
            }
            IBV_FLOW_SPEC_ACTION_DROP => rule.drops = true,
            IBV_FLOW_SPEC_ACTION_COUNT => {
                let ibv_flow_spec_counter_action { counters, .. } = read(at, head)?;
                rule.counters.push(own(counters).clone());
            }
            _ => {
                return Err((
                    EOPNOTSUPP,
                    "a specification is not supported: those of Ethernet, IPv4, IPv6, TCP, UDP, VXLAN, drop and count are",
                ));
            }
        }
    }
    Ok(())
}

// Specifications follow the attributes without a gap.
const _: () = assert!(size_of::<ibv_flow_attr>() == offset_of!(ibv_flow_attr, flags) + 4);
