//! Live: a pair of `weir-stream` processes that measures one job after the other.
//!
//! The client reads jobs from its standard input, a line each, and prints a line of JSON for each. A pair that has
//! ended, because
//! a side was killed or did not answer, is started again for the next job.

use super::{Amount, Found, Job, Measure};
use crate::environment::clean;
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Deserialize;
use std::io::{PipeWriter, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use weir_stage::{Child, Protocol, Side, Stage};

/// The name of the program, in the folder of Weir's library.
pub const PROGRAM: &str = "weir-stream";

/// Time limit for a server to listen.
const START: Duration = Duration::from_secs(15);
/// Time limit of a job besides its warm-up and its measurement: memory is registered, queue pairs connect.
const AROUND: Duration = Duration::from_secs(45);
/// A job of so many bytes has at least a thirtieth of a Gbit/s.
const SLOWEST: u64 = 4 << 20;
/// The time of the first job.
const WARM: Duration = Duration::from_millis(50);
/// Time limit of a server to end after its client.
const AFTER: Duration = Duration::from_secs(1);
/// Time limit for a server elsewhere to listen.
const REACH: Duration = Duration::from_secs(30);
/// Limit of a job, seconds, for both programs.
const TIMEOUT: u32 = 20;
/// Interval of looking at the client's output. This process sleeps in between, and leaves the cores to the programs.
const TICK: Duration = Duration::from_millis(2);

/// A pair of processes, started when a job needs it.
pub struct Session {
    start: Box<dyn Fn() -> Result<Pair>>,
    pair: Option<Pair>,
}

/// Two processes that are connected, or of which only the client is this machine's.
pub struct Pair {
    client: Child,
    /// The server, if this process has started it.
    server: Option<Child>,
    jobs: PipeWriter,
    /// Bytes of the client's output that were read.
    read: u64,
    /// The input of a server elsewhere: at its end, one that has no client yet ends.
    _input: Option<PipeWriter>,
}

/// The server of a pair.
pub enum Server {
    /// A command of this machine, which listens on this TCP port.
    Here(Command, u16),
    /// A command that starts it on another machine, and where it listens then. It gets an input, which ends with the
    /// pair.
    Elsewhere { command: Command, host: String, port: u16 },
    /// It runs already.
    Runs,
}

/// How a side's process gets at its adapter.
#[derive(Clone, Debug)]
pub struct Program {
    /// The `weir` command, under which the program runs; `None`: the adapter is the system's.
    pub weir: Option<PathBuf>,
    /// The folder of Weir's library and of the program.
    pub library: PathBuf,
    pub device: Option<String>,
    /// Options of `weir run`.
    pub options: Vec<String>,
}

/// A line of the client's output.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Failed {
        error: String,
        /// The program ends.
        #[serde(default)]
        ends: bool,
    },
    Found(Found),
}

impl Session {
    /// A session with pairs that `start` starts.
    pub fn new(start: impl Fn() -> Result<Pair> + 'static) -> Session {
        Session { start: Box::new(start), pair: None }
    }

    /// A new pair. Its first job is slower, because memory is new and peers meet: it does not count.
    fn warm(&self) -> Result<Pair> {
        let mut pair = (self.start)()?;
        let first = Session::run(&mut pair, &Job { amount: Amount::Time(WARM), ..Job::default() });
        match first {
            Err(error) if !error.is::<Refused>() => Err(error),
            _ => Ok(pair),
        }
    }

    /// Both sides on this machine, on a stage, over Weir. `weir` is the command, `library` the folder of its library.
    pub fn on_stage(stage: Stage, weir: &Path, library: &Path) -> Result<Session> {
        let program = Program {
            weir: Some(weir.into()),
            library: library.into(),
            device: Some(stage.device()),
            // The sides stand for two hosts, even if they are in one namespace.
            options: if stage.is_one_host() { vec![] } else { vec!["--local".into(), "off".into()] },
        };
        program.check()?;
        Ok(Session::new(move || {
            let port = stage.free_port(Side::A)?;
            let command = |side: Side| program.command(|words| clean(stage.command(side, words)), port);
            let client = || Ok((command(Side::B), stage.address(Side::A).to_string()));
            Pair::start(Server::Here(command(Side::A), port), client)
        }))
    }

    fn run(pair: &mut Pair, job: &Job) -> Result<Found> {
        let line = job.arguments().join(" ") + "\n";
        if pair.jobs.write_all(line.as_bytes()).is_err() {
            return Err(pair.why());
        }
        let amount = match job.amount {
            Amount::Time(time) => time,
            Amount::Bytes(bytes) => Duration::from_secs(bytes / SLOWEST),
        };
        match pair.line(Instant::now() + job.warm_up + amount + AROUND)? {
            Line::Found(found) => {
                ensure!(found.wrong == 0, "{} bytes of {} arrived wrong", found.wrong, found.checked);
                Ok(found)
            }
            Line::Failed { error, ends: false } => Err(Refused(error).into()),
            Line::Failed { error, ends: true } => Err(pair.why().context(error)),
        }
    }
}

/// A job was refused, or failed, and the pair can measure others.
#[derive(Debug)]
pub struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

impl Measure for Session {
    fn measure(&mut self, job: &Job) -> Result<Found> {
        let mut pair = match self.pair.take() {
            Some(pair) => pair,
            None => self.warm()?,
        };
        let found = Session::run(&mut pair, job);
        if found.as_ref().err().is_none_or(|error| error.is::<Refused>()) {
            self.pair = Some(pair);
        }
        found
    }
}

impl Pair {
    /// Starts the server, if this process has to, and then the client. `client` gives the client's command and the
    /// server's host.
    pub fn start(server: Server, client: impl FnOnce() -> Result<(Command, String)>) -> Result<Pair> {
        let mut held_input = None;
        let server = match server {
            Server::Here(mut command, port) => {
                let mut server = Child::spawn(&mut command, "weir-stream (server)")?;
                server.wait_listening(Protocol::Tcp, port, START)?;
                Some(server)
            }
            Server::Elsewhere { mut command, host, port } => {
                let (input, held) = std::io::pipe()?;
                command.stdin(input);
                let mut server = Child::spawn(&mut command, "the peer")?;
                wait_reachable(&mut server, &host, port)?;
                held_input = Some(held);
                Some(server)
            }
            Server::Runs => None,
        };
        let (mut command, host) = client()?;
        let (input, jobs) = std::io::pipe()?;
        command.args(["--json", "--jobs", &host]).stdin(input);
        let client = Child::spawn(&mut command, "weir-stream (client)")?;
        Ok(Pair { client, server, jobs, read: 0, _input: held_input })
    }

    /// The next line of the client.
    fn line(&mut self, until: Instant) -> Result<Line> {
        loop {
            // Asked before its output is read: what it wrote last is not lost.
            let ended = self.client.poll()?;
            let new = self.client.output(self.read)?;
            if let Some(len) = new.iter().position(|byte| *byte == b'\n') {
                self.read += len as u64 + 1;
                let text = String::from_utf8_lossy(&new[..len]);
                return serde_json::from_str(&text).with_context(|| format!("the output of weir-stream: {text}"));
            }
            if ended.is_some() {
                return Err(self.why());
            }
            if Instant::now() > until {
                return Err(self.why().context("weir-stream did not end a job in time"));
            }
            std::thread::sleep(TICK);
        }
    }

    /// What both sides have printed. The server may know why the client has ended, and ends after it.
    fn why(&mut self) -> anyhow::Error {
        let printed = |child: &mut Child| child.printed().unwrap_or_else(|error| error.to_string());
        let until = Instant::now() + AFTER;
        while self.server.as_mut().is_some_and(|server| matches!(server.poll(), Ok(None))) && Instant::now() < until {
            std::thread::sleep(TICK);
        }
        let mut text = printed(&mut self.client);
        if let Some(server) = &mut self.server {
            text += &format!("\n{}", printed(server));
        }
        anyhow!(text)
    }
}

/// Waits until a port of another machine is open; an error if the command that opens it ends before.
fn wait_reachable(command: &mut Child, host: &str, port: u16) -> Result<()> {
    let until = Instant::now() + REACH;
    while TcpStream::connect((host, port)).is_err() {
        if command.poll()?.is_some() {
            bail!("the receiver did not start: {}", command.printed()?);
        }
        if Instant::now() > until {
            bail!("{host} is not reached at TCP port {port} within {REACH:?}: a firewall? {}", command.printed()?);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    // One of an earlier run may listen there, so that this one could not.
    std::thread::sleep(Duration::from_millis(100));
    match command.poll()? {
        Some(_) => bail!("the receiver did not start: {}", command.printed()?),
        None => Ok(()),
    }
}

impl Program {
    /// The command of a side, without the host that makes it a client. `make` begins a command with an executable.
    pub fn command(&self, make: impl FnOnce(&Path) -> Command, port: u16) -> Command {
        let program = self.library.join(PROGRAM);
        let mut command = match &self.weir {
            None => make(&program),
            Some(weir) => {
                let mut command = make(weir);
                command.env("WEIR_LIB_DIR", &self.library).arg("run").args(&self.options).arg("--").arg(&program);
                command
            }
        };
        if let Some(device) = &self.device {
            command.args(["--device", device]);
        }
        command.args(["--port", &port.to_string(), "--timeout", &TIMEOUT.to_string()]);
        command
    }

    /// An error if the program is missing.
    pub fn check(&self) -> Result<()> {
        let program = self.library.join(PROGRAM);
        ensure!(program.is_file(), "{} is not built: run `make build`", program.display());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A client that follows a script for each line.
    fn session(script: &str) -> (tempfile::TempDir, Session) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(PROGRAM);
        std::fs::write(&path, format!("#!/bin/sh\nwhile read line; do\n{script}\ndone\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let program = Program { weir: None, library: folder.path().into(), device: None, options: vec![] };
        program.check().unwrap();
        let start = move || {
            let mut command = program.command(|path| Command::new(path), 1);
            weir_stage::ends_with_this_thread(&mut command);
            Pair::start(Server::Runs, || Ok((command, "host".into())))
        };
        (folder, Session::new(start))
    }

    const FOUND: &str = r#"{"messages":1,"bytes":8,"seconds":1,"gbits":2.5,"acks":1,"signal":1,"depth":2,"sender":
        {"user":0,"system":0,"sleeps":0},"receiver":{"user":0,"system":0,"sleeps":0},"checked":0,"wrong":0,"mtu":4096}"#;

    #[test]
    fn a_refused_job_leaves_the_pair_and_a_broken_pair_is_started_again() {
        let found = FOUND.replace('\n', " ");
        let script = format!(
            "case \"$line\" in *'--size 13'*) echo '{{\"error\":\"unlucky\"}}';; *'--size 14'*) echo broken >&2; \
             exit 3;; *'--size 15'*) echo '{{\"error\":\"late\",\"ends\":true}}'; exit 3;; *) echo '{found}';; esac; \
             ps=$$; echo $ps >> ${{0%/*}}/pids"
        );
        let (folder, mut session) = session(&script);
        let mut run = |size| session.measure(&Job { size, ..Job::default() });
        assert_eq!(run(8).unwrap().gbits, 2.5);
        assert_eq!(run(13).unwrap_err().to_string(), "unlucky");
        assert_eq!(run(8).unwrap().messages, 1);
        let error = run(14).unwrap_err().to_string();
        assert!(error.contains("broken"), "{error}");
        assert!(run(8).is_ok());
        assert!(run(15).unwrap_err().to_string().contains("late"));
        assert!(run(8).is_ok());
        let pids = std::fs::read_to_string(folder.path().join("pids")).unwrap();
        let mut pids: Vec<&str> = pids.lines().collect();
        pids.dedup();
        assert_eq!(pids.len(), 3, "{pids:?}");
    }

    #[test]
    fn wrong_bytes_are_an_error() {
        let found = FOUND.replace('\n', " ").replace(r#""wrong":0"#, r#""wrong":3"#);
        let (_folder, mut session) = session(&format!("echo '{found}'"));
        assert!(session.measure(&Job::default()).unwrap_err().to_string().contains("3 bytes"));
    }
}
