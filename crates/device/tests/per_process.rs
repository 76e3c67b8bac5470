//! State that a forked child begins anew. In a process of its own: a child holds what other tests have open.

use std::sync::Mutex;
use weir_device::{OnceInherited, PerProcess};

/// Runs `work` in a forked child, which has ten seconds; whether it said yes.
fn child_says(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `work` alone, and ends without returning.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(10);
            libc::_exit(i32::from(!work()));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}

#[test]
fn a_child_does_not_wait_for_a_lock_that_its_parent_held() {
    static STATE: PerProcess<Mutex<Vec<u32>>> = PerProcess::new();
    let mut held = STATE.get().lock().unwrap();
    held.push(1);
    assert!(child_says(|| {
        let mut own = STATE.get().lock().unwrap();
        own.push(2);
        *own == [2]
    }));
    drop(held);
    assert_eq!(*STATE.get().lock().unwrap(), [1], "the parent has its own still");
}

#[test]
fn a_child_does_again_what_was_half_done() {
    static ONCE: OnceInherited = OnceInherited::new();
    let mut done = false;
    ONCE.call_once(|| {
        assert!(child_says(|| {
            let mut again = false;
            ONCE.call_once(|| again = true);
            again
        }));
        done = true;
    });
    assert!(done);
    assert!(child_says(|| {
        ONCE.call_once(|| panic!("it holds for the child too"));
        true
    }));
}
