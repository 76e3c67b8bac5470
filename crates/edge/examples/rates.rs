//! Throughput, latency, and where CPU time goes: `rates PORT` on one side, `rates PORT HOST` on the other. `EDGE_MODE=polling`,
//! `EDGE_COPIES=1` (copies on both sides) and `EDGE_MEASURE=1` (thesis 3.1: what CPU time goes to) change a side.

use std::net::ToSocketAddrs;
use std::time::{Duration, Instant};
use weir_edge::{Allow, Connection, Error, Event, Kind, Mode, Node, OperationFlags, Options};

const AREA: usize = 16 << 20;
const LONG: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of operations that are under way.
const AHEAD: usize = 8 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let port = arguments.next().ok_or("give a port")?.parse()?;
    let has = |name: &str| std::env::var_os(name).is_some();
    let mode =
        if std::env::var("EDGE_MODE").is_ok_and(|mode| mode == "polling") { Mode::Polling } else { Mode::Events };
    let copies = has("EDGE_COPIES");
    let options = Options {
        port,
        mode,
        copy_sends: copies,
        copy_receives: copies,
        measure: has("EDGE_MEASURE"),
        ..Options::default()
    };
    // SAFETY: the other side uses the area only, through the pointer that it is told.
    let allow = unsafe { Allow::whole_process() };
    let area = vec![1u8; AREA].leak().as_mut_ptr();
    let (node, connection) = match arguments.next() {
        None => {
            let node = Node::listen(options)?;
            let connection = node.wait(&allow, None)?;
            (node, connection)
        }
        Some(host) => {
            let remote = (host, port).to_socket_addrs()?.next().ok_or("the host has no address")?;
            let node = Node::open(options)?;
            let connection = node.request(remote, &allow, PATIENCE)?;
            connection.tell(0)?;
            (node, connection)
        }
    };
    let is_first = notified(&connection);
    if let Ok(0) = is_first {
        connection.tell(area.expose_provenance() as u64)?;
        // Answers ping-pongs, until the connection ends.
        let remote = notified(&connection)?;
        while let Ok(address) = notified(&connection) {
            if address == area.expose_provenance() as u64 {
                issue(&connection, remote, area, 8, OperationFlags::NOTIFY)?;
            }
        }
    } else {
        let remote = is_first?;
        connection.tell(area.expose_provenance() as u64)?;
        for size in [4 << 10, 64 << 10, 1 << 20] {
            one_way(&node, &connection, remote, area, size)?;
        }
        ping_pong(&connection, remote, area)?;
    }
    println!("{:?}\n{:?}", node.counters()?, node.times()?);
    Ok(())
}

fn issue(
    connection: &Connection,
    remote: u64,
    area: *mut u8,
    size: usize,
    flags: OperationFlags,
) -> Result<u32, Error> {
    // SAFETY: the area lives until the end.
    unsafe { connection.operation(Kind::Write, remote, area, size, flags) }
}

fn notified(connection: &Connection) -> Result<u64, Error> {
    loop {
        if let Event::Notified { address, .. } = connection.wait_event(None)? {
            return Ok(address);
        }
    }
}

fn one_way(node: &Node, connection: &Connection, remote: u64, area: *mut u8, size: usize) -> Result<(), Error> {
    let (begin, before) = (Instant::now(), node.counters()?);
    let (mut under_way, mut complete) = (0usize, 0usize);
    while begin.elapsed() < LONG || under_way > 0 {
        while begin.elapsed() < LONG && under_way * size < AHEAD {
            let at = under_way * size;
            issue(connection, remote + at as u64, area.wrapping_add(at), size, OperationFlags::empty())?;
            under_way += 1;
        }
        if let Event::Completed { result, .. } = connection.wait_event(Some(PATIENCE))? {
            result?;
            (under_way, complete) = (under_way - 1, complete + 1);
        }
    }
    let (seconds, after) = (begin.elapsed().as_secs_f64(), node.counters()?);
    let packets = after.packets_sent - before.packets_sent;
    let sent = (after.bytes_sent - before.bytes_sent) as f64 / (complete * size) as f64;
    let gigabits = (complete * size) as f64 * 8e-9 / seconds;
    println!("{size:8} bytes: {gigabits:6.2} Gbit/s, {:.0} packets/s, {sent:.3} sent of 1", packets as f64 / seconds);
    Ok(())
}

fn ping_pong(connection: &Connection, remote: u64, area: *mut u8) -> Result<(), Error> {
    let mut times = vec![];
    let begin = Instant::now();
    while begin.elapsed() < LONG {
        let before = Instant::now();
        issue(connection, remote, area, 8, OperationFlags::NOTIFY)?;
        notified(connection)?;
        times.push(before.elapsed() / 2);
    }
    times.sort_unstable();
    println!("8 bytes: {:?} one way (median), {:?} (99 %)", times[times.len() / 2], times[times.len() * 99 / 100]);
    Ok(())
}
