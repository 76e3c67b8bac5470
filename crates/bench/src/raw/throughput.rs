//! Bytes per second, one way or both ways at once, with a window and acknowledgements that prevent losses.

use super::connection::Connection;
use super::framing::Cycle;
use super::socket::{Incoming, Outgoing};
use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bursts of one sendmmsg call.
const BATCH: usize = 4;
/// Receive slots: the bursts that a call can receive.
const SLOTS: usize = 8;
/// Length of an acknowledgement: BTH, AETH and ICRC of a RoCE ACK. It begins with 1, data with 0.
const ACK: usize = 12 + 4 + 4;
/// Without an acknowledgement for this long, all bytes in flight count as lost.
const PATIENCE: Duration = Duration::from_millis(200);

/// The client's result, without the first tenth of the time as warm-up.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Throughput {
    /// Length of the measurement.
    pub seconds: f64,
    /// UDP payload bytes that arrived, both directions.
    pub arrived: u64,
    /// UDP payload bytes that were lost.
    pub lost: u64,
    /// Share of application bytes in the arrived bytes.
    pub payload_share: f64,
}

impl Throughput {
    /// Payload bytes per second; an error if more than 1 % was lost, because then the figure is no ceiling.
    pub fn payload_per_second(&self) -> Result<f64> {
        ensure!(self.lost * 100 <= self.arrived, "{} of {} bytes were lost", self.lost, self.lost + self.arrived);
        Ok(self.arrived as f64 * self.payload_share / self.seconds)
    }
}

/// Receives, and sends too if `both_ways`, until the client closes the control connection.
pub fn serve(connection: &Connection, message: usize, both_ways: bool) -> Result<()> {
    let mut end = End::new(connection, &Cycle::of(message));
    while !connection.over.load(Ordering::Relaxed) {
        end.turn(both_ways)?;
    }
    Ok(())
}

/// Sends for `time`.
pub fn run_client(connection: &Connection, message: usize, both_ways: bool, time: Duration) -> Result<Throughput> {
    let cycle = Cycle::of(message);
    let mut end = End::new(connection, &cycle);
    let start = Instant::now();
    while start.elapsed() < time / 10 {
        end.turn(true)?;
    }
    let (began, before) = (Instant::now(), (end.acknowledged + end.received, end.lost));
    while start.elapsed() < time {
        end.turn(true)?;
        ensure!(!connection.over.load(Ordering::Relaxed), "the raw server has ended");
    }
    ensure!(both_ways == (end.received > 0), "the raw server sends only one way, or sends although it should not");
    let arrived = end.acknowledged + end.received - before.0;
    ensure!(
        arrived > 0,
        "nothing arrived: {} bytes sent, {} acknowledged, {} lost",
        end.sent,
        end.acknowledged,
        end.lost
    );
    Ok(Throughput {
        seconds: began.elapsed().as_secs_f64(),
        arrived,
        lost: end.lost.saturating_sub(before.1),
        payload_share: cycle.payload as f64 / cycle.wire() as f64,
    })
}

/// The counts of sent and received bytes of one end.
struct End<'a> {
    connection: &'a Connection,
    outgoing: Outgoing,
    incoming: Incoming,
    /// Next burst of the cycle.
    next: usize,
    sent: u64,
    /// Bytes from this end that the other end has acknowledged.
    acknowledged: u64,
    lost: u64,
    last_progress: Instant,
    /// Bytes received from the other end.
    received: u64,
    /// Received bytes that this end has acknowledged: a quarter of the window at a time, to keep the cost low.
    ack_sent: u64,
}

impl<'a> End<'a> {
    fn new(connection: &'a Connection, cycle: &Cycle) -> Self {
        End {
            connection,
            // A short cycle is repeated, so that one call can send several bursts.
            outgoing: Outgoing::new(connection.peer, &cycle.bursts.repeat(BATCH.div_ceil(cycle.bursts.len()))),
            incoming: Incoming::new(SLOTS),
            next: 0,
            sent: 0,
            acknowledged: 0,
            lost: 0,
            last_progress: Instant::now(),
            received: 0,
            ack_sent: 0,
        }
    }

    /// Sends as the window allows, receives and acknowledges.
    fn turn(&mut self, sends: bool) -> Result<()> {
        if sends {
            self.send()?;
        }
        let socket = &self.connection.socket;
        for i in 0..self.incoming.receive(socket)? {
            let bytes = self.incoming.slot(i);
            if bytes.len().is_multiple_of(ACK) && bytes[0] == 1 {
                // The kernel may have joined several ACKs; the last has the highest count.
                let last = &bytes[bytes.len() - 8..];
                self.acknowledged = u64::from_le_bytes(last.try_into()?);
                // Bytes that counted as lost may only have been late.
                self.lost = self.lost.min(self.sent - self.acknowledged);
                self.last_progress = Instant::now();
            } else {
                self.received += bytes.len() as u64;
            }
        }
        if self.received - self.ack_sent >= self.connection.peer_window / 4 {
            acknowledge(socket, self.connection, self.received)?;
            self.ack_sent = self.received;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        let bursts = self.outgoing.bursts();
        let mut room = self.connection.window.saturating_sub(self.in_flight());
        let mut count = 0;
        while count < BATCH && self.next + count < bursts.len() && bursts[self.next + count].len as u64 <= room {
            room -= bursts[self.next + count].len as u64;
            count += 1;
        }
        if count == 0 {
            self.give_up_lost();
            return Ok(());
        }
        let taken = self.outgoing.send(&self.connection.socket, self.next, count)?;
        let sent = &self.outgoing.bursts()[self.next..self.next + taken];
        self.sent += sent.iter().map(|b| b.len as u64).sum::<u64>();
        self.next = (self.next + taken) % self.outgoing.bursts().len();
        Ok(())
    }

    fn in_flight(&self) -> u64 {
        (self.sent - self.lost).saturating_sub(self.acknowledged)
    }

    fn give_up_lost(&mut self) {
        if self.last_progress.elapsed() > PATIENCE {
            self.lost += self.in_flight();
            self.last_progress = Instant::now();
        }
    }
}

fn acknowledge(socket: &UdpSocket, connection: &Connection, received: u64) -> Result<()> {
    let mut ack = [1u8; ACK];
    ack[ACK - 8..].copy_from_slice(&received.to_le_bytes());
    match socket.send_to(&ack, connection.peer) {
        // The next ACK includes this count.
        Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(()),
        result => Ok(result.map(drop)?),
    }
}
