//! rdma_cm files of a real process: descriptors, events, forked children. On the loopback interface.

use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};
use weir_device::Errno;
use weir_rdmacm::abi::*;
use weir_rdmacm::{Written, before_close, closed, duplicated, inode_of, open, write};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// Writes a command; the response, if there is one, goes to `response`.
fn run<C: IntoBytes + Immutable>(fd: RawFd, cmd: u32, body: C, room: usize) -> Result<Written, Errno> {
    let body = body.as_bytes();
    let header = Header { cmd, input: body.len() as u16, output: room as u16 };
    let bytes = [header.as_bytes(), body].concat();
    let inode = inode_of(fd).ok_or(Errno(libc::EBADF))?;
    // SAFETY: a whole command; its response address has the room that it says.
    unsafe { write(fd, inode, bytes.as_ptr(), bytes.len()) }
}

fn create(fd: RawFd) -> u32 {
    let mut created = Created::new_zeroed();
    let response = (&raw mut created).expose_provenance() as u64;
    let command = CreateId { uid: 1, response, port_space: port_space::TCP, ..CreateId::default() };
    run(fd, command::CREATE_ID, command, size_of::<Created>()).unwrap();
    created.id
}

fn bind(fd: RawFd, id: u32, port: u16) -> Result<Written, Errno> {
    let mut address = [0u8; 28];
    address[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    address[2..4].copy_from_slice(&port.to_be_bytes());
    address[4..8].copy_from_slice(&[127, 0, 0, 1]);
    run(fd, command::BIND_IP, BindIp { response: 0, address, id }, 0)
}

/// Resolving an own address raises an event at once.
fn resolve(fd: RawFd, id: u32) {
    let mut destination = [0u8; 28];
    destination[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    destination[2..8].copy_from_slice(&[0, 99, 127, 0, 0, 1]);
    let command = ResolveIp { source: [0; 28], destination, id, timeout_ms: 1000 };
    run(fd, command::RESOLVE_IP, command, 0).unwrap();
}

fn event(fd: RawFd) -> Result<Option<Event>, Errno> {
    let mut bytes = [0u8; size_of::<Event>()];
    let response = bytes.as_mut_ptr().expose_provenance() as u64;
    match run(fd, command::GET_EVENT, GetEvent { response }, bytes.len())? {
        Written::Wait => Ok(None),
        Written::Done(_) => Ok(Some(Event::read_from_bytes(&bytes).unwrap())),
    }
}

fn is_readable(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: a structure on the stack.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 && poll.revents & libc::POLLIN != 0 }
}

/// As the interposed close.
fn close(fd: RawFd) {
    let inode = before_close(fd);
    // SAFETY: a descriptor of this test.
    assert_eq!(unsafe { libc::close(fd) }, 0);
    if let Some(inode) = inode {
        closed(inode);
    }
}

/// Binds a free port, and returns it.
fn bind_any(fd: RawFd, id: u32) -> u16 {
    bind(fd, id, 0).unwrap();
    let mut route = RouteResponse::new_zeroed();
    let response = (&raw mut route).expose_provenance() as u64;
    run(fd, command::QUERY_ROUTE, Query { response, id, option: 0 }, size_of::<RouteResponse>()).unwrap();
    u16::from_be_bytes([route.source[2], route.source[3]])
}

#[test]
fn a_file_is_readable_while_it_has_events() {
    let fd = open(libc::O_CLOEXEC).unwrap();
    assert!(!is_readable(fd));
    assert_eq!(event(fd).map(|event| event.is_none()), Ok(true));
    let ids: Vec<u32> = (0..100).map(|_| create(fd)).collect();
    ids.iter().for_each(|id| resolve(fd, *id));
    for id in &ids[..99] {
        assert!(is_readable(fd));
        let event = event(fd).unwrap().unwrap();
        assert_eq!((event.event, event.id, event.status), (event::ADDR_RESOLVED, *id, 0));
    }
    assert!(is_readable(fd));
    let mut reported = Reported::new_zeroed();
    let response = (&raw mut reported).expose_provenance() as u64;
    let destroy = |id| DestroyId { response, id, reserved: 0 };
    run(fd, command::DESTROY_ID, destroy(ids[99]), size_of::<Reported>()).unwrap();
    assert!(!is_readable(fd), "the event of a destroyed id is gone");
    run(fd, command::DESTROY_ID, destroy(ids[0]), size_of::<Reported>()).unwrap();
    assert_eq!(reported.events, 1);
    close(fd);
}

#[test]
fn the_last_close_of_a_file_frees_its_ports() {
    let (first, other) = (open(0).unwrap(), open(0).unwrap());
    let id = create(first);
    let port = bind_any(first, id);
    // SAFETY: a new descriptor.
    let copy = unsafe { libc::dup(first) };
    duplicated(first, copy);
    close(first);
    let rival = create(other);
    // Where no device has 127.0.0.1, it stands for any address, with the kernel's error for that.
    let taken = [libc::EADDRINUSE, libc::EADDRNOTAVAIL].map(|error| Err(Errno(error)));
    assert!(taken.contains(&bind(other, rival, port)), "the copy keeps it");
    resolve(copy, id);
    assert!(is_readable(copy) && event(copy).unwrap().is_some() && !is_readable(copy));
    close(copy);
    bind(other, rival, port).unwrap();
    close(other);
}

#[test]
fn a_file_that_is_closed_unseen_ends_too() {
    let (first, other) = (open(0).unwrap(), open(0).unwrap());
    let id = create(first);
    let port = bind_any(first, id);
    // SAFETY: a descriptor of this test.
    unsafe { libc::syscall(libc::SYS_close, first) };
    // The number stands for another file.
    let file = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(inode_of(first), None);
    let rival = create(other);
    let end = Instant::now() + Duration::from_secs(10);
    while bind(other, rival, port) == Err(Errno(libc::EADDRINUSE)) {
        assert!(Instant::now() < end, "the agent does not notice it");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(file);
    close(other);
}

#[test]
fn a_child_has_no_file_of_its_parent_and_can_open_its_own() {
    let fd = open(0).unwrap();
    let id = create(fd);
    let taken = bind_any(fd, id);
    // SAFETY: the child calls what a child of a program with threads may call here, and ends without returning.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = run(fd, command::LISTEN, Listen { id, backlog: 0 }, 0) == Err(Errno(libc::EACCES));
        close(fd);
        let own = open(0).is_ok_and(|own| {
            let id = create(own);
            bind(own, id, taken) == Err(Errno(libc::EADDRINUSE)) && bind(own, id, 0).is_ok()
        });
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!(refused && own))) };
    }
    let mut status = 0;
    // SAFETY: a child of this process, and an integer on the stack.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child, "{}", io::Error::last_os_error());
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
    run(fd, command::LISTEN, Listen { id, backlog: 0 }, 0).unwrap();
    close(fd);
}
