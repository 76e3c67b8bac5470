//! Threads of the library start in any program: one with no memory left, and one with much thread-local storage.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::sync::mpsc::channel;
use std::time::Duration;

/// More than a thread of the library has as its stack.
const LARGE: usize = 4 << 20;
const STACK: usize = 256 << 10;

thread_local! {
    static STORAGE: Cell<[u8; LARGE]> = const { Cell::new([0; LARGE]) };
    /// Destructors that this thread has registered.
    static REGISTERED: Cell<usize> = const { Cell::new(0) };
}

/// Replaces glibc's, which allocates memory for each destructor of a thread-local variable, and ends the process if
/// there is none. The destructors do not run.
#[unsafe(no_mangle)]
extern "C" fn __cxa_thread_atexit_impl(_: extern "C" fn(*mut c_void), _: *mut c_void, _: *mut c_void) -> c_int {
    REGISTERED.set(REGISTERED.get() + 1);
    0
}

#[test]
fn a_thread_of_the_library_registers_no_destructor() {
    // Before anything else that may register one.
    let before = REGISTERED.get();
    let (registers, registered) = channel();
    weir_device::spawn(c"library", STACK, move || {
        let here = REGISTERED.get();
        registers.send(here).unwrap();
    })
    .unwrap();
    let starting = REGISTERED.get() - before;
    assert_eq!((starting, registered.recv_timeout(Duration::from_secs(60)).unwrap()), (0, 0));
    let of_std = std::thread::spawn(|| REGISTERED.get()).join().unwrap();
    assert!(of_std > 0, "std::thread registers none, so this test does not see them");
}

#[test]
fn a_thread_of_the_library_starts_in_a_program_whose_thread_local_storage_exceeds_its_stack() {
    let (writes, written) = channel();
    weir_device::spawn(c"library", STACK, move || {
        let last = STORAGE.with(|storage| {
            black_box(storage).as_ptr().cast::<u8>().wrapping_add(LARGE - 1) as usize - storage.as_ptr() as usize
        });
        writes.send(last).unwrap();
    })
    .unwrap();
    assert_eq!(written.recv_timeout(Duration::from_secs(60)).unwrap(), LARGE - 1);
}
