//! MPTCP of the kernel: a sender and a receiver, because iperf3 has an option for it only since 3.16.

use anyhow::{Context, Result, ensure};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use weir_stage::{Side, Stage};

const BLOCK: usize = 1 << 20;
/// Subflows beside the first, at most: the kernel's limit.
const MOST_SUBFLOWS: usize = 8;
/// Time after which bytes count: all subflows are full.
const WARM_UP: Duration = Duration::from_millis(300);
/// Time for the subflows to be there. The kernel takes more than a second if it has to send a SYN again.
const SUBFLOWS_WITHIN: Duration = Duration::from_secs(5);

/// Makes connections of a stage use all its links; an error says why they cannot.
pub fn prepare(stage: &Stage, links: usize) -> Result<()> {
    let enabled = || std::fs::read_to_string("/proc/sys/net/mptcp/enabled");
    for side in [Side::A, Side::B] {
        let enabled = stage.enter(side, enabled)?.context("the kernel has no MPTCP")?;
        ensure!(enabled.trim() == "1", "net.mptcp.enabled is 0");
        stage.ip(side, &format!("mptcp limits set subflows {MOST_SUBFLOWS} add_addr_accepted {MOST_SUBFLOWS}"))?;
    }
    // The client connects to each address that the server tells, by the route to it, which is that link.
    for link in 1..=expected(links) {
        stage.ip(Side::A, &format!("mptcp endpoint add 198.18.{link}.1 dev eth{link} signal"))?;
    }
    Ok(())
}

/// Subflows beside the first of a connection over so many links.
pub fn expected(links: usize) -> usize {
    (links - 1).min(MOST_SUBFLOWS)
}

/// The receiver: prints bytes per second.
pub fn serve(address: SocketAddr) -> Result<()> {
    let socket = socket()?;
    socket.set_reuse_address(true)?;
    // Subflows come to the addresses of other links.
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())).into())?;
    // Subflows wait here, too.
    socket.listen(64)?;
    // It listens to the end: subflows that come later need it.
    let listener = TcpListener::from(socket);
    let (mut stream, _) = listener.accept()?;
    let mut block = vec![0; BLOCK];
    // The first byte comes before the subflows are there.
    stream.read_exact(&mut [0])?;
    let (mut begin, mut warm, mut bytes, mut newest) = (None, None, 0, Instant::now());
    loop {
        let count = match stream.read(&mut block) {
            Ok(0) => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            count => count?,
        };
        newest = Instant::now();
        match warm {
            Some(_) => bytes += count,
            None if begin.get_or_insert(newest).elapsed() >= WARM_UP => warm = Some(newest),
            None => {}
        }
    }
    let warm = warm.context("the sender ended before bytes count")?;
    let seconds = (newest - warm).as_secs_f64();
    ensure!(seconds > 0.0, "no time passed");
    println!("{}", bytes as f64 / seconds);
    Ok(())
}

/// The sender. Its bytes go by so many subflows beside the first.
pub fn send(address: SocketAddr, seconds: f64, expected: usize) -> Result<()> {
    let socket = socket()?;
    socket.connect(&address.into())?;
    let (mut stream, block) = (TcpStream::from(socket), vec![1; BLOCK]);
    stream.write_all(&[1])?;
    let begin = Instant::now();
    while subflows(&stream)? < expected {
        ensure!(begin.elapsed() < SUBFLOWS_WITHIN, "the kernel has made {} of {expected} subflows", subflows(&stream)?);
        std::thread::sleep(Duration::from_millis(5));
    }
    let (begin, time) = (Instant::now(), WARM_UP + Duration::from_secs_f64(seconds));
    while begin.elapsed() < time {
        stream.write_all(&block)?;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    // Until the receiver has all and closes its side.
    let _ = stream.read(&mut [0])?;
    Ok(())
}

/// The number of subflows beside the first.
fn subflows(stream: &TcpStream) -> Result<usize> {
    // From <linux/mptcp.h>. The number is the first byte of `struct mptcp_info`.
    const SOL_MPTCP: libc::c_int = 284;
    const MPTCP_INFO: libc::c_int = 1;
    let (mut info, mut len) = ([0u8; 1], 1 as libc::socklen_t);
    // SAFETY: the kernel writes at most `len` bytes.
    let result =
        unsafe { libc::getsockopt(stream.as_raw_fd(), SOL_MPTCP, MPTCP_INFO, info.as_mut_ptr().cast(), &raw mut len) };
    ensure!(result == 0, "MPTCP_INFO: {}", std::io::Error::last_os_error());
    Ok(info[0].into())
}

fn socket() -> Result<Socket> {
    Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).context("the kernel makes no MPTCP socket")
}
