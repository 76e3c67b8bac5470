//! The two ends of a pair: what they tell each other over TCP before the job starts, and what each knows then.

use super::socket;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a pair measures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Job {
    /// Messages of `message` bytes, from client to server or both ways at once.
    Throughput { message: usize, both_ways: bool, seconds: f64 },
    /// Ping-pong of one datagram, as long as an 8-byte WRITE.
    Latency { seconds: f64 },
}

/// The parameters that each end sends to the other before the job starts.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Parameters {
    pub job: Job,
    /// UDP port of the end that sends these parameters.
    pub port: u16,
    /// Bytes that the other end may have in flight.
    pub window: u64,
}

/// The state of an end after the exchange of parameters.
pub struct Connection {
    pub job: Job,
    pub socket: UdpSocket,
    pub peer: SocketAddr,
    /// Bytes that this end may have in flight.
    pub window: u64,
    /// Bytes that the other end may have in flight.
    pub peer_window: u64,
    /// Set when the other end closes the control connection.
    pub over: Arc<AtomicBool>,
    control: TcpStream,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The watching thread holds the connection too, so that closing this descriptor alone would not end it.
        let _ = self.control.shutdown(Shutdown::Both);
    }
}

/// Sends the parameters of this end.
pub fn send_parameters(control: &mut TcpStream, job: Job, socket: &UdpSocket) -> Result<()> {
    let ours = Parameters { job, port: socket.local_addr()?.port(), window: socket::window(socket)? };
    writeln!(control, "{}", serde_json::to_string(&ours)?)?;
    Ok(())
}

/// Receives those of the other end.
pub fn read_parameters(control: &mut TcpStream) -> Result<Parameters> {
    let mut line = String::new();
    // Each end sends a single line and then no more, so no byte is lost in the reader's buffer.
    BufReader::new(control).read_line(&mut line)?;
    serde_json::from_str(&line).context("the other end's parameters")
}

/// Both ends know each other's parameters.
pub fn connect(control: TcpStream, theirs: Parameters, socket: UdpSocket, ip: IpAddr, job: Job) -> Result<Connection> {
    let over = Arc::new(AtomicBool::new(false));
    let (mut watched, flag) = (control.try_clone()?, over.clone());
    // The thread blocks until the other end closes the connection, so it takes no CPU time from the measurement.
    std::thread::spawn(move || {
        let _ = watched.read(&mut [0]);
        flag.store(true, Ordering::Relaxed);
    });
    let peer = SocketAddr::new(ip, theirs.port);
    let peer_window = socket::window(&socket)?;
    Ok(Connection { job, socket, peer, window: theirs.window, peer_window, over, control })
}
