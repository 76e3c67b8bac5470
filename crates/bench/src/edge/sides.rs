//! The two processes of a measurement: they exchange jobs and what came of them over TCP, and do them with the crate `edge`.

use super::control::Control;
use super::job::{Done, Job, Part, Test};
use super::sampler::Sampler;
use super::settings::Settings;
use super::usage::Usage;
use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use std::alloc::{Layout, alloc, handle_alloc_error};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use weir_edge::{Access, Allow, Connection, Event, Kind, Node, OperationFlags, Options};

/// Memory of a side that the other writes to. So many bytes are under way at most.
pub const AREA: usize = 8 << 20;
/// Areas begin with a page. A place has an offset in it.
const PAGE: usize = 4096;
/// Operations that are under way at most.
const MOST: usize = 2048;
/// Time limit for something to happen.
const PATIENCE: Duration = Duration::from_secs(10);
/// Before the jobs that count: the rates of the links become known.
const WARM_UP: Job = Job { test: Test::TwoWay, size: 64 << 10, seconds: 0.2, sampled: false };

/// The server: does what the client says until it ends.
pub fn serve(address: SocketAddr, settings: &Settings) -> Result<()> {
    let node = Node::listen(Options { port: address.port(), ..settings.options()? })?;
    let listener = TcpListener::bind(address)?;
    let mut control = Control::new(listener.accept()?.0)?;
    let area = Area::new();
    let connection = node.wait(&area.allowed(), Some(PATIENCE))?;
    let remote = control.exchange(area.address())?;
    let mut side = Side::new(node, connection, area, remote, settings);
    while let Some(job) = control.receive::<Job>()? {
        control.send(&())?;
        let before = Usage::now(&side.node)?;
        let part = side.serve(job)?;
        control.send(&Part { usage: Usage::now(&side.node)?.since(&before), ..part })?;
    }
    Ok(())
}

/// The client: does the jobs with the server. `begins` is called when the first of them begins.
pub fn run(address: SocketAddr, settings: &Settings, jobs: &[Job], begins: impl Fn()) -> Result<Vec<Done>> {
    let mut control = Control::new(TcpStream::connect(address)?)?;
    let (node, area) = (Node::open(settings.options()?)?, Area::new());
    let connection = node.request(address, &area.allowed(), PATIENCE)?;
    let remote = control.exchange(area.address())?;
    let mut side = Side::new(node, connection, area, remote, settings);
    let mut done = vec![];
    for (n, &job) in std::iter::once(&WARM_UP).chain(jobs).enumerate() {
        if n == 1 {
            begins();
        }
        control.send(&job)?;
        control.receive::<()>()?.context("the server has ended")?;
        let before = Usage::now(&side.node)?;
        let part = side.request(job)?;
        let server = control.receive()?.context("the server has ended")?;
        done.push(Done { job, client: Part { usage: Usage::now(&side.node)?.since(&before), ..part }, server });
    }
    done.remove(0);
    Ok(done)
}

/// Memory that the peer may use. It lives until the process ends, as the peer's packets may be late.
struct Area(*mut u8);

impl Area {
    fn new() -> Area {
        let layout = Layout::from_size_align(AREA + PAGE, PAGE).expect("a power of two, and no overflow");
        // SAFETY: the layout is not empty.
        let area = unsafe { alloc(layout) };
        if area.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: the area has so many bytes.
        unsafe { area.write_bytes(1, layout.size()) };
        Area(area)
    }

    fn address(&self) -> u64 {
        self.0.expose_provenance() as u64
    }

    fn allowed(&self) -> Allow {
        // SAFETY: the area is used through this pointer only, and never freed.
        unsafe { Allow::nothing().and(self.0, AREA + PAGE, Access::READ | Access::WRITE) }
    }
}

/// One end of the connection.
struct Side {
    node: Node,
    connection: Connection,
    /// Where the operations' bytes go: a place in the first page of the peer's area.
    remote: u64,
    area: Area,
    /// Operations of this side that are not complete.
    under_way: usize,
    /// Nanoseconds of the calls that begin operations.
    calls: Histogram<u64>,
    /// When an operation was complete last, and the longest time without one.
    completed: Option<Instant>,
    pause: Option<Duration>,
    /// Operations of the job that have failed, and how the first has.
    failed: u64,
    failure: Option<weir_edge::Error>,
}

impl Side {
    fn new(node: Node, connection: Connection, area: Area, remote: u64, settings: &Settings) -> Side {
        let calls = Histogram::new_with_bounds(1, 10_000_000_000, 3).expect("1 ns to 10 s, in three digits");
        let remote = remote + settings.offset as u64;
        Side {
            node,
            connection,
            remote,
            area,
            under_way: 0,
            calls,
            completed: None,
            pause: None,
            failed: 0,
            failure: None,
        }
    }

    fn request(&mut self, job: Job) -> Result<Part> {
        let part = match job.test {
            Test::OneWay => self.stream(job, false),
            Test::TwoWay => self.stream(job, true),
            Test::PingPong => self.ping(job),
        }?;
        self.succeeded(job, part)
    }

    fn serve(&mut self, job: Job) -> Result<Part> {
        match job.test {
            Test::OneWay => {
                let begin = Instant::now();
                let sampler = job.sampled.then(|| Sampler::start(self.node.clone()));
                self.until_notified()?;
                let samples = sampler.map(Sampler::end).transpose()?.unwrap_or_default();
                Ok(Part { seconds: begin.elapsed().as_secs_f64(), samples, ..Part::default() })
            }
            Test::TwoWay => self.stream(job, true).and_then(|part| self.succeeded(job, part)),
            Test::PingPong => self.pong(job).and_then(|part| self.succeeded(job, part)),
        }
    }

    fn succeeded(&mut self, job: Job, part: Part) -> Result<Part> {
        succeeded(part, job.sampled, std::mem::take(&mut self.failed), self.failure.take())
    }

    /// WRITEs back to back; `both`: until the peer has also ended its own.
    fn stream(&mut self, job: Job, both: bool) -> Result<Part> {
        let (begin, time) = (Instant::now(), Duration::from_secs_f64(job.seconds));
        let slots = (AREA / job.size).clamp(1, MOST);
        let (mut issued, mut ended) = (0, false);
        self.calls.reset();
        (self.completed, self.pause) = (None, None);
        while begin.elapsed() < time {
            while self.under_way < slots && begin.elapsed() < time {
                let before = Instant::now();
                self.issue(issued % slots * job.size, job.size, OperationFlags::empty())?;
                self.calls.saturating_record(before.elapsed().as_nanos() as u64);
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
        let call = [0.5, 0.99].map(|quantile| self.calls.value_at_quantile(quantile) as f64 * 1e-9);
        let (call, pause) = (Some(call), self.pause.map(|pause| pause.as_secs_f64()));
        Ok(Part { operations: issued as u64, seconds, call, pause, ..Part::default() })
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
                if let Err(failure) = result {
                    self.failed += 1;
                    self.failure.get_or_insert(failure);
                }
                self.under_way -= 1;
                let now = Instant::now();
                let since = self.completed.replace(now).map(|before| now - before);
                self.pause = self.pause.max(since);
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

/// What a job has done, with the operations that have failed. They are an error, but for a job that is sampled: it is to show
/// what happens to them.
fn succeeded(part: Part, sampled: bool, failed: u64, failure: Option<weir_edge::Error>) -> Result<Part> {
    match failure {
        Some(failure) if !sampled => {
            Err(anyhow::Error::new(failure).context(format!("{failed} operations have failed")))
        }
        failure => {
            let operations = part.operations.saturating_sub(failed);
            Ok(Part { operations, failed, failure: failure.map(|failure| failure.to_string()), ..part })
        }
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
        let settings = Settings { measure: true, offset: 5, ..Settings::default() };
        let of_server = settings.clone();
        let server = std::thread::spawn(move || serve(address, &of_server));
        let end = Instant::now() + PATIENCE;
        let jobs = Test::ALL.map(|test| Job { test, size: 4096, seconds: 0.02, sampled: test == Test::OneWay });
        let done = loop {
            match run(address, &settings, &jobs, || ()) {
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
        assert!(done[0].client.call.is_some_and(|[median, _]| median > 1e-8 && median < 1.0), "{done:?}");
        assert_eq!(done.iter().map(|done| done.client.call.is_some()).collect::<Vec<_>>(), [true, true, false]);
        assert!(done.iter().all(|done| done.client.failed + done.server.failed == 0), "{done:?}");
        let samples = done.iter().map(|done| done.server.samples.len() > 1).collect::<Vec<_>>();
        assert_eq!(samples, [true, false, false]);
        assert!(done.iter().all(|done| done.client.usage.packets_sent >= done.client.operations), "{done:?}");
        assert!(done.iter().all(|done| done.server.usage.parts.system_calls > 0.0), "{done:?}");
    }

    #[test]
    fn operations_that_fail_are_an_error_unless_they_are_to_be_counted() {
        let part = || Part { operations: 5, ..Part::default() };
        let failed = |sampled| succeeded(part(), sampled, 2, Some(weir_edge::Error::Remote));
        let error = format!("{:#}", failed(false).unwrap_err());
        assert!(error.starts_with("2 operations have failed: "), "{error}");
        let counted = failed(true).unwrap();
        assert_eq!((counted.operations, counted.failed), (3, 2));
        assert_eq!(counted.failure, Some(weir_edge::Error::Remote.to_string()));
        let good = succeeded(part(), false, 0, None).unwrap();
        assert_eq!((good.operations, good.failed, good.failure), (5, 0, None));
    }
}
