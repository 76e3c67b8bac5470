//! State that a forked child creates anew. In a process of its own, because a child inherits what other tests have
//! open.

use std::sync::Mutex;
use weir_device::{OnceInherited, PerProcess};

/// Runs `work` in a forked child, which has ten seconds. Returns whether `work` returned true.
fn child_says(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs only `work`, and ends without returning.
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
    assert_eq!(*STATE.get().lock().unwrap(), [1], "the parent's state is unchanged");
}

#[test]
fn a_child_repeats_work_that_its_parent_has_not_finished() {
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
