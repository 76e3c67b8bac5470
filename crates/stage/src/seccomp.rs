//! Seccomp filters: rules by which system calls fail.

use std::io;

/// A rule: a system call with certain arguments fails with `errno`.
pub struct Rule {
    pub call: libc::c_long,
    /// Index of an argument and the value of its lower half, all of which must be equal. Empty: any arguments.
    pub wanted: Vec<(u32, u32)>,
    pub errno: i32,
}

impl Rule {
    /// Any call of this number fails.
    pub fn every(call: libc::c_long, errno: i32) -> Rule {
        Rule { call, wanted: vec![], errno }
    }

    fn program(&self) -> Vec<libc::sock_filter> {
        let mut tests = vec![(NUMBER, self.call as u32)];
        tests.extend(self.wanted.iter().map(|(index, value)| (argument(*index), *value)));
        let count = tests.len();
        let each = |(at, (offset, value)): (usize, (u32, u32))| {
            // A failed test jumps behind this rule: over the remaining tests, two instructions each, and its last one.
            [load(offset), jump(libc::BPF_JEQ, value, 0, (2 * (count - at - 1) + 1) as u8)]
        };
        let mut program: Vec<_> = tests.into_iter().enumerate().flat_map(each).collect();
        program.push(fail(self.errno));
        program
    }
}

/// A filter with these rules, which allows all other calls up to number `last`; later ones do not exist (ENOSYS).
pub fn filter(last: u32, rules: &[Rule]) -> Vec<libc::sock_filter> {
    let mut program = vec![load(NUMBER), jump(libc::BPF_JGT, last, 0, 1), fail(libc::ENOSYS)];
    program.extend(rules.iter().flat_map(Rule::program));
    program.push(statement(libc::BPF_RET, libc::SECCOMP_RET_ALLOW));
    program
}

/// Sets a filter for the calling thread and all threads and processes that it starts later. It cannot be removed.
pub fn set(filter: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program during the call.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Offsets in `struct seccomp_data`: the system call's number, and the lower half of an argument.
const NUMBER: u32 = 0;
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

fn load(offset: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

fn fail(errno: i32) -> libc::sock_filter {
    statement(libc::BPF_RET, libc::SECCOMP_RET_ERRNO | errno as u32)
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn jump(test: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_JMP | test | libc::BPF_K) as u16, jt, jf, k }
}
