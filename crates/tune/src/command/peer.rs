//! The receiver on another machine: through ssh, or started by the user.

use super::TuneArgs;
use super::device::{SYSTEM, WEIR};
use anyhow::{Context, Result, bail};
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The TCP port of the receiver on another machine.
pub const PORT: u16 = 18516;
/// How long the user has for starting the receiver.
const PATIENCE: Duration = Duration::from_secs(600);
/// Interval of looking for it.
const TICK: Duration = Duration::from_secs(1);

/// Another machine.
pub struct Peer {
    /// As the user names it for ssh: `host` or `user@host`.
    login: String,
    pub host: String,
    pub port: u16,
    /// Its `weir` command, and the device that it uses.
    weir: String,
    device: Option<String>,
}

impl Peer {
    /// The machine `login`, with the port and the device of the options.
    pub fn new(login: &str, args: &TuneArgs) -> Result<Peer> {
        let host = login.rsplit('@').next().unwrap_or(login);
        // It is an argument of ssh.
        if host.is_empty() || login.starts_with('-') {
            bail!("--peer {login}: give a host, or user@host");
        }
        Ok(Peer {
            login: login.into(),
            host: host.into(),
            port: args.port.unwrap_or(PORT),
            weir: args.peer_weir.clone().unwrap_or_else(|| "weir".into()),
            device: args.peer_device.clone(),
        })
    }

    /// The address of this machine from which it reaches the peer.
    pub fn address(&self) -> Result<IpAddr> {
        let why = || format!("--peer {}", self.host);
        let to = (&*self.host, self.port).to_socket_addrs().with_context(why)?.next().with_context(why)?;
        let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        // It sends nothing.
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(to).with_context(why)?;
        Ok(socket.local_addr()?.ip())
    }

    /// True: ssh can start the receiver. Otherwise the user is told to, and it runs when this returns.
    pub fn reach(&self, weir: bool) -> Result<bool> {
        let tried = self.ssh().args([&*self.weir, "--version"]).stdin(Stdio::null()).output();
        let why = match tried {
            Ok(output) if output.status.success() => return Ok(true),
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().lines().last().unwrap_or_default().to_owned(),
            Err(error) => error.to_string(),
        };
        eprintln!("weir: ssh {} {} --version does not work: {why}", self.login, self.weir);
        eprintln!("weir: start the receiver there, for which this waits:\n\n  {}\n", self.words(weir, false).join(" "));
        let end = Instant::now() + PATIENCE;
        while TcpStream::connect((&*self.host, self.port)).is_err() {
            if Instant::now() > end {
                bail!("no receiver was started on {}, TCP port {}, within {PATIENCE:?}", self.host, self.port);
            }
            std::thread::sleep(TICK);
        }
        Ok(false)
    }

    /// A number that both sides of a run share.
    pub fn token() -> u32 {
        RandomState::new().hash_one(()) as u32 & i32::MAX as u32
    }

    /// Starts the receiver, which serves one sender. It ends with its input if none comes.
    pub fn by_ssh(&self, weir: bool, token: u32) -> Command {
        let mut command = self.ssh();
        command.args(self.words(weir, true)).args(["--token", &token.to_string()]);
        weir_stage::ends_with_this_thread(&mut command);
        command
    }

    /// The command line of the receiver.
    fn words(&self, weir: bool, once: bool) -> Vec<String> {
        let mut words = vec![self.weir.clone(), "tune".into(), "--serve".into()];
        // The peer must not choose a device of the other kind.
        let kind = if weir { WEIR } else { SYSTEM };
        words.extend(["--device".into(), self.device.clone().unwrap_or_else(|| kind.into())]);
        if self.port != PORT || once {
            words.extend(["--port".into(), self.port.to_string()]);
        }
        words.extend(once.then(|| "--once".to_owned()));
        words
    }

    fn ssh(&self) -> Command {
        let mut command = Command::new("ssh");
        command.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=5", &self.login]);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receivers_command_line_has_the_kind_of_adapter() {
        let args = TuneArgs { port: Some(4000), ..TuneArgs::default() };
        let peer = Peer::new("me@far", &args).unwrap();
        assert_eq!((&*peer.host, &*peer.login), ("far", "me@far"));
        assert_eq!(peer.words(true, true).join(" "), "weir tune --serve --device weir --port 4000 --once");
        let args = TuneArgs { peer_device: Some("mlx5_0".into()), ..TuneArgs::default() };
        let peer = Peer::new("far", &args).unwrap();
        assert_eq!(peer.words(false, false).join(" "), "weir tune --serve --device mlx5_0");
        let peer = Peer::new("far", &TuneArgs::default()).unwrap();
        assert_eq!(peer.words(false, false).join(" "), "weir tune --serve --device system");
        assert!(Peer::new("-oProxyCommand=x", &args).is_err() && Peer::new("", &args).is_err());
    }

    #[test]
    fn this_machine_reaches_itself_from_loopback() {
        let peer = Peer::new("127.0.0.1", &TuneArgs::default()).unwrap();
        assert_eq!(peer.address().unwrap(), IpAddr::from([127, 0, 0, 1]));
    }
}
