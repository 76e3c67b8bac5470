//! The list of devices, and the properties of a device that need no open context.
//!
//! Devices live until the process ends: a program may free a list while a context of one of its devices is open, and
//! programs compare the addresses of devices from two lists.

use crate::abi::*;
use crate::ffi::{ENODEV, fill, guard, object, zeroed};
use crate::log;
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicPtr, Ordering};
use weir_device::{DeviceInfo, refused};

/// Bytes of zeros behind each `ibv_device`. The distribution's provider libraries look for their own data there;
/// zeros mean "not mine". They read fewer bytes than these.
const ZEROS_BEHIND: usize = 256;

/// An `ibv_device` and Weir's data about it.
#[repr(C)]
pub struct Device {
    pub ibv: ibv_device,
    zeros: [u8; ZEROS_BEHIND],
    pub own: DeviceOwn,
    /// The device that was found after this one, or NULL.
    next: AtomicPtr<Device>,
}

/// Weir's part of a device.
pub struct DeviceOwn {
    pub name: String,
    pub ifname: String,
    /// Zeros if the interface has no MAC address.
    pub mac: [u8; 6],
    /// In network byte order.
    pub guid: u64,
    index: usize,
}

/// # Safety
/// As in verbs.h: `num_devices` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    object(|| {
        log::start();
        let mut devices: Vec<*mut ibv_device> =
            weir_device::devices()?.iter().map(|info| interned(info).cast()).collect();
        if devices.is_empty() {
            for why in weir_device::unusable_interfaces()? {
                tracing::warn!("no device here: {why}");
            }
            let hidden = weir_device::hidden_devices()?;
            if !hidden.is_empty() {
                let names: Vec<&str> = hidden.iter().map(|info| info.ifname.as_str()).collect();
                refused(
                    ENODEV.0,
                    format_args!(
                        "no device here: WEIR_INTERFACE or WEIR_LINKS names no interface with an address. There are: {}. Name \
                         one, or leave the variable out (`weir devices` shows them)",
                        names.join(", ")
                    ),
                );
            }
        }
        if !num_devices.is_null() {
            // SAFETY: the caller guarantees that it is writable.
            unsafe { *num_devices = devices.len() as c_int };
        }
        devices.push(std::ptr::null_mut());
        // malloc, because the list is freed without its length.
        let bytes = size_of_val(&devices[..]);
        // SAFETY: the new block holds all entries; a failed allocation is checked.
        unsafe {
            let list = libc::malloc(bytes).cast::<*mut ibv_device>();
            if list.is_null() {
                return Err(weir_device::Errno(libc::ENOMEM));
            }
            list.copy_from_nonoverlapping(devices.as_ptr(), devices.len());
            Ok(list)
        }
    })
}

/// # Safety
/// `list` is from `ibv_get_device_list`, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: allocated by malloc in `ibv_get_device_list`.
    unsafe { libc::free(list.cast()) }
}

/// # Safety
/// `device` is from a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: devices are never freed.
    unsafe { (*device).name.as_ptr() }
}

/// # Safety
/// `device` is from a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    // SAFETY: see `own`.
    guard(-1, || unsafe { own(device) }.index as c_int)
}

/// # Safety
/// `device` is from a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: see `own`.
    guard(0, || unsafe { own(device) }.guid)
}

/// The number of a device in this process: programs see it as `uverbs<number>`.
pub fn number_of(info: &DeviceInfo) -> usize {
    // SAFETY: devices are never freed.
    unsafe { &*interned(info) }.own.index
}

/// Weir's part of a device.
///
/// # Safety
/// `device` is from a list that Weir returned.
pub unsafe fn own<'a>(device: *const ibv_device) -> &'a DeviceOwn {
    // SAFETY: every `ibv_device` that Weir creates is the start of a `Device`, which is never freed.
    unsafe { &(*device.cast::<Device>()).own }
}

/// Returns the process's only `Device` with this name and GUID. A forked child keeps the devices of its parent: the
/// list needs no lock and is consistent at any time.
fn interned(info: &DeviceInfo) -> *mut Device {
    static FIRST: AtomicPtr<Device> = AtomicPtr::new(std::ptr::null_mut());
    let guid = info.guid.to_be();
    let (mut link, mut index, mut new) = (&FIRST, 0, std::ptr::null_mut::<Device>());
    loop {
        // SAFETY: NULL, or a device of the list, which is never freed.
        while let Some(known) = unsafe { link.load(Ordering::Acquire).as_ref() } {
            if known.own.name == info.name && known.own.guid == guid {
                if !new.is_null() {
                    // SAFETY: created below, and no other thread has seen it.
                    drop(unsafe { Box::from_raw(new) });
                }
                return std::ptr::from_ref(known).cast_mut();
            }
            (link, index) = (&known.next, index + 1);
        }
        if !new.is_null() {
            // SAFETY: as above.
            drop(unsafe { Box::from_raw(new) });
        }
        let (name, ifname) = (info.name.clone(), info.ifname.clone());
        let mac = info.mac.unwrap_or_default();
        new = Box::into_raw(Box::new(Device::new(DeviceOwn { name, ifname, mac, guid, index })));
        if link.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return new;
        }
    }
}

impl Device {
    fn new(own: DeviceOwn) -> Device {
        // SAFETY: integers, arrays and pointers.
        let mut ibv: ibv_device = unsafe { zeroed() };
        ibv.node_type = IBV_NODE_CA;
        ibv.transport_type = IBV_TRANSPORT_IB;
        fill(&mut ibv.name, &own.name);
        fill(&mut ibv.dev_name, &format!("uverbs{}", own.index));
        fill(&mut ibv.dev_path, &format!("/sys/class/infiniband_verbs/uverbs{}", own.index));
        fill(&mut ibv.ibdev_path, &format!("/sys/class/infiniband/{}", own.name));
        Device { ibv, zeros: [0; ZEROS_BEHIND], own, next: AtomicPtr::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn a_device_has_names_and_zeros_behind_its_ibv_device() {
        let own = DeviceOwn {
            name: "weir_test0".into(),
            ifname: "test0".into(),
            mac: [0; 6],
            guid: 0x0200_0000_0000_0001u64.to_be(),
            index: 3,
        };
        let mut device = Device::new(own);
        assert_eq!(device.zeros, [0; ZEROS_BEHIND]);
        assert_eq!(offset_of!(Device, zeros), size_of::<ibv_device>());
        let public = (&raw mut device).cast::<ibv_device>();
        // SAFETY: a device created as for lists.
        unsafe {
            assert_eq!(crate::ffi::text(ibv_get_device_name(public)), Some("weir_test0"));
            assert_eq!(crate::ffi::text((*public).dev_name.as_ptr()), Some("uverbs3"));
            assert_eq!(ibv_get_device_guid(public).to_ne_bytes(), [2, 0, 0, 0, 0, 0, 0, 1]);
            assert_eq!(ibv_get_device_index(public), 3);
        }
    }

    #[test]
    fn a_device_keeps_its_address() {
        let addresses = || weir_device::devices().unwrap().iter().map(interned).collect::<Vec<_>>();
        assert_eq!(addresses(), addresses());
    }
}
