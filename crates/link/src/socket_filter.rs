//! Classic BPF programs by which the kernel drops packets before they reach a socket.

use socket2::{SockFilter, SockRef};
use std::io;

/// Replaces the program of a socket.
pub fn attach(socket: &SockRef<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    let program: Vec<SockFilter> = program.iter().map(|one| SockFilter::new(one.code, one.jt, one.jf, one.k)).collect();
    socket.attach_filter(&program)
}
