//! All accesses to application memory.
//!
//! Applications unmap registered memory, register memory that they may not access, and shrink files under their
//! mappings. The copy and the atomics below survive that: if a SIGSEGV or SIGBUS comes from one of their
//! instructions, they return a fault. Any other signal goes to the program (`handlers.rs`). Threads that block these
//! signals unblock them for the copy (`mask.rs`).
//!
//! Order of stores: the last 64 bytes of a copy are written last, in ascending order. In copies of 512 bytes and
//! more, the bytes before them are written by `rep movsb`, in any order. Programs that spin on the end of a WRITE
//! (perftest's `ib_write_lat`, MPI, NCCL) depend on that. Aligned 8-byte words are written by single stores.

use crate::{handlers, mask};
use std::arch::global_asm;

/// The memory is not mapped, or does not permit the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// Copies `len` bytes. After a fault some of them may have been copied.
///
/// # Safety
/// One side is application memory, in any state. The other must be valid for `len` bytes. [`install_handler`] ran.
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
    // SAFETY: faults on either side are caught; the caller guarantees the side that is not application memory.
    match mask::with_faults_unblocked(|| unsafe { weir_guarded_copy(dst, src, len) }) {
        0 => Ok(()),
        _ => Err(Fault),
    }
}

/// Compare-and-swap on application memory; returns the value before.
///
/// # Safety
/// `addr` is 8-byte aligned application memory, in any state. [`install_handler`] ran.
pub unsafe fn compare_swap(addr: *mut u64, compare: u64, swap: u64) -> Result<u64, Fault> {
    let mut before = 0;
    // SAFETY: `before` is a local; a fault on `addr` is caught.
    match mask::with_faults_unblocked(|| unsafe { weir_guarded_cas(addr, compare, swap, &mut before) }) {
        0 => Ok(before),
        _ => Err(Fault),
    }
}

/// Fetch-and-add on application memory; returns the value before.
///
/// # Safety
/// As [`compare_swap`].
pub unsafe fn fetch_add(addr: *mut u64, add: u64) -> Result<u64, Fault> {
    let mut before = 0;
    // SAFETY: `before` is a local; a fault on `addr` is caught.
    match mask::with_faults_unblocked(|| unsafe { weir_guarded_faa(addr, add, &mut before) }) {
        0 => Ok(before),
        _ => Err(Fault),
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!(
    "Weir's guarded copy supports Linux on x86-64 only; another target needs its own in guarded/src/copy.rs"
);

unsafe extern "C" {
    fn weir_guarded_copy(dst: *mut u8, src: *const u8, len: usize) -> usize;
    fn weir_guarded_cas(addr: *mut u64, compare: u64, swap: u64, before: *mut u64) -> usize;
    fn weir_guarded_faa(addr: *mut u64, add: u64, before: *mut u64) -> usize;
    static weir_guard_start: u8;
    static weir_guard_end: u8;
    static weir_guard_fault: u8;
}

// None of these functions uses the stack, so that the handler can jump to `weir_guard_fault` from any instruction.
global_asm!(
    ".pushsection .text.weir_guard,\"ax\",@progbits",
    ".hidden weir_guarded_copy, weir_guarded_cas, weir_guarded_faa",
    ".hidden weir_guard_start, weir_guard_end, weir_guard_fault",
    ".globl weir_guarded_copy, weir_guarded_cas, weir_guarded_faa",
    ".globl weir_guard_start, weir_guard_end, weir_guard_fault",
    ".p2align 6",
    "weir_guard_start:",
    ".type weir_guarded_copy,@function",
    "weir_guarded_copy:", // rdi = dst, rsi = src, rdx = len
    "cmp rdx, 512",
    "jb 1f",
    "lea rcx, [rdx - 64]", // all but the last 64 bytes; stores may be in any order
    "rep movsb",
    "mov edx, 64",
    "1:",
    "mov rcx, rdx",
    "shr rcx, 6",
    "jz 3f",
    ".p2align 4",
    "2:", // 64 bytes per iteration
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "dec rcx",
    "jnz 2b",
    "3:",
    "and edx, 63",
    "jz 9f",
    "mov ecx, edx",
    "shr ecx, 3",
    "jz 5f",
    "4:", // 8 bytes per iteration
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "add rsi, 8",
    "add rdi, 8",
    "dec ecx",
    "jnz 4b",
    "5:",
    "and edx, 7",
    "jz 9f",
    "6:",
    "mov al, [rsi]",
    "mov [rdi], al",
    "inc rsi",
    "inc rdi",
    "dec edx",
    "jnz 6b",
    "9:",
    "xor eax, eax",
    "ret",
    ".type weir_guarded_cas,@function",
    "weir_guarded_cas:", // rdi = addr, rsi = compare, rdx = swap, rcx = before
    "mov rax, rsi",
    "lock cmpxchg [rdi], rdx",
    "mov [rcx], rax",
    "xor eax, eax",
    "ret",
    ".type weir_guarded_faa,@function",
    "weir_guarded_faa:", // rdi = addr, rsi = add, rdx = before
    "lock xadd [rdi], rsi",
    "mov [rdx], rsi",
    "xor eax, eax",
    "ret",
    "weir_guard_end:",
    "weir_guard_fault:",
    "mov eax, 1",
    "ret",
    ".popsection",
);

/// Installs the fault handler in front of the program's handlers, once per process.
pub fn install_handler() {
    handlers::install(claim);
}

/// Makes the copy and the atomics return a fault; false if the instruction is not one of theirs.
fn claim(context: &mut libc::ucontext_t) -> bool {
    let registers = &mut context.uc_mcontext.gregs;
    let rip = registers[libc::REG_RIP as usize] as usize;
    let range = (&raw const weir_guard_start as usize)..(&raw const weir_guard_end as usize);
    let ours = range.contains(&rip);
    if ours {
        registers[libc::REG_RIP as usize] = &raw const weir_guard_fault as i64;
    }
    ours
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_any_length_and_alignment_changes_only_its_range() {
        install_handler();
        let src: Vec<u8> = (0..400).map(|i| (i * 31) as u8).collect();
        let src: Vec<u8> = src.iter().cycle().take(5000).copied().collect();
        for len in (0..300).chain(500..530).chain([4095, 4096, 4097]) {
            for offset in [0, 1, 7, 33] {
                let mut dst = vec![0xaa; 5000];
                // SAFETY: both ranges are within their vectors.
                unsafe { copy(dst.as_mut_ptr().add(offset), src.as_ptr().add(3), len) }.unwrap();
                assert_eq!(&dst[offset..offset + len], &src[3..3 + len]);
                assert!(dst[..offset].iter().chain(&dst[offset + len..]).all(|b| *b == 0xaa));
            }
        }
    }

    #[test]
    fn inaccessible_memory_is_a_fault() {
        install_handler();
        let mut word = 0u64;
        // SAFETY: a new mapping, half of which is inaccessible, and the zero page, which is never mapped.
        unsafe {
            let page = libc::mmap(
                std::ptr::null_mut(),
                8192,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            ) as *mut u8;
            // It is not unmapped, because another test could then map the same address.
            libc::mprotect(page.add(4096).cast(), 4096, libc::PROT_NONE);
            let ours = vec![7u8; 8192];
            assert_eq!(copy(page, ours.as_ptr(), 4096), Ok(()));
            assert_eq!(copy(page, ours.as_ptr(), 4097), Err(Fault));
            let mut sink = vec![0u8; 8192];
            assert_eq!(copy(sink.as_mut_ptr(), page.add(100), 4096), Err(Fault));
            assert_eq!(copy(sink.as_mut_ptr(), 64 as *const u8, 8), Err(Fault));
            assert_eq!(compare_swap(64 as *mut u64, 0, 1), Err(Fault));
            assert_eq!(fetch_add(64 as *mut u64, 1), Err(Fault));
            libc::munmap(page.cast(), 8192);
            assert_eq!(fetch_add(&mut word, 5), Ok(0));
            assert_eq!(compare_swap(&mut word, 5, 9), Ok(5));
            assert_eq!(compare_swap(&mut word, 5, 1), Ok(9));
        }
        assert_eq!(word, 9);
    }
}
