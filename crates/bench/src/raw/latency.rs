//! Ping-pong of small datagrams between two ends that poll their sockets.

use super::connection::Connection;
use super::framing::SMALL_WRITE;
use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Without a reply for this long, the client sends its datagram again.
const PATIENCE: Duration = Duration::from_millis(20);

/// Replies to each datagram until the client closes the control connection.
pub fn serve(connection: &Connection) -> Result<()> {
    while !connection.over.load(Ordering::Relaxed) {
        if arrived(&connection.socket)? {
            connection.socket.send_to(&[0; SMALL_WRITE], connection.peer)?;
        }
    }
    Ok(())
}

/// Median round trip over `time`, nanoseconds, without the first tenth as warm-up.
pub fn run_client(connection: &Connection, time: Duration) -> Result<u64> {
    let mut round_trips = Histogram::<u64>::new_with_bounds(1, 1_000_000_000, 3)?;
    let start = Instant::now();
    while start.elapsed() < time {
        let sent = Instant::now();
        connection.socket.send_to(&[0; SMALL_WRITE], connection.peer)?;
        while !arrived(&connection.socket)? && sent.elapsed() < PATIENCE {}
        if sent.duration_since(start) > time / 10 && sent.elapsed() < PATIENCE {
            round_trips.saturating_record(sent.elapsed().as_nanos() as u64);
        }
    }
    ensure!(!round_trips.is_empty(), "the raw server does not reply");
    Ok(round_trips.value_at_quantile(0.5))
}

fn arrived(socket: &UdpSocket) -> io::Result<bool> {
    match socket.recv_from(&mut [0; 2 * SMALL_WRITE]) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(e) => Err(e),
    }
}
