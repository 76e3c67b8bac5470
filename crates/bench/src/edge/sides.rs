//! The two processes of a measurement: they exchange jobs and what came of them over TCP, and do them with the crate `edge`.

use super::job::{Done, Job, Part, Settings, Test};
use super::usage::Usage;
use anyhow::{Context, Result, bail};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use weir_edge::{Access, Allow, Connection, Event, Kind, Mode, Node, OperationFlags, Options};

/// Memory of a side that the other writes to. So many bytes are under way at most.
const AREA: usize = 8 << 20;
/// Operations that are under way at most.
const MOST: usize = 2048;
/// Time limit for something to happen.
const PATIENCE: Duration = Duration::from_secs(10);
/// Before the jobs that count: the rates of the links become known.
const WARM_UP: Job = Job { test: Test::TwoWay, size: 64 << 10, seconds: 0.2 };

/// The server: does what the client says until it ends.
pub fn serve(address: SocketAddr, settings: Settings) -> Result<()> {
    let node = Node::listen(Options { port: address.port(), ..options(settings) })?;
    let listener = TcpListener::bind(address)?;
    let mut control = Control::new(listener.accept()?.0)?;
    let area = Area::new();
    let connection = node.wait(&area.allowed(), Some(PATIENCE))?;
    let mut side = Side { connection, remote: control.exchange(area.address())?, area, under_way: 0 };
    while let Some(job) = control.receive::<Job>()? {
        control.send(&())?;
        let before = Usage::now(&node)?;
        let part = side.serve(job)?;
        control.send(&Part { usage: Usage::now(&node)?.since(&before), ..part })?;
    }
    Ok(())
}

/// The client: does the jobs with the server.
pub fn run(address: SocketAddr, settings: Settings, jobs: &[Job]) -> Result<Vec<Done>> {
    let mut control = Control::new(TcpStream::connect(address)?)?;
    let (node, area) = (Node::open(options(settings))?, Area::new());
    let connection = node.request(address, &area.allowed(), PATIENCE)?;
    let mut side = Side { connection, remote: control.exchange(area.address())?, area, under_way: 0 };
    let mut done = vec![];
    for &job in std::iter::once(&WARM_UP).chain(jobs) {
        control.send(&job)?;
        control.receive::<()>()?.context("the server has ended")?;
        let before = Usage::now(&node)?;
        let part = side.request(job)?;
        let server = control.receive()?.context("the server has ended")?;
        done.push(Done { job, client: Part { usage: Usage::now(&node)?.since(&before), ..part }, server });
    }
    done.remove(0);
    Ok(done)
}

fn options(settings: Settings) -> Options {
    let mode = if settings.polling { Mode::Polling } else { Mode::Events };
    Options { mode, measure: settings.measure, ..Options::default() }
}

/// Lines of JSON.
struct Control {
    lines: BufReader<TcpStream>,
}

impl Control {
    fn new(stream: TcpStream) -> Result<Control> {
        stream.set_nodelay(true)?;
        Ok(Control { lines: BufReader::new(stream) })
    }

    fn send(&mut self, value: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(value)? + "\n";
        Ok(self.lines.get_mut().write_all(line.as_bytes())?)
    }

    /// `None` if the peer has ended.
    fn receive<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        (!line.is_empty()).then(|| serde_json::from_str(&line)).transpose().context("the peer's line is not JSON")
    }

    fn exchange(&mut self, address: u64) -> Result<u64> {
        self.send(&address)?;
        self.receive()?.context("the peer has ended")
    }
}

/// Memory that the peer may use. It lives until the process ends, as the peer's packets may be late.
struct Area(*mut u8);

impl Area {
    fn new() -> Area {
        Area(vec![1u8; AREA].leak().as_mut_ptr())
    }

    fn address(&self) -> u64 {
        self.0.expose_provenance() as u64
    }

    fn allowed(&self) -> Allow {
        // SAFETY: the area is used through this pointer only, and never freed.
        unsafe { Allow::nothing().and(self.0, AREA, Access::READ | Access::WRITE) }
    }
}

/// One end of the connection.
struct Side {
    connection: Connection,
    /// The area of the peer.
    remote: u64,
    area: Area,
    /// Operations of this side that are not complete.
    under_way: usize,
}

impl Side {
    fn request(&mut self, job: Job) -> Result<Part> {
        match job.test {
            Test::OneWay => self.stream(job, false),
            Test::TwoWay => self.stream(job, true),
            Test::PingPong => self.ping(job),
        }
    }

    fn serve(&mut self, job: Job) -> Result<Part> {
        match job.test {
            Test::OneWay => {
                let begin = Instant::now();
                self.until_notified()?;
                Ok(Part { seconds: begin.elapsed().as_secs_f64(), ..Part::default() })
            }
            Test::TwoWay => self.stream(job, true),
            Test::PingPong => self.pong(job),
        }
    }

    /// WRITEs back to back; `both`: until the peer has also ended its own.
    fn stream(&mut self, job: Job, both: bool) -> Result<Part> {
        let (begin, time) = (Instant::now(), Duration::from_secs_f64(job.seconds));
        let slots = (AREA / job.size).clamp(1, MOST);
        let (mut issued, mut ended) = (0, false);
        while begin.elapsed() < time {
            while self.under_way < slots && begin.elapsed() < time {
                self.issue(issued % slots * job.size, job.size, OperationFlags::empty())?;
                issued += 1;
            }
            ended |= self.next()?.is_some();
        }
        self.end()?;
        while self.under_way > 0 {
            ended |= self.next()?.is_some();
        }
        let seconds = begin.elapsed().as_secs_f64();
        if both && !ended {
            self.until_notified()?;
        }
        Ok(Part { operations: issued as u64, seconds, ..Part::default() })
    }

    fn ping(&mut self, job: Job) -> Result<Part> {
        let (begin, time) = (Instant::now(), Duration::from_secs_f64(job.seconds));
        let mut times = vec![];
        while begin.elapsed() < time {
            let before = Instant::now();
            self.issue(0, job.size, OperationFlags::NOTIFY)?;
            self.until_notified()?;
            times.push(before.elapsed().as_secs_f64() / 2.0);
        }
        let seconds = begin.elapsed().as_secs_f64();
        self.end()?;
        self.drain()?;
        let latency = Some(percentiles(&mut times));
        Ok(Part { operations: times.len() as u64, seconds, latency, ..Part::default() })
    }

    fn pong(&mut self, job: Job) -> Result<Part> {
        let (begin, mut operations) = (Instant::now(), 0);
        while self.until_notified()? > 0 {
            self.issue(0, job.size, OperationFlags::NOTIFY)?;
            operations += 1;
        }
        self.drain()?;
        Ok(Part { operations, seconds: begin.elapsed().as_secs_f64(), ..Part::default() })
    }

    fn issue(&mut self, at: usize, size: usize, flags: OperationFlags) -> Result<()> {
        let local = self.area.0.wrapping_add(at);
        // SAFETY: the area lives until the process ends, and what is in it does not matter.
        unsafe { self.connection.operation(Kind::Write, self.remote + at as u64, local, size, flags) }?;
        self.under_way += 1;
        Ok(())
    }

    /// Tells the peer, behind all operations of this side, that there are no more.
    fn end(&mut self) -> Result<()> {
        self.issue(0, 0, OperationFlags::NOTIFY | OperationFlags::BACKWARD_FENCE)
    }

    /// Waits for an event; returns the number of bytes if it is a notification.
    fn next(&mut self) -> Result<Option<u32>> {
        match self.connection.wait_event(Some(PATIENCE))? {
            Event::Notified { bytes, .. } => Ok(Some(bytes)),
            Event::Completed { result, .. } => {
                result?;
                self.under_way -= 1;
                Ok(None)
            }
        }
    }

    /// Waits for a notification; returns its number of bytes.
    fn until_notified(&mut self) -> Result<u32> {
        loop {
            if let Some(bytes) = self.next()? {
                return Ok(bytes);
            }
        }
    }

    /// Waits until all operations of this side are complete.
    fn drain(&mut self) -> Result<()> {
        while self.under_way > 0 {
            if self.next()?.is_some() {
                bail!("a notification comes after the last one");
            }
        }
        Ok(())
    }
}

/// Median and 99 %.
fn percentiles(times: &mut [f64]) -> [f64; 2] {
    times.sort_by(f64::total_cmp);
    [times.len() / 2, times.len() * 99 / 100].map(|at| times.get(at).copied().unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_99_percent() {
        let mut times: Vec<f64> = (0..200).rev().map(f64::from).collect();
        assert_eq!(percentiles(&mut times), [100.0, 198.0]);
        assert_eq!(percentiles(&mut [7.0]), [7.0, 7.0]);
    }

    #[test]
    fn two_sides_do_all_jobs_on_loopback() {
        let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let settings = Settings { measure: true, polling: false };
        let server = std::thread::spawn(move || serve(address, settings));
        let end = Instant::now() + PATIENCE;
        let jobs = Test::ALL.map(|test| Job { test, size: 4096, seconds: 0.02 });
        let done = loop {
            match run(address, settings, &jobs) {
                // The server has not opened its port yet.
                Err(error) if error.is::<std::io::Error>() && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                done => break done.unwrap(),
            }
        };
        server.join().unwrap().unwrap();
        let operations = |done: &Done| [done.client.operations > 0, done.server.operations > 0];
        assert_eq!(done.iter().map(operations).collect::<Vec<_>>(), [[true, false], [true, true], [true, true]]);
        assert_eq!(done.iter().map(|done| done.client.latency.is_some()).collect::<Vec<_>>(), [false, false, true]);
        assert!(done.iter().all(|done| done.client.usage.packets_sent >= done.client.operations), "{done:?}");
        assert!(done.iter().all(|done| done.server.usage.parts.system_calls > 0.0), "{done:?}");
    }
}
