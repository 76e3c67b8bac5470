//! A forked child and the adapter that it inherits.

use std::os::fd::RawFd;
use std::time::Duration;
use weir_device::Context;

/// The child drops the inherited device after it has opened files, which reuse the device's descriptor numbers.
#[test]
fn a_child_keeps_the_files_that_it_opened() {
    let context = Context::open("weir_lo").expect("the loopback interface is there");
    let events = context.async_fd();
    // By now the engine's thread sleeps and holds no reference to the adapter.
    std::thread::sleep(Duration::from_millis(20));
    // SAFETY: the child does nothing that needs a lock of another thread, and ends without returning.
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
    // SAFETY: a child of this process, and an integer on the stack.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "descriptors of the child that were closed or left open by mistake");
    assert!(is_open(events), "the parent's descriptor is still open");
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
