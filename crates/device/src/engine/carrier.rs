//! The carrier of an adapter: its ports, wrapped for capture and fault injection as the environment asks.

use crate::Errno;
use crate::config::Config;
use crate::engine::peers::hello;
use crate::os::device_info::{DeviceInfo, RDMA_HEADERS};
use crate::os::locks::{RankedMutex, rank};
use crate::os::per_process::PerProcess;
use crate::os::threads;
use crate::os::{clock, deaths, descriptors};
use crate::slot::is_slot_port;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use weir_link::capture::{Capture, CaptureInterface, CaptureOptions, Descriptors};
use weir_link::faults::Faults;
use weir_link::{Carrier, Ports};
use weir_links::{Bundle, Interface, Settings};

/// Stack of the thread that writes a capture, bytes.
const STACK: usize = 256 << 10;

/// The most bytes of a packet of a QP: payload, headers, pad.
const LARGEST: usize = 4096 + RDMA_HEADERS + 4;

/// The ports, with capture and fault injection around them if configured; the capture records what fault
/// injection did. Around both, what joins the interfaces of a device that has several: capture and faults are about what
/// is on each. Errors: the capture file; there are no random numbers.
pub fn wrap(ports: Ports, device: &DeviceInfo, config: &Config) -> Result<Box<dyn Carrier>, Errno> {
    let port = ports.port();
    let mut carrier: Box<dyn Carrier> = match &config.capture {
        None => Box::new(ports),
        Some(path) => {
            let capture = captured(ports, device, config, path)?;
            deaths::install();
            Box::new(capture)
        }
    };
    if let Some(spec) = &config.faults {
        let mut faults = Faults::new(carrier, spec);
        tracing::info!("{}: faults {spec:?}, seed {}", device.name, faults.seed());
        if tracing::enabled!(tracing::Level::INFO) {
            let (name, seed, process) = (device.name.clone(), faults.seed(), std::process::id());
            faults.at_end(move |outgoing, incoming| {
                let report = move || tracing::info!("{name}: faults of seed {seed}, in {}", outgoing.plus(incoming));
                // A forked child has a copy of the carrier, and must not log. The log runs on its own thread, because
                // at exit the thread-local storage that it needs is gone on the exiting thread.
                if process == std::process::id() {
                    let _ = std::thread::Builder::new().spawn(report).map(std::thread::JoinHandle::join);
                }
            });
        }
        carrier = Box::new(faults);
    }
    if device.is_joined() {
        let settings = Settings {
            interfaces: device.links.clone(),
            parameters: config.profile.links.parameters,
            scheduler: config.profile.links.scheduler,
            port,
            largest: LARGEST,
            is_peer: is_slot_port,
            is_control: |packet| packet.starts_with(&hello::MAGIC),
            clock: || clock::now().0,
        };
        carrier = Box::new(Bundle::new(carrier, settings)?);
    }
    Ok(carrier)
}

/// The ports with a capture around them.
fn captured(ports: Ports, device: &DeviceInfo, config: &Config, path: &Path) -> Result<Capture<Ports>, Errno> {
    let program = std::env::current_exe().unwrap_or_default();
    let description = format!("{} of {} (pid {})", device.name, program.display(), std::process::id());
    let one = CaptureInterface { name: &device.ifname, index: device.ifindex, mac: device.mac };
    let several: Vec<CaptureInterface<'_>> = device.links.all.iter().map(recorded).collect();
    let options = CaptureOptions {
        interfaces: if device.is_joined() { &several } else { &[one] },
        port: ports.port(),
        description: &description,
        snap: config.capture_snap,
        without_icrc: !config.needs_icrc(),
        spawn: Some(spawn),
        descriptors: Descriptors {
            opened: descriptors::lend,
            closes: descriptors::take_back,
            is_own: descriptors::is_marked,
        },
        ..CaptureOptions::default()
    };
    let capture = match config.capture_ring {
        None => {
            let path = unused(path, &device.ifname);
            Capture::create(ports, &path, &options).inspect_err(|error| log_error(&path, error))?
        }
        Some(size) => {
            let (path, interface) = (path.to_owned(), device.ifname.clone());
            check_writable(&path).inspect_err(|error| log_error(&path, error))?;
            let opened = SystemTime::now();
            // On the thread that writes, at the first stall or error: a run without any leaves other files alone.
            let open = move || {
                let mut path = unused(&path, &interface);
                // A process of the same run may have written it and ended.
                if path.metadata().and_then(|file| file.modified()).is_ok_and(|written| written >= opened)
                    && path.metadata().is_ok_and(|file| file.len() > 0)
                {
                    path = beside(&path, &interface);
                }
                File::create(&path).inspect_err(|error| log_error(&path, error))
            };
            Capture::remember(ports, Box::new(open), size, &options)
                .inspect_err(|error| tracing::error!("WEIR_CAPTURE_RING={size}: {error}"))?
        }
    };
    Ok(capture)
}

fn recorded(interface: &Interface) -> CaptureInterface<'_> {
    CaptureInterface { name: &interface.name, index: interface.index, mac: interface.mac }
}

fn log_error(path: &Path, error: &io::Error) {
    tracing::error!("WEIR_CAPTURE: {}: {error}", path.display());
}

/// Starts the thread that writes a capture.
fn spawn(body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    threads::spawn_unwatched(c"weir-capture", STACK, body).map_err(|error| io::Error::from_raw_os_error(error.0))
}

/// Whether a file can be made there later, without a trace of the question.
fn check_writable(path: &Path) -> io::Result<()> {
    let path = PathBuf::from(path.to_string_lossy().replace("%p", &std::process::id().to_string()));
    match OpenOptions::new().append(true).open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            OpenOptions::new().append(true).create_new(true).open(&path)?;
            std::fs::remove_file(&path)
        }
        other => other.map(|_| ()),
    }
}

/// The path with the pid and the interface before its extension.
fn beside(path: &Path, interface: &str) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let ending = path.extension().unwrap_or("pcapng".as_ref()).to_string_lossy();
    path.with_file_name(format!("{stem}.{}.{interface}.{ending}", std::process::id()))
}

/// The path with `%p` replaced by the pid. If another process writes that file, or this process does for another
/// device, the pid and the interface are inserted before its extension.
fn unused(path: &Path, interface: &str) -> PathBuf {
    /// The lock on a file lasts until the process ends.
    static CLAIMED: PerProcess<RankedMutex<Vec<File>, { rank::CAPTURES }>> = PerProcess::new();
    let pid = std::process::id();
    let path = PathBuf::from(path.to_string_lossy().replace("%p", &pid.to_string()));
    let claim = OpenOptions::new().create(true).append(true).open(&path).and_then(|file| match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    });
    match claim {
        Ok(Some(file)) => CLAIMED.get().lock().push(file),
        Ok(None) => {
            return beside(&path, interface);
        }
        // Creating the capture reports this error.
        Err(_) => {}
    }
    path
}
