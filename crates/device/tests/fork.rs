//! A forked child and what it inherits of an adapter.

use std::os::fd::RawFd;
use std::time::Duration;
use weir_device::Context;

/// It drops the inherited device after it has opened files of its own, which got the numbers of the device's.
#[test]
fn a_child_keeps_the_files_that_it_opened() {
    let context = Context::open("weir_lo").expect("the loopback interface is there");
    let events = context.async_fd();
    // The engine's thread sleeps: nobody else holds on to the adapter.
    std::thread::sleep(Duration::from_millis(20));
    // SAFETY: the child does nothing that another thread's locks could keep from it, and ends without returning.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let files = [(); 64].map(|()| null());
        drop(context);
        let lost = files.iter().filter(|file| !is_open(**file)).count();
        let kept = is_open(events);
        // SAFETY: ends the child, with a number below 256.
        unsafe { libc::_exit(lost as i32 + i32::from(kept)) };
    }
    let mut status = 0;
    // SAFETY: our child, and an integer on the stack.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "descriptors of the child that are closed");
    assert!(is_open(events), "the parent has its own still");
    context.alloc_pd().unwrap();
}

fn null() -> RawFd {
    // SAFETY: opens a file.
    unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) }
}

fn is_open(file: RawFd) -> bool {
    // SAFETY: asks for flags.
    unsafe { libc::fcntl(file, libc::F_GETFD) >= 0 }
}
