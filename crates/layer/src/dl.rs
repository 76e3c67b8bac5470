//! `dlsym` and `dlvsym`, for programs that open libibverbs themselves.
//!
//! Such a program gets a function from the library's own handle, so the preloaded definition is passed over. (An
//! auditing library, rtld-audit(7), sees such lookups too, but it lives in a namespace with a C library and an errno of
//! its own, and there may be only as many as the loader has room for.) A lookup of a name that this library defines,
//! with a handle, returns this library's function, if the library that the handle leads to is the one that this library
//! calls. Everything else jumps to the C library's function, which sees the program's return address: RTLD_NEXT and
//! RTLD_DEFAULT depend on the caller.

use crate::exports;
use crate::quiet::observe;
use crate::real::{self, DLSYM, DLVSYM};
use std::ffi::{CStr, c_char, c_void};

/// As dlsym(3).
///
/// # Safety
/// As dlsym(3).
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        "push rdi", "push rsi", "push rdx",
        "xor edx, edx",
        "call {replacement}",
        "pop rdx", "pop rsi", "pop rdi",
        "test rax, rax",
        "jnz 2f",
        "mov rax, qword ptr [rip + {next}]",
        "jmp rax",
        "2:", "ret",
        replacement = sym replacement,
        next = sym DLSYM,
    )
}

/// As dlvsym(3).
///
/// # Safety
/// As dlvsym(3).
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        "push rdi", "push rsi", "push rdx",
        "call {replacement}",
        "pop rdx", "pop rsi", "pop rdi",
        "test rax, rax",
        "jnz 2f",
        "mov rax, qword ptr [rip + {next}]",
        "jmp rax",
        "2:", "ret",
        replacement = sym replacement,
        next = sym DLVSYM,
    )
}

/// As dlsym(3).
///
/// # Safety
/// As dlsym(3).
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-48]!", "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "mov x2, xzr",
        "bl {replacement}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #48",
        "cbz x16, 2f",
        "mov x0, x16", "ret",
        "2:",
        "adrp x16, {next}", "ldr x16, [x16, :lo12:{next}]", "br x16",
        replacement = sym replacement,
        next = sym DLSYM,
    )
}

/// As dlvsym(3).
///
/// # Safety
/// As dlvsym(3).
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-48]!", "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "str x2, [sp, #32]",
        "bl {replacement}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldr x2, [sp, #32]",
        "ldp x29, x30, [sp], #48",
        "cbz x16, 2f",
        "mov x0, x16", "ret",
        "2:",
        "adrp x16, {next}", "ldr x16, [x16, :lo12:{next}]", "br x16",
        replacement = sym replacement,
        next = sym DLVSYM,
    )
}

/// This library's function in place of the one that the program looks up, or NULL. It also finds the functions to jump
/// to. `version` is NULL for dlsym.
unsafe extern "C" fn replacement(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void {
    let find = || {
        real::look_up();
        if handle == libc::RTLD_NEXT || handle == libc::RTLD_DEFAULT || name.is_null() {
            return None;
        }
        // SAFETY: the caller's own arguments, strings that end with NUL.
        unsafe {
            let export = exports::find(CStr::from_ptr(name))?;
            // Functions of this version have other structures.
            if !version.is_null() && CStr::from_ptr(version) == c"IBVERBS_1.0" {
                return None;
            }
            let found = if version.is_null() { real::dlsym(handle, name) } else { real::dlvsym(handle, name, version) };
            (!found.is_null() && (export.agrees)(found)).then_some(export.function)
        }
    };
    observe(find).flatten().unwrap_or(std::ptr::null_mut())
}
