//! The functions of libibverbs and librdmacm, looked up at run time.

use crate::loaded;
use crate::rdma::cm_types::{rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel};
use libc::sockaddr;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use weir_abi::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_gid_entry, ibv_mr, ibv_pd, ibv_port_attr,
    ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
};

/// Defines [`Libraries`] and its loading, from the functions' types.
macro_rules! libraries {
    ($($library:literal of $package:literal {
        $($name:ident: fn($($type:ty),*) $(-> $result:ty)?;)*
    })*) => {
        /// The functions of libibverbs and librdmacm.
        pub struct Libraries {
            $($(pub(crate) $name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*)*
        }

        /// Opens the libraries, which stay until the process ends.
        fn open() -> Result<Libraries, String> {
            $($(let $name;)*)*
            $({
                let library = Library::open($library, $package)?;
                $(
                    let name = concat!(stringify!($name), "\0");
                    let name = CStr::from_bytes_with_nul(name.as_bytes()).expect("a name in ASCII");
                    // SAFETY: the function of that name has the type that is declared here.
                    $name = unsafe { library.function(name)? };
                )*
            })*
            Ok(Libraries { $($($name,)*)* })
        }
    };
}

libraries! {
    c"libibverbs.so.1" of "libibverbs1" {
        ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
        ibv_free_device_list: fn(*mut *mut ibv_device);
        ibv_get_device_name: fn(*mut ibv_device) -> *const c_char;
        ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        _ibv_query_gid_ex: fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
        ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
        ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
        ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        ibv_reg_mr_iova2: fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
        ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
        ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
        ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
        ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
        ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events: fn(*mut ibv_cq, c_uint);
        ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
    }
    c"librdmacm.so.1" of "librdmacm1" {
        rdma_create_event_channel: fn() -> *mut rdma_event_channel;
        rdma_destroy_event_channel: fn(*mut rdma_event_channel);
        rdma_get_cm_event: fn(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        rdma_ack_cm_event: fn(*mut rdma_cm_event) -> c_int;
        rdma_create_id: fn(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_int) -> c_int;
        rdma_destroy_id: fn(*mut rdma_cm_id) -> c_int;
        rdma_bind_addr: fn(*mut rdma_cm_id, *mut sockaddr) -> c_int;
        rdma_resolve_addr: fn(*mut rdma_cm_id, *mut sockaddr, *mut sockaddr, c_int) -> c_int;
        rdma_resolve_route: fn(*mut rdma_cm_id, c_int) -> c_int;
        rdma_create_qp: fn(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
        rdma_destroy_qp: fn(*mut rdma_cm_id);
        rdma_listen: fn(*mut rdma_cm_id, c_int) -> c_int;
        rdma_connect: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        rdma_accept: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        rdma_reject: fn(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        rdma_disconnect: fn(*mut rdma_cm_id) -> c_int;
    }
}

impl Libraries {
    /// Opens both libraries when it is called first. The error says what to install.
    pub fn load() -> Result<&'static Libraries, String> {
        static LIBRARIES: OnceLock<Result<Libraries, String>> = OnceLock::new();
        LIBRARIES.get_or_init(open).as_ref().map_err(String::clone)
    }

    /// # Safety
    /// An open device.
    pub(crate) unsafe fn device_name(&self, context: *mut ibv_context) -> String {
        // SAFETY: the device's own string.
        unsafe { CStr::from_ptr((self.ibv_get_device_name)((*context).device)).to_string_lossy().into_owned() }
    }

    /// Whether libibverbs lists a device.
    pub fn has_devices(&self) -> bool {
        let mut count = 0;
        // SAFETY: the list is freed at once.
        unsafe {
            let list = (self.ibv_get_device_list)(&mut count);
            if !list.is_null() {
                (self.ibv_free_device_list)(list);
            }
            !list.is_null() && count > 0
        }
    }
}

/// An open library.
struct Library {
    handle: *mut c_void,
    file: &'static str,
}

impl Library {
    /// Programs of their own look for no symbols here, so the library's names stay local. librdmacm gets the libibverbs
    /// that is open already.
    fn open(file: &'static CStr, package: &str) -> Result<Library, String> {
        // SAFETY: a string that ends with NUL. The initialisers are those of a library that the system has installed.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let file = file.to_str().expect("a name in ASCII");
        if !handle.is_null() {
            return Ok(Library { handle, file });
        }
        let why = last_error();
        let absent = why.starts_with(file) && why.contains("No such file");
        Err(if absent {
            format!("{file} is not installed: apt install {package}")
        } else {
            format!("{file} cannot be opened: {why}")
        })
    }

    /// The default version of a function.
    ///
    /// # Safety
    /// `F` is the type of the function.
    unsafe fn function<F: Copy>(&self, name: &CStr) -> Result<F, String> {
        // SAFETY: the library is open; the function of that name has the type that the caller states.
        unsafe { loaded::function(self.handle, name, None) }.ok_or_else(|| {
            let name = name.to_string_lossy();
            format!("{} has no function {name}: install release 32 of rdma-core or a later one", self.file)
        })
    }
}

/// What dlerror(3) says.
fn last_error() -> String {
    // SAFETY: the thread's own string, which is copied.
    unsafe {
        let why = libc::dlerror();
        if why.is_null() { "unknown error".into() } else { CStr::from_ptr(why).to_string_lossy().into_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_names_its_package() {
        let why = Library::open(c"libno-such-library.so.1", "libno-such1").err().unwrap();
        assert_eq!(why, "libno-such-library.so.1 is not installed: apt install libno-such1");
    }

    #[test]
    fn a_missing_function_names_the_release() {
        let library = Library::open(c"libc.so.6", "libc6").unwrap();
        // SAFETY: the function is not called.
        let found = unsafe { library.function::<unsafe extern "C" fn()>(c"no_such_function") };
        assert!(found.unwrap_err().contains("libc.so.6 has no function no_such_function: install"));
    }
}
