//! The libfabric that has loaded this library: its version and its log.

use crate::loaded;
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};
use weir_fabric_abi::{FI_LOG_WARN, FI_VERSION, fi_log_level, fi_log_subsys, fi_provider};

type Version = unsafe extern "C" fn() -> u32;
type Enabled = unsafe extern "C" fn(*const fi_provider, fi_log_level, fi_log_subsys) -> c_int;
type Log =
    unsafe extern "C" fn(*const fi_provider, fi_log_level, fi_log_subsys, *const c_char, c_int, *const c_char, ...);

/// The version of the symbols that are used.
const FIRST: Option<&CStr> = Some(c"FABRIC_1.0");

/// Functions of the core, as far as they were found.
struct Core {
    version: Option<Version>,
    enabled: Option<Enabled>,
    log: Option<Log>,
}

static PROVIDER: AtomicPtr<fi_provider> = AtomicPtr::new(std::ptr::null_mut());

/// The provider that lines of the log are from.
pub fn logs_for(provider: *mut fi_provider) {
    PROVIDER.store(provider, Ordering::Release);
}

/// The version of the core: a program that asks for a later one than the provider has does not see the provider.
pub fn version() -> u32 {
    let own = FI_VERSION(1, 17);
    // SAFETY: the function has no arguments.
    core().version.map_or(own, |version| unsafe { version() }).max(own)
}

/// Writes a line to libfabric's log (`FI_LOG_LEVEL=warn`).
pub fn warn(subsystem: fi_log_subsys, text: &str) {
    log(FI_LOG_WARN, subsystem, text);
}

/// Writes a line to libfabric's log.
pub fn log(level: fi_log_level, subsystem: fi_log_subsys, text: &str) {
    let provider = PROVIDER.load(Ordering::Acquire);
    let (Some(enabled), Some(log)) = (core().enabled, core().log) else { return };
    if provider.is_null() {
        return;
    }
    // SAFETY: the provider is static.
    if unsafe { enabled(provider, level, subsystem) } == 0 {
        return;
    }
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: the format takes one string.
    unsafe { log(provider, level, subsystem, c"weir-odp".as_ptr(), 0, c"%s\n".as_ptr(), text.as_ptr()) };
}

fn core() -> &'static Core {
    static CORE: OnceLock<Core> = OnceLock::new();
    CORE.get_or_init(|| {
        // Programs that contain libfabric have no such library.
        let library = loaded::library(c"libfabric.so.1");
        Core {
            // SAFETY: the functions have these types since the symbols' first version.
            version: unsafe { loaded::function(library, c"fi_version", FIRST) },
            // SAFETY: as above.
            enabled: unsafe { loaded::function(library, c"fi_log_enabled", FIRST) },
            // SAFETY: as above.
            log: unsafe { loaded::function(library, c"fi_log", FIRST) },
        }
    })
}
