//! CPU use of two connected processes with nothing to do.
//!
//! perftest's server and client also have a TCP connection. Here it passes through this process, which holds back the
//! first message after the traffic. Both programs then block in read(2) with connected QPs, so all CPU time that they
//! use is the adapter's. After the measurement the message is delivered, and both programs must end successfully.

use super::perftest::{self, Icrc, words};
use anyhow::{Context, Result, ensure};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use weir_stage::{Child, Side, Stage};

/// A pause on the TCP connection that is longer than this occurs only during the traffic, which runs for one second.
const SILENCE: Duration = Duration::from_millis(600);
/// Time for the engine's thread to notice that no thread polls any more.
const SETTLE: Duration = Duration::from_millis(100);
const BOUND: Duration = Duration::from_secs(30);

/// CPU use of the busier of the two processes over `time`, in cores.
pub fn cpu_use(stage: &Stage, time: Duration) -> Result<f64> {
    let program = "ib_write_bw";
    let mut pair = perftest::prepare(stage, program, Icrc::Auto, &words("-s 4096 -D 1"))?;
    // The proxy runs in the client's namespace, so that the server sees connections from the client's address.
    let listener = stage.enter(Side::B, || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))??;
    let arguments = ["-p".to_owned(), listener.local_addr()?.port().to_string(), Ipv4Addr::LOCALHOST.to_string()];
    let client = Child::spawn(pair.client.args(arguments), format!("{program} (client)"))?;
    let server_address = (stage.address(Side::A), pair.port);
    let mut wires = [accept(&listener)?, stage.enter(Side::B, || TcpStream::connect(server_address))??];
    for wire in &wires {
        wire.set_nonblocking(true)?;
        wire.set_nodelay(true)?;
    }
    let held_back = forward(&mut wires, true)?.context("perftest ended without a second of silent traffic")?;
    std::thread::sleep(SETTLE);
    let used = || -> Result<[Duration; 2]> { Ok([client.cpu()?, pair.server.cpu()?]) };
    let (start, before) = (Instant::now(), used()?);
    std::thread::sleep(time);
    let (elapsed, after) = (start.elapsed(), used()?);
    wires[1 - held_back.from].write_all(&held_back.bytes)?;
    ensure!(forward(&mut wires, false)?.is_none(), "perftest was stopped before its traffic, not after it");
    client.wait(BOUND)?.success()?;
    pair.server.wait(BOUND)?.success()?;
    let busier = (after[0] - before[0]).max(after[1] - before[1]);
    Ok(busier.as_secs_f64() / elapsed.as_secs_f64())
}

/// Bytes that one end sent after a silence.
struct Message {
    from: usize,
    bytes: Vec<u8>,
}

/// Forwards bytes between the two until one closes its connection (`None`), or sends bytes after a silence, which are
/// returned. With `after_traffic`, silences before the first bytes do not count.
fn forward(wires: &mut [TcpStream; 2], after_traffic: bool) -> Result<Option<Message>> {
    let start = Instant::now();
    let (mut last, mut begun) = (Instant::now(), !after_traffic);
    let mut buffer = [0; 4096];
    while start.elapsed() < BOUND {
        for from in [0, 1] {
            match wires[from].read(&mut buffer) {
                Ok(0) => return close_other(wires, from),
                Ok(n) if begun && last.elapsed() > SILENCE => {
                    return Ok(Some(Message { from, bytes: buffer[..n].to_vec() }));
                }
                Ok(n) => {
                    wires[1 - from].write_all(&buffer[..n])?;
                    (last, begun) = (Instant::now(), true);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                // An end that exits with unread bytes resets the connection, which counts as closing it.
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return close_other(wires, from),
                Err(e) => return Err(e).context("between perftest's server and client"),
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    anyhow::bail!("perftest did not end within {BOUND:?}")
}

/// One end has closed its connection: closes the connection to the other, and drops its remaining bytes.
fn close_other(wires: &[TcpStream; 2], from: usize) -> Result<Option<Message>> {
    // The other end may have closed it at the same time.
    let _ = wires[1 - from].shutdown(std::net::Shutdown::Write);
    Ok(None)
}

fn accept(listener: &TcpListener) -> Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let end = Instant::now() + BOUND;
    loop {
        match listener.accept() {
            Ok((wire, _)) => return Ok(wire),
            Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(e) => return Err(e).context("perftest's client does not connect"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ends of a forwarded connection, and the two sockets that forward between them.
    fn ends() -> ([TcpStream; 2], [TcpStream; 2]) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let pair = || {
            let end = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let wire = listener.accept().unwrap().0;
            wire.set_nonblocking(true).unwrap();
            (end, wire)
        };
        let ((a, wire_a), (b, wire_b)) = (pair(), pair());
        ([a, b], [wire_a, wire_b])
    }

    #[test]
    fn bytes_after_a_silence_are_held_back() {
        let ([mut a, mut b], mut wires) = ends();
        let talk = std::thread::spawn(move || {
            a.write_all(b"hello").unwrap();
            let mut received = [0; 5];
            b.read_exact(&mut received).unwrap();
            assert_eq!(&received, b"hello");
            std::thread::sleep(SILENCE + Duration::from_millis(200));
            b.write_all(b"done").unwrap();
            a.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            assert!(a.read(&mut [0; 8]).is_err(), "bytes were forwarded");
        });
        let message = forward(&mut wires, true).unwrap().unwrap();
        talk.join().unwrap();
        assert_eq!((message.from, message.bytes.as_slice()), (1, b"done".as_slice()));
    }

    #[test]
    fn forwarding_ends_when_an_end_closes_without_a_silence() {
        let ([mut a, b], mut wires) = ends();
        a.write_all(b"hello").unwrap();
        drop((a, b));
        assert!(forward(&mut wires, true).unwrap().is_none());
    }
}
