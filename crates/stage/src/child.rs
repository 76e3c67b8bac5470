//! Child processes: their output, CPU time and memory, and waiting for their end with a time limit.

use anyhow::{Context, Result, bail};
use nix::sys::prctl;
use nix::sys::signal::{Signal, killpg};
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::{Pid, getppid};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// Interval of polling. This process sleeps in between, so that it leaves the cores to the programs.
const TICK: Duration = Duration::from_millis(2);

/// A running program. Dropping it kills it with its process group.
pub struct Child {
    name: String,
    pid: Pid,
    stdout: File,
    stderr: File,
    /// Its status and CPU time, once it has been reaped. From then on another process may have its process ID.
    ended: Option<(ExitStatus, Duration)>,
}

/// A program that has ended.
pub struct Finished {
    name: String,
    /// Its exit status.
    pub status: ExitStatus,
    /// Its output on stdout.
    pub stdout: String,
    /// Its output on stderr.
    pub stderr: String,
    /// User and system time of the program and of the children that it waited for.
    pub cpu: Duration,
}

/// Transport protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The port is in use when a socket listens on it.
    Tcp,
    /// The port is in use when a socket is bound to it.
    Udp,
}

/// The kernel kills the program when the thread that starts it ends, as it does when this process is killed. The program
/// gets a process group of its own.
pub fn ends_with_this_thread(command: &mut Command) {
    command.process_group(0);
    let parent = Pid::this();
    // SAFETY: it runs between fork and exec, and makes only system calls: no allocation, no lock.
    unsafe {
        command.pre_exec(move || {
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            // This process may have ended before.
            if getppid() == parent { Ok(()) } else { Err(ErrorKind::Interrupted.into()) }
        });
    }
}

impl Child {
    /// Starts a program; `name` is for messages. Its output goes to unnamed files, so it never blocks on a pipe.
    pub fn spawn(command: &mut Command, name: impl Into<String>) -> Result<Child> {
        let name = name.into();
        let (stdout, stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
        command.stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
        let child = command.spawn().with_context(|| format!("starting {name}"))?;
        Ok(Child { name, pid: Pid::from_raw(child.id() as i32), stdout, stderr, ended: None })
    }

    /// Process ID.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw() as u32
    }

    /// Waits until a socket in the program's namespace listens on the port; an error if the program ends before, or
    /// after `timeout`.
    pub fn wait_listening(&mut self, protocol: Protocol, port: u16, timeout: Duration) -> Result<()> {
        let end = Instant::now() + timeout;
        while !listens(self.pid, protocol, port) {
            if let Some((status, cpu)) = self.reap()? {
                let why = self.finished(status, cpu)?.last_lines();
                bail!("{} ended ({status}) before it listened on port {port}: {why}", self.name);
            }
            if Instant::now() > end {
                bail!("{} did not listen on port {port} within {timeout:?}", self.name);
            }
            std::thread::sleep(TICK);
        }
        Ok(())
    }

    /// Its exit status, if it has ended.
    pub fn poll(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.reap()?.map(|(status, _)| status))
    }

    /// Whether it has written to stdout.
    pub fn has_output(&self) -> Result<bool> {
        Ok(self.stdout.metadata()?.len() > 0)
    }

    /// Its output on stdout so far, from byte `from` on.
    pub fn output(&self, from: u64) -> Result<Vec<u8>> {
        read(&self.stdout, from)
    }

    /// Its output so far, with its name and state, for messages.
    pub fn printed(&mut self) -> Result<String> {
        let state = self.reap()?.map_or("still runs".to_owned(), |(status, _)| status.to_string());
        Ok(printed(&self.name, &state, &read_all(&self.stdout)?, &read_all(&self.stderr)?))
    }

    /// Whether it still runs.
    pub fn runs(&self) -> bool {
        fs::read_to_string(format!("/proc/{}/stat", self.pid))
            .is_ok_and(|stat| !stat.rsplit(')').next().is_some_and(|s| s.trim_start().starts_with('Z')))
    }

    /// User and system time of all its threads so far.
    pub fn cpu(&self) -> Result<Duration> {
        let clock: ClockId = clock_getcpuclockid(self.pid)?;
        Ok(Duration::from_nanos(clock.now()?.num_nanoseconds() as u64))
    }

    /// Peak resident memory so far (VmHWM), bytes; `None` once it has ended.
    pub fn peak_memory(&self) -> Option<u64> {
        self.status("VmHWM:")
    }

    /// Resident memory now (VmRSS), bytes; `None` once it has ended.
    pub fn resident(&self) -> Option<u64> {
        self.status("VmRSS:")
    }

    /// The number of its open descriptors.
    pub fn descriptors(&self) -> Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.pid))?.count())
    }

    /// A size in kB of its status, in bytes.
    fn status(&self, name: &str) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
    }

    /// Waits for its end; after `timeout` it is killed, which is an error.
    pub fn wait(self, timeout: Duration) -> Result<Finished> {
        self.wait_with(timeout, |_| ())
    }

    /// As `wait`, and calls `watch` every few milliseconds while it runs.
    pub fn wait_with(mut self, timeout: Duration, mut watch: impl FnMut(&Child)) -> Result<Finished> {
        let end = Instant::now() + timeout;
        loop {
            watch(&self);
            if let Some((status, cpu)) = self.reap()? {
                return self.finished(status, cpu);
            }
            if Instant::now() > end {
                let lines = self.finished(ExitStatus::default(), Duration::ZERO)?.last_lines();
                bail!("{} did not end within {timeout:?}: {lines}", self.name);
            }
            std::thread::sleep(TICK);
        }
    }

    /// Reaps the program if it has ended.
    fn reap(&mut self) -> Result<Option<(ExitStatus, Duration)>> {
        if self.ended.is_some() {
            return Ok(self.ended);
        }
        let mut status = 0;
        // SAFETY: all zeros is a valid rusage.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers point to locals that outlive the call.
        match unsafe { libc::wait4(self.pid.as_raw(), &mut status, libc::WNOHANG, &mut usage) } {
            0 => Ok(None),
            -1 => Err(std::io::Error::last_os_error()).with_context(|| format!("waiting for {}", self.name)),
            _ => {
                let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
                self.ended = Some((ExitStatus::from_raw(status), time(usage.ru_utime) + time(usage.ru_stime)));
                Ok(self.ended)
            }
        }
    }

    fn finished(&mut self, status: ExitStatus, cpu: Duration) -> Result<Finished> {
        Ok(Finished {
            name: self.name.clone(),
            status,
            stdout: read_all(&self.stdout)?,
            stderr: read_all(&self.stderr)?,
            cpu,
        })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = killpg(self.pid, Signal::SIGKILL);
            let _ = nix::sys::wait::waitpid(self.pid, None);
        }
    }
}

impl Finished {
    /// Returns itself if the status is 0, otherwise an error with the last lines of output.
    pub fn success(self) -> Result<Finished> {
        if !self.status.success() {
            bail!("{} failed ({}): {}", self.name, self.status, self.last_lines());
        }
        Ok(self)
    }

    /// Its output, with its name and status, for messages.
    pub fn printed(&self) -> String {
        printed(&self.name, &self.status.to_string(), &self.stdout, &self.stderr)
    }

    /// The last lines of stderr, or of stdout if stderr is empty.
    pub fn last_lines(&self) -> String {
        let text = if self.stderr.trim().is_empty() { &self.stdout } else { &self.stderr };
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
        if lines.is_empty() {
            return "it printed nothing".to_owned();
        }
        lines[lines.len().saturating_sub(4)..].join(" | ")
    }
}

fn printed(name: &str, state: &str, stdout: &str, stderr: &str) -> String {
    let mut lines = vec![format!("`{name}` ({state})")];
    for (stream, text) in [("out", stdout), ("err", stderr)] {
        lines.extend(text.lines().map(|line| format!("  {stream}| {line}")));
    }
    lines.join("\n")
}

/// Whether the port is in use in the network namespace of a process.
fn listens(pid: Pid, protocol: Protocol, port: u16) -> bool {
    let (tables, wanted) = match protocol {
        Protocol::Tcp => (["tcp", "tcp6"], "0A"),
        Protocol::Udp => (["udp", "udp6"], "07"),
    };
    let port = format!(":{port:04X}");
    tables.iter().any(|table| {
        fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default().lines().any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            fields.next().is_some_and(|local| local.ends_with(&port)) && fields.nth(1) == Some(wanted)
        })
    })
}

/// Reads the file from its beginning. The child shares the offset of the file, which is at the end again afterwards.
fn read_all(file: &File) -> Result<String> {
    Ok(String::from_utf8_lossy(&read(file, 0)?).into_owned())
}

/// Does not move the file's position, at which the program goes on to write.
fn read(file: &File, from: u64) -> Result<Vec<u8>> {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 8192]);
    loop {
        match file.read_at(&mut chunk, from + bytes.len() as u64)? {
            0 => return Ok(bytes),
            n => bytes.extend_from_slice(&chunk[..n]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Child {
        use std::os::unix::process::CommandExt;
        Child::spawn(Command::new("sh").args(["-c", script]).process_group(0), "sh").unwrap()
    }

    #[test]
    fn output_status_and_cpu_time_are_kept() {
        let end = shell("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo out; echo err >&2; exit 3")
            .wait(Duration::from_secs(20))
            .unwrap();
        assert_eq!((end.stdout.as_str(), end.stderr.as_str(), end.status.code()), ("out\n", "err\n", Some(3)));
        assert!(end.cpu > Duration::from_millis(1), "{:?}", end.cpu);
        assert!(end.success().err().unwrap().to_string().contains("err"));
    }

    #[test]
    fn a_program_that_exceeds_its_time_limit_is_killed() {
        let child = shell("sleep 100 & sleep 100");
        let pid = child.pid();
        assert!(child.wait(Duration::from_millis(50)).is_err());
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_listening_port_and_output_are_seen_while_the_program_runs() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut child = shell("echo up; sleep 100");
        child.wait_listening(Protocol::Tcp, port, Duration::from_secs(5)).unwrap();
        assert!(child.runs() && child.peak_memory().unwrap() > 0);
        assert!(child.cpu().unwrap() < Duration::from_secs(1));
        let until = Instant::now() + Duration::from_secs(5);
        while !child.has_output().unwrap() && Instant::now() < until {
            std::thread::sleep(TICK);
        }
        assert!(child.has_output().unwrap() && !shell("sleep 100").has_output().unwrap());
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        child.wait_listening(Protocol::Udp, udp.local_addr().unwrap().port(), Duration::from_secs(5)).unwrap();
    }
}
