//! Times of what a packet needs beside its bytes: system calls, buffers, headers.

use super::timing::seconds;
use anyhow::{Context, Result};
use serde::Serialize;
use std::fs::File;
use std::hint::black_box;
use std::os::fd::AsRawFd;
use weir_wire::edge::{Ack, Action, HEADER_LEN, Header, Order, PIECE_LEN, Piece, Seq};

/// Bytes of a buffer: a packet of an MTU of 9000.
const BUFFER: usize = 9000;

/// Times in microseconds.
#[derive(Debug, Serialize)]
pub struct Calls {
    /// getppid(2), which does nothing else.
    pub system_call: f64,
    /// An ioctl(2) of /dev/null, which has none.
    pub ioctl: f64,
    /// A buffer of 9000 bytes: allocate, write its first byte, free.
    pub buffer: f64,
    /// Writing the header of a packet and of a piece, with the CRC-32.
    pub write_header: f64,
    /// Reading and checking it.
    pub read_header: f64,
}

/// Measures all of it.
pub fn measure() -> Result<Calls> {
    let null = File::open("/dev/null").context("/dev/null")?;
    // SAFETY: the call has no arguments and no effect.
    let system_call = seconds(|| _ = black_box(unsafe { libc::getppid() }));
    // SAFETY: /dev/null knows no ioctl, so the kernel uses no argument.
    let ioctl = seconds(|| _ = black_box(unsafe { libc::ioctl(null.as_raw_fd(), 0) }));
    let buffer = seconds(|| {
        let mut buffer = Vec::<u8>::with_capacity(BUFFER);
        buffer.push(1);
        black_box(&mut buffer);
    });
    let packet = Some((Seq(7), Order::Any));
    let header = Header { connection: 1, link: 2, count: 3, packet, received: None, sent: 5, asks: false };
    let piece = Piece { number: 5, action: Action::Abandon, offset: 0, bytes: 0 };
    let mut bytes = [0; HEADER_LEN + PIECE_LEN];
    let write_header = seconds(|| {
        let len = black_box(&header).emit(None, Some(&piece), &mut bytes);
        black_box((len, &mut bytes));
    });
    let (len, mut ack) = (header.emit(None, Some(&piece), &mut bytes), Ack::default());
    let parses = Header::parse(&bytes[..len], &mut ack).is_ok();
    anyhow::ensure!(parses, "the header that was written cannot be read");
    let read_header = seconds(|| _ = black_box(Header::parse(black_box(&bytes[..len]), &mut ack).is_ok()));
    let us = |seconds: f64| seconds * 1e6;
    Ok(Calls {
        system_call: us(system_call),
        ioctl: us(ioctl),
        buffer: us(buffer),
        write_header: us(write_header),
        read_header: us(read_header),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_take_some_time_and_not_much() {
        let Calls { system_call, ioctl, buffer, write_header, read_header } = measure().unwrap();
        let all = [system_call, ioctl, buffer, write_header, read_header];
        assert!(all.iter().all(|us| *us > 0.0 && *us < 1000.0), "{all:?}");
    }
}
