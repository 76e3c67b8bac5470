//! Threads of the library start in any program: one with no memory left, and one with much thread-local storage.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Nearly what a thread of the library asks for as its stack, of which glibc takes it.
const LARGE: usize = 240 << 10;
const STACK: usize = 256 << 10;

thread_local! {
    static STORAGE: RefCell<[u8; LARGE]> = const { RefCell::new([0; LARGE]) };
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
fn a_thread_of_the_library_has_its_stack_beside_the_programs_thread_local_storage() {
    let (writes, written) = channel();
    weir_device::spawn(c"library", STACK, move || {
        let used = [1u8; STACK - (48 << 10)];
        let used = black_box(&used);
        let stored = STORAGE.with_borrow(|storage| black_box(storage)[LARGE - 1]);
        writes.send((stored, used[used.len() - 1])).unwrap();
    })
    .unwrap();
    assert_eq!(written.recv_timeout(Duration::from_secs(60)).unwrap(), (0, 1));
}
