//! Runs a server and a client.

use crate::{Child, Finished, Protocol};
use anyhow::{Result, bail};
use std::process::Command;
use std::time::{Duration, Instant};

/// Time limit for a server to listen.
const LISTEN: Duration = Duration::from_secs(15);
/// Time limit of one side after the other has failed.
const GRACE: Duration = Duration::from_secs(3);
/// Interval of polling.
const TICK: Duration = Duration::from_millis(3);

/// The results of both programs.
pub struct Outcome {
    pub server: Finished,
    pub client: Finished,
}

/// Starts the server, starts the client once the server listens on TCP port `port`, and waits for both. An error if one
/// of them must be killed. The caller must check their exit statuses.
pub fn run(server: &mut Command, client: &mut Command, port: u16, timeout: Duration) -> Result<Outcome> {
    let mut server = Child::spawn(server, shown(server))?;
    server.wait_listening(Protocol::Tcp, port, LISTEN)?;
    let client = Child::spawn(client, shown(client))?;
    finish(server, client, timeout)
}

/// Waits for both to end. When one fails, the other gets only three seconds more, because it may never end.
pub fn finish(mut server: Child, mut client: Child, timeout: Duration) -> Result<Outcome> {
    let mut until = Instant::now() + timeout;
    let mut peer_failed = false;
    loop {
        let ended = [server.poll()?, client.poll()?];
        if ended[0].is_some() && ended[1].is_some() {
            return Ok(Outcome { server: server.wait(TICK)?, client: client.wait(TICK)? });
        }
        if !peer_failed && ended.iter().flatten().any(|status| !status.success()) {
            peer_failed = true;
            until = until.min(Instant::now() + GRACE);
        }
        if Instant::now() >= until {
            let why = if peer_failed { "its peer failed".into() } else { format!("not done within {timeout:?}") };
            bail!("killed, because {why}\nserver {}\nclient {}", server.printed()?, client.printed()?);
        }
        std::thread::sleep(TICK);
    }
}

impl Outcome {
    /// User and system time of both.
    pub fn cpu(&self) -> Duration {
        self.server.cpu + self.client.cpu
    }

    /// Returns itself if both statuses are 0, otherwise an error with the output of both.
    pub fn success(self) -> Result<Outcome> {
        if !self.server.status.success() || !self.client.status.success() {
            bail!("server {}\nclient {}", self.server.printed(), self.client.printed());
        }
        Ok(self)
    }
}

/// A command line as text, without quotes.
pub fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_ends_before_it_listens_is_an_error() {
        let error = run(&mut Command::new("false"), &mut Command::new("true"), 1, LISTEN).err().unwrap();
        assert!(error.to_string().contains("before it listened on port 1"), "{error}");
    }

    #[test]
    fn the_peer_of_a_failed_program_is_killed() {
        use std::os::unix::process::CommandExt;
        let spawn = |script: &str| {
            let mut command = Command::new("sh");
            Child::spawn(command.args(["-c", script]).process_group(0), script).unwrap()
        };
        let begin = Instant::now();
        let error = finish(spawn("exec sleep 60"), spawn("echo why; exit 1"), LISTEN).err().unwrap().to_string();
        assert!(error.contains("its peer failed") && error.contains("why"), "{error}");
        assert!(begin.elapsed() < LISTEN);
    }
}
