//! Address handles: the destination of a datagram.

use crate::abi::*;
use crate::context;
use crate::ffi::{EINVAL, number, status};
use crate::living::{check, leave, object};
use crate::pd;
use crate::query::from_address;
use crate::registry::new_handle;
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_device::{AddressHandle, Errno};

/// An `ibv_ah` with its attributes.
#[repr(C)]
struct Ah {
    ibv: ibv_ah,
    device: AddressHandle,
}

/// EINVAL without a GRH, or if `sgid_index` names an empty entry of the GID table: RoCE routes by GID only.
///
/// # Safety
/// `pd` is alive, `attr` readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: guaranteed by the caller.
    object(|| unsafe { create(pd, &*attr) })
}

/// # Safety
/// `ah` is from `ibv_create_ah`; it is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    status(|| {
        let leaving = leave(ah, "ibv_destroy_ah")?;
        // SAFETY: guaranteed by the caller; created from a Box.
        unsafe {
            if context::is_inherited((*ah).context) {
                return Ok(());
            }
            let _left = leaving.done();
            drop(Box::from_raw(ah.cast::<Ah>()));
        }
        Ok(())
    })
}

/// # Safety
/// `context` is open, `wc` readable, `grh` too where `wc` says so; `attr` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    number(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { *attr = reply_to(context, port, &*wc, grh)? };
        Ok(0)
    })
}

/// # Safety
/// `pd` is alive, `wc` readable, `grh` too where `wc` says so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    // SAFETY: guaranteed by the caller.
    object(|| unsafe { create(pd, &reply_to((*pd).context, port, &*wc, grh)?) })
}

/// The adapter's number for an address handle.
///
/// # Safety
/// `ah` is alive.
pub unsafe fn number_of(ah: *const ibv_ah) -> u32 {
    // SAFETY: every `ibv_ah` that Weir creates is the start of an `Ah`.
    unsafe { (*ah.cast::<Ah>()).device.number() }
}

/// # Safety
/// `pd` is alive.
unsafe fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah, Errno> {
    check(pd, "ibv_create_ah")?;
    // SAFETY: guaranteed by the caller; the context of a living PD is open.
    let (own, context) = unsafe { (pd::own(pd), (*pd).context) };
    if attr.port_num != 1 {
        let why = format_args!("address handle: there is no port {}: the device has port 1", attr.port_num);
        return Err(own.device.refuse(libc::EINVAL, why));
    }
    let device = own.device.create_ah(&crate::attr::address(attr))?;
    let ibv = ibv_ah { context, pd, handle: new_handle() };
    Ok(Box::into_raw(Box::new(Ah { ibv, device })).cast())
}

/// The address vector of the sender of a received datagram (IBTA 11.2.2.1, annex A17.9.2).
///
/// # Safety
/// `context` is open, `grh` readable where `wc` says so.
unsafe fn reply_to(
    context: *mut ibv_context,
    port: u8,
    wc: &ibv_wc,
    grh: *const ibv_grh,
) -> Result<ibv_ah_attr, Errno> {
    let mut attr = ibv_ah_attr {
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        port_num: port,
        ..Default::default()
    };
    if wc.wc_flags & IBV_WC_GRH == 0 {
        return Ok(attr);
    }
    // SAFETY: the completion says that there is a GRH, which is 40 bytes long.
    let header = unsafe { &*grh.cast::<[u8; 40]>() };
    let received = Received::parse(header).ok_or(EINVAL)?;
    // SAFETY: guaranteed by the caller.
    let gids = unsafe { context::own(context) }.device.gids();
    let ours = gids.iter().position(|gid| gid.map(|a| a.to_canonical()) == Some(received.to));
    attr.is_global = 1;
    attr.grh = ibv_global_route {
        dgid: from_address(received.from),
        flow_label: received.flow_label,
        sgid_index: ours.and_then(|index| u8::try_from(index).ok()).ok_or(EINVAL)?,
        hop_limit: received.hop_limit,
        traffic_class: received.traffic_class,
    };
    Ok(attr)
}

/// The fields of a received datagram's network header.
#[derive(Debug, PartialEq, Eq)]
struct Received {
    from: IpAddr,
    to: IpAddr,
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
}

impl Received {
    /// Parses 40 bytes of IPv6 header, or 20 arbitrary bytes and an IPv4 header.
    fn parse(header: &[u8; 40]) -> Option<Received> {
        if header[0] >> 4 == 6 {
            let first = u32::from_be_bytes(header[..4].try_into().ok()?);
            let address = |at: usize| <[u8; 16]>::try_from(&header[at..at + 16]).ok().map(Ipv6Addr::from);
            return Some(Received {
                from: address(8)?.to_canonical(),
                to: address(24)?.to_canonical(),
                flow_label: first & 0xf_ffff,
                hop_limit: header[7],
                traffic_class: (first >> 20) as u8,
            });
        }
        let v4 = &header[20..];
        let address = |at: usize| <[u8; 4]>::try_from(&v4[at..at + 4]).ok().map(Ipv4Addr::from);
        (v4[0] == 0x45).then_some(())?;
        Some(Received {
            from: address(12)?.into(),
            to: address(16)?.into(),
            flow_label: 0,
            hop_limit: v4[8],
            traffic_class: v4[1],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_and_ipv6_headers_are_parsed() {
        let mut header = [0; 40];
        assert_eq!(Received::parse(&header), None);
        header[20..].copy_from_slice(&[0x45, 0x20, 0, 60, 0, 0, 0x40, 0, 63, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let v4 = Received::parse(&header).unwrap();
        assert_eq!((v4.from, v4.to), ([10, 0, 0, 1].into(), [10, 0, 0, 2].into()));
        assert_eq!((v4.hop_limit, v4.traffic_class), (63, 0x20));

        header = [0; 40];
        header[..8].copy_from_slice(&[0x6a, 0xb1, 0x23, 0x45, 0, 20, 17, 64]);
        header[23] = 1;
        header[39] = 2;
        let v6 = Received::parse(&header).unwrap();
        assert_eq!(v6.from, "::1".parse::<IpAddr>().unwrap());
        assert_eq!((v6.flow_label, v6.traffic_class, v6.hop_limit), (0x12345, 0xab, 64));
    }
}
