//! MPTCP of the kernel: a sender and a receiver, because iperf3 has an option for it only since 3.16.

use anyhow::{Context, Result, ensure};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use weir_stage::{Side, Stage};

const BLOCK: usize = 1 << 20;
/// Subflows beside the first, at most: the kernel's limit.
const MOST_SUBFLOWS: usize = 8;
/// Time after which bytes count: the subflows are there.
pub const WARM_UP: Duration = Duration::from_millis(300);

/// Makes connections of a stage use all its links; an error says why they cannot.
pub fn prepare(stage: &Stage, links: usize) -> Result<()> {
    let enabled = || std::fs::read_to_string("/proc/sys/net/mptcp/enabled");
    for side in [Side::A, Side::B] {
        let enabled = stage.enter(side, enabled)?.context("the kernel has no MPTCP")?;
        ensure!(enabled.trim() == "1", "net.mptcp.enabled is 0");
        stage.ip(side, &format!("mptcp limits set subflows {MOST_SUBFLOWS} add_addr_accepted {MOST_SUBFLOWS}"))?;
    }
    // The client connects to each address that the server tells, by the route to it, which is that link.
    for link in 1..links.min(MOST_SUBFLOWS + 1) {
        stage.ip(Side::A, &format!("mptcp endpoint add 198.18.{link}.1 dev eth{link} signal"))?;
    }
    Ok(())
}

/// The receiver: prints bytes per second.
pub fn serve(address: SocketAddr) -> Result<()> {
    let socket = socket()?;
    socket.set_reuse_address(true)?;
    // Subflows come to the addresses of other links.
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())).into())?;
    socket.listen(1)?;
    let (mut stream, _) = TcpListener::from(socket).accept()?;
    let mut block = vec![0; BLOCK];
    let (begin, mut warm, mut bytes, mut newest) = (Instant::now(), None, 0, Instant::now());
    loop {
        let count = match stream.read(&mut block) {
            Ok(0) => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            count => count?,
        };
        newest = Instant::now();
        match warm {
            Some(_) => bytes += count,
            None if begin.elapsed() >= WARM_UP => warm = Some(newest),
            None => {}
        }
    }
    let warm = warm.context("the sender ended before bytes count")?;
    let seconds = (newest - warm).as_secs_f64();
    ensure!(seconds > 0.0, "no time passed");
    println!("{}", bytes as f64 / seconds);
    Ok(())
}

/// The sender.
pub fn send(address: SocketAddr, seconds: f64) -> Result<()> {
    let socket = socket()?;
    socket.connect(&address.into())?;
    let (mut stream, block) = (TcpStream::from(socket), vec![1; BLOCK]);
    let (begin, time) = (Instant::now(), WARM_UP + Duration::from_secs_f64(seconds));
    while begin.elapsed() < time {
        stream.write_all(&block)?;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    // Until the receiver has all and closes its side.
    let _ = stream.read(&mut [0])?;
    Ok(())
}

fn socket() -> Result<Socket> {
    Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).context("the kernel makes no MPTCP socket")
}
