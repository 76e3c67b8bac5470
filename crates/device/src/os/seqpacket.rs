//! Sequenced-packet sockets with names in the abstract namespace.
//!
//! The engine sends and receives by raw system calls, because the C library's functions are cancellation points.

use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, SockaddrLike, UnixAddr, bind, getsockopt,
    listen, sendmsg, setsockopt, socket, sockopt,
};
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The requested size of the send buffer, which the kernel doubles: the limit net.core.wmem_max of most machines. A
/// receiver that takes nothing costs the system this much memory.
const WANTED_BUFFER: usize = 208 << 10;
/// The most connections that wait to be accepted. Any user may connect, so there is room for more than the holder's.
pub const BACKLOG: i32 = 128;
/// Room for the most files of one message, 253, and their header.
const CONTROL_WORDS: usize = 129;

fn open() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?)
}

/// Claims a name, and accepts connections to it. `AddrInUse` if another process has the name.
pub fn claim(name: &str) -> io::Result<OwnedFd> {
    let socket = reserve(name)?;
    accept_connections(&socket)?;
    Ok(socket)
}

/// Claims a name; connections to it are refused until [`accept_connections`].
pub fn reserve(name: &str) -> io::Result<OwnedFd> {
    let socket = open()?;
    bind(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
    Ok(socket)
}

/// Accepts connections to a name from now on.
pub fn accept_connections(socket: &OwnedFd) -> io::Result<()> {
    Ok(listen(socket, Backlog::new(BACKLOG)?)?)
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
pub fn receive(socket: &impl AsRawFd, buffer: &mut [u8]) -> io::Result<usize> {
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

/// As [`receive`], with a file that came with the message. Further files are closed. Error: ENOBUFS if the kernel could
/// not deliver all files, because this process has too few free descriptors.
pub fn receive_with_file(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut control = [0u64; CONTROL_WORDS];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: zeros are a message header without parts.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header names one part and the control buffer, with their lengths, all valid during the call.
    let len = check(unsafe { libc::syscall(libc::SYS_recvmsg, socket.as_raw_fd(), &raw mut header, flags) })?;
    let file = take_files(&header).into_iter().next();
    if header.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
    }
    Ok((len, file))
}

/// The files of a received message. They are owned also where the kernel says that some are missing.
fn take_files(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut files = Vec::new();
    // SAFETY: the kernel filled the control buffer of this header; the macros stay within its length. Each descriptor
    // of SCM_RIGHTS is a new one of this process, owned from here on.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while let Some(part) = control.as_ref() {
            if (part.cmsg_level, part.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let count = (part.cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                let data = libc::CMSG_DATA(control).cast::<RawFd>();
                files.extend((0..count).map(|at| OwnedFd::from_raw_fd(data.add(at).read_unaligned())));
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
    files
}

/// Whether the process or the system has no descriptor or memory left for a socket.
pub fn is_short(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS))
}

/// The user at the other end: of the process that connected, or of the process that listens.
pub fn user(socket: &OwnedFd) -> io::Result<u32> {
    let borrowed: BorrowedFd<'_> = std::os::fd::AsFd::as_fd(socket);
    Ok(getsockopt(&borrowed, sockopt::PeerCredentials)?.uid())
}

/// The process at the other end, which connected or listens; 0 if it is in a PID namespace of which this one knows
/// nothing.
pub fn process(socket: &OwnedFd) -> io::Result<i32> {
    let borrowed: BorrowedFd<'_> = std::os::fd::AsFd::as_fd(socket);
    Ok(getsockopt(&borrowed, sockopt::PeerCredentials)?.pid())
}

fn check(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_message_with_many_files_leaves_no_descriptor_open() {
        let (from, to) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let (from, to) = (OwnedFd::from(from), OwnedFd::from(to));
        let file = from.as_fd().try_clone_to_owned().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        let writer = OwnedFd::from(writer);
        let files = [writer.as_raw_fd(); 253];
        let control = [ControlMessage::ScmRights(&files)];
        sendmsg::<()>(from.as_raw_fd(), &[IoSlice::new(b"files")], &control, MsgFlags::empty(), None).unwrap();
        let mut buffer = [0; 16];
        let (len, first) = receive_with_file(&to, &mut buffer).unwrap();
        assert_eq!((&buffer[..len], first.is_some()), (&b"files"[..], true));
        drop((first, writer));
        // Without waiting: an open writer is an error here.
        // SAFETY: no pointers.
        unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        let mut end = [0];
        assert_eq!(std::io::Read::read(&mut &reader, &mut end).unwrap(), 0, "all writers of the pipe are closed");
        send_with_file(&from, b"one", &file).unwrap();
        assert!(receive_with_file(&to, &mut buffer).unwrap().1.is_some());
        send(&from, b"none").unwrap();
        assert!(receive_with_file(&to, &mut buffer).unwrap().1.is_none());
    }
}
