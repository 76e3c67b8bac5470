//! Sequenced-packet sockets with names in the abstract namespace.
//!
//! The engine sends and receives by raw system calls, because the C library's functions are cancellation points.

use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, SockaddrLike, UnixAddr,
    bind, getsockopt, listen, recvmsg, sendmsg, setsockopt, socket, sockopt,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The requested size of the send buffer, which the kernel doubles: the limit net.core.wmem_max of most machines. A
/// receiver that takes nothing costs the system this much memory.
const WANTED_BUFFER: usize = 208 << 10;
/// The most connections that wait to be accepted. Any user may connect, so there is room for more than the holder's.
const BACKLOG: i32 = 128;

fn open() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?)
}

/// Claims a name, and listens for connections to it. `AddrInUse` if another process has the name.
pub fn claim(name: &str) -> io::Result<OwnedFd> {
    let socket = open()?;
    bind(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
    listen(&socket, Backlog::new(BACKLOG)?)?;
    Ok(socket)
}

/// Connects to a name. `WouldBlock` if too many connections wait to be accepted there; `ConnectionRefused` if no
/// process has the name.
pub fn connect(name: &str) -> io::Result<OwnedFd> {
    let socket = open()?;
    let _ = setsockopt(&socket, sockopt::SndBuf, &WANTED_BUFFER);
    let address = UnixAddr::new_abstract(name.as_bytes())?;
    // SAFETY: a socket address with its length, valid during the call.
    check(unsafe { libc::syscall(libc::SYS_connect, socket.as_raw_fd(), address.as_ptr(), address.len()) })?;
    Ok(socket)
}

/// The next connection. `WouldBlock` if there is none.
pub fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let nowhere = std::ptr::null_mut::<libc::sockaddr>();
    // SAFETY: no address is asked for.
    let socket = check(unsafe { libc::syscall(libc::SYS_accept4, listener.as_raw_fd(), nowhere, nowhere, flags) })?;
    // SAFETY: a new descriptor, owned from here on.
    Ok(unsafe { OwnedFd::from_raw_fd(socket as i32) })
}

/// Sends one message completely or not at all. `WouldBlock` if the other side has not taken enough of the earlier
/// ones.
pub fn send(socket: &OwnedFd, message: &[u8]) -> io::Result<()> {
    let (flags, nowhere) = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL, std::ptr::null::<libc::sockaddr>());
    let (bytes, len) = (message.as_ptr(), message.len());
    // SAFETY: `len` bytes, valid during the call, to no other address than the socket's.
    check(unsafe { libc::syscall(libc::SYS_sendto, socket.as_raw_fd(), bytes, len, flags, nowhere, 0) })?;
    Ok(())
}

/// Receives a message into `buffer`, which gets its first bytes, and returns its whole length; 0 at the end.
/// Descriptors in the message are not received: there is no room for them. `WouldBlock` if there is no message.
pub fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    let (flags, nowhere) = (libc::MSG_DONTWAIT | libc::MSG_TRUNC, std::ptr::null_mut::<libc::sockaddr>());
    let (bytes, len) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: room for `len` bytes, valid during the call; no address is asked for.
    check(unsafe { libc::syscall(libc::SYS_recvfrom, socket.as_raw_fd(), bytes, len, flags, nowhere, nowhere) })
}

/// As [`send`], with a file that the other side receives.
pub fn send_with_file(socket: &OwnedFd, message: &[u8], file: &OwnedFd) -> io::Result<()> {
    let files = [file.as_raw_fd()];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let control = [ControlMessage::ScmRights(&files)];
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(message)], &control, flags, None)?;
    Ok(())
}

/// As [`receive`], with a file that came with the message. Further files are closed.
pub fn receive_with_file(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut room = nix::cmsg_space!([RawFd; 1]);
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC | MsgFlags::MSG_CMSG_CLOEXEC;
    let mut parts = [IoSliceMut::new(buffer)];
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut room), flags)?;
    let mut file = None;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(files) = control {
            for received in files {
                // SAFETY: a new descriptor of this process, owned from here on.
                file = Some(unsafe { OwnedFd::from_raw_fd(received) });
            }
        }
    }
    Ok((message.bytes, file))
}

/// The user at the other end: of the process that connected, or of the process that listens.
pub fn user(socket: &OwnedFd) -> io::Result<u32> {
    let borrowed: BorrowedFd<'_> = std::os::fd::AsFd::as_fd(socket);
    Ok(getsockopt(&borrowed, sockopt::PeerCredentials)?.uid())
}

fn check(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
