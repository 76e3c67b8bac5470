//! Opens the device that is measured: both programs on this machine, or the receiver on another.

use super::TuneArgs;
use super::device::{self, Device};
use super::peer::{PORT, Peer};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;
use weir_lab::stream::session::{Pair, Program, Server};
use weir_lab::stream::{Measure, Session};
use weir_stage::{Side, Stage};

/// Bytes of a packet between namespaces, for the largest MTU of an adapter.
const STAGE_MTU: u32 = 9000;

/// What measures, and the device that it uses.
pub struct Opened {
    pub measure: Box<dyn Measure>,
    /// Name of the device.
    pub adapter: String,
    /// The adapter is Weir.
    pub weir: bool,
}

/// A pair of programs on `args.device`, the receiver on `args.peer` if it is given.
pub fn open(args: &TuneArgs) -> Result<Opened> {
    let library = weir_stage::library_folder()?;
    if args.namespaces {
        let weir = device::this_command()?;
        let stage = Stage::new(STAGE_MTU)?.unpinned();
        let reason = stage.loopback_reason().unwrap_or_default();
        ensure!(reason.is_empty(), "--namespaces: {reason}");
        let adapter = stage.device();
        let measure = Box::new(Session::on_stage(stage, &weir, &library)?);
        return Ok(Opened { measure, adapter, weir: true });
    }
    let peer = args.peer.as_deref().map(|host| Peer::new(host, args)).transpose()?;
    let device = Device::choose(args.device.as_deref(), peer.as_ref().map(Peer::address).transpose()?)?;
    let program = device.program(&library)?;
    program.check()?;
    let Device { name: adapter, weir } = device;
    let session = match peer {
        Some(peer) => with_peer(peer, program, weir)?,
        None => here(program)?,
    };
    Ok(Opened { measure: Box::new(session), adapter, weir })
}

/// Both sides on this machine, as two programs of it run.
fn here(program: Program) -> Result<Session> {
    let ports = Stage::loopback()?;
    Ok(Session::new(move || {
        let port = ports.free_port(Side::A)?;
        let side = || program.command(spawned, port);
        Pair::start(Server::Here(side(), port), || Ok((side(), "127.0.0.1".into())))
    }))
}

/// The sender here, the receiver at the peer.
fn with_peer(peer: Peer, program: Program, weir: bool) -> Result<Session> {
    let by_ssh = peer.reach(weir)?;
    Ok(Session::new(move || {
        let (host, port) = (peer.host.clone(), peer.port);
        let mut client = program.command(spawned, port);
        let server = if by_ssh {
            // A receiver of another run may still listen there.
            let token = Peer::token();
            client.args(["--token", &token.to_string()]);
            Server::Elsewhere { command: peer.by_ssh(weir, token), host, port }
        } else {
            Server::Runs
        };
        Pair::start(server, || Ok((client, peer.host.clone())))
    }))
}

fn spawned(program: &Path) -> Command {
    let mut command = Command::new(program);
    weir_stage::ends_with_this_thread(&mut command);
    command
}

/// `weir tune --serve`: becomes the receiver.
pub fn serve(args: &TuneArgs) -> Result<std::process::ExitCode> {
    use std::os::unix::process::CommandExt;
    let device = Device::choose(args.device.as_deref(), None)?;
    let program = device.program(&weir_stage::library_folder()?)?;
    program.check()?;
    let port = args.port.unwrap_or(PORT);
    let mut command = program.command(|path| Command::new(path), port);
    command.args(["--token", &args.token.to_string()]);
    if args.once {
        command.arg("--with-input");
    } else {
        eprintln!("weir: receiving on {}, TCP port {port}; end with Ctrl-C", device.name);
        command.arg("--stay");
    }
    Err(command.exec()).context("starting weir-stream")
}
