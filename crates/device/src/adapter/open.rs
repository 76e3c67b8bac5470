//! Opening and closing an adapter.

use crate::adapter::fork;
use crate::adapter::local_links::MORE_DESCRIPTORS;
use crate::adapter::registry::OPEN;
use crate::adapter::{Adapter, device_fatal, process_exit, thread};
use crate::config::{Config, Userfaultfd};
use crate::engine::{Engine, Turn, may_be_local};
use crate::limits::LIMITS;
use crate::local::listener::Listener;
use crate::memory::{copy, populate};
use crate::os::clock;
use crate::os::descriptors::{self, DescriptorGuard};
use crate::os::engine_hold::holds_engine;
use crate::os::interfaces::{self, DeviceInfo};
use crate::os::netlink::Netlink;
use crate::os::panics::{self, catch_panic};
use crate::os::per_process::OnceInherited;
use crate::os::process::Owned;
use crate::os::refused::refused;
use crate::os::threads::with_signals_blocked;
use crate::os::watch::Watch;
use crate::pace::{MORE_SOCKETS, Pace};
use crate::paging::MAX_ADAPTERS;
use crate::shared::handover::Handover;
use crate::shared::state::{AdapterState, Parts};
use crate::slot::Slot;
use crate::stat::{publish, sheet};
use crate::tap::Tap;
use crate::{Errno, userfault};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Weak};
use tracing::level_filters::LevelFilter;
use weir_link::DisabledFeatures;
use weir_transport::{PageFaults, Profile, RequesterFaults, ResponderFaults};

/// Failed polls within one turn of the holder before a poll sleeps: about 100 µs, longer than nearly all turns.
const MISSES: u32 = 2048;

impl Adapter {
    /// The adapter of a device, made if this process has none. A device may have several, each with its own profile.
    pub fn open(name: &str, profile: Option<&Profile>) -> Result<Arc<Adapter>, Errno> {
        let mut open = OPEN.get().lock();
        open.retain(|adapter| adapter.strong_count() > 0);
        let here = open.iter().filter_map(Weak::upgrade);
        let same = |adapter: &Adapter| {
            adapter.own_profile == profile.is_some() && profile.is_none_or(|p| *adapter.profile == *p)
        };
        let fits = |adapter: &Arc<Adapter>| adapter.device.name == name && same(adapter) && adapter.check().is_ok();
        if let Some(adapter) = here.into_iter().find(fits) {
            return Ok(adapter);
        }
        if open.len() >= MAX_ADAPTERS {
            return Err(refused(
                libc::EMFILE,
                format_args!("{name}: this process has {MAX_ADAPTERS} devices open, which is the limit: close others"),
            ));
        }
        static FAIL_ALL: fn() = device_fatal::fail_all;
        panics::set_fail_all(&FAIL_ALL);
        fork::install_handlers();
        let _guard = DescriptorGuard::begin();
        let mut netlink = Netlink::open()?;
        let Some(device) = interfaces::device(&mut netlink, name)? else {
            refused(
                libc::ENODEV,
                format_args!(
                    "no device {name}: its interface is gone or has no address. `weir devices` shows those there are"
                ),
            );
            interfaces::unusable_interfaces()?.iter().for_each(|why| tracing::warn!("{why}"));
            return Err(Errno(libc::ENODEV));
        };
        let adapter = Arc::new(Self::start(device, netlink, profile)?);
        thread::start(&adapter).map_err(|error| {
            adapter.refuse(error.0, format_args!("no thread can be started: raise the limit (`ulimit -u`)"))
        })?;
        descriptors::register(&adapter.descriptors());
        process_exit::begin();
        open.push(Arc::downgrade(&adapter));
        Ok(adapter)
    }

    fn start(device: DeviceInfo, mut netlink: Netlink, profile: Option<&Profile>) -> Result<Adapter, Errno> {
        let config = Config::from_env().map_err(|error| {
            tracing::error!("{error}");
            Errno(libc::EINVAL)
        })?;
        copy::install_handler();
        let (disabled, auto) = (config.disabled, config.userfaultfd == Userfaultfd::Auto);
        userfault::install(auto && !disabled.contains(DisabledFeatures::USERFAULTFD));
        if disabled.contains(DisabledFeatures::MADV_POPULATE) {
            populate::disable_madvise();
        }
        at_exit();
        let (slot, ports) = Slot::claim_for(disabled, &config.allowed)
            .inspect_err(|error| tracing::error!("{}: {error}", device.name))?;
        let own_profile = profile.is_some();
        let profile = Arc::new(profile.unwrap_or(&config.profile).clone());
        let seen = interfaces::all(&mut netlink)?;
        let index = seen.iter().position(|other| other.name == device.name).unwrap_or(0);
        let watch = Watch::new(&device, netlink)?;
        let shown = publish::device(&device.name, index as u64)?;
        let listener = may_be_local(&config, &profile).then(|| Listener::open(slot.number()));
        let listener = listener.and_then(|listener| {
            let log = |error: &io::Error| {
                let name = &device.name;
                tracing::warn!("{name}: packets to other processes here go by UDP, which is slower: {error}")
            };
            listener.inspect_err(log).ok().map(Owned::with_descriptors)
        });
        let engine = Engine::new(&device, &config, &profile, slot, ports, shown, listener.is_some());
        let mut engine = engine.inspect_err(|_| shown.state.set(sheet::state::CLOSED))?;
        if publish::is_watched() {
            shown.tap.watch(clock::now().0);
            // Without a tap the first turn asks for one, and the watcher learns why there is none.
            engine.exchange_tap(Tap::create(&shown.tap).ok().map(Box::new));
        }
        let mut sockets = engine.descriptors();
        let local = listener.as_ref().map(|listener| listener.as_raw_fd());
        let pace = Pace::new(sockets.clone(), watch.descriptor(), local, keeps_times(&profile));
        let pace = Arc::new(Owned::with_descriptors(pace.inspect_err(|_| shown.state.set(sheet::state::CLOSED))?));
        sockets.extend(listener.iter().flat_map(|listener| listener.descriptors()));
        sockets.reserve(MORE_SOCKETS + MORE_DESCRIPTORS);
        let device_memory = LIMITS.max_dm_size;
        let state = AdapterState::new(Parts { device, config, watch, profile, device_memory, pace, sockets, shown });
        let engine = Owned::with_descriptors(Handover::new(engine, MISSES));
        Ok(Adapter { state, own_profile, engine, listener, closing: None })
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        // In a forked child the descriptors are closed, and the engine's thread does not exist.
        if self.is_ours() {
            self.closing = Some(DescriptorGuard::begin());
            if let Some(resolver) = self.resolver.get() {
                resolver.end();
            }
            // Otherwise the numbers may be those of another adapter. Descriptors that stay open, after a loss of another
            // adapter too, must still be spared from the program's close and closed in a child.
            if !self.pace.has_lost() && !self.pace.stays_open() {
                descriptors::forget(&self.descriptors());
            }
            self.shown.state.set(sheet::state::CLOSED);
            log_traffic(self);
            self.pace.end();
        }
    }
}

/// Returns whether a profile has times of some hundred microseconds on the wire: too short for a thread that ticks.
fn keeps_times(profile: &Profile) -> bool {
    let PageFaults { requester, responder, .. } = profile.page_faults;
    requester != RequesterFaults::Wait || responder != ResponderFaults::Wait
}

/// Sends what is owed, and closes the carrier.
fn close_at_exit(adapter: &Adapter) {
    if adapter.is_ours() {
        // The other adapters are closed nevertheless.
        catch_panic(|| {
            adapter.with_engine(|engine| {
                engine.turn(adapter, Turn::FLUSH);
                engine.close();
            });
            log_traffic(adapter);
        });
    }
}

/// Says in the log what went over an adapter: the answer to "did this program use Weir?" when it has ended.
fn log_traffic(adapter: &Adapter) {
    let (name, traffic) = (&adapter.device.name, &adapter.shown.traffic);
    tracing::info!(
        "{name}: {} packets with {} bytes sent, {} with {} received (process {})",
        traffic.packets_sent.get(),
        traffic.bytes_sent.get(),
        traffic.packets_received.get(),
        traffic.bytes_received.get(),
        // Processes of one program may share a log.
        std::process::id()
    );
}

/// Registers an exit handler that sends owed ACKs, which the peer would otherwise wait for until it times out, and
/// completes captures. It runs after functions that are registered by `atexit` later.
pub fn at_exit() {
    static ONCE: OnceInherited = OnceInherited::new();
    extern "C" fn flush() {
        let Some(open) = OPEN.existing().and_then(|open| open.try_lock().map(|open| open.clone())) else { return };
        if holds_engine() {
            return;
        }
        // The log needs variables of its thread, and those of this thread are destroyed already.
        let logs = LevelFilter::current() != LevelFilter::OFF;
        let work = || open.iter().filter_map(Weak::upgrade).for_each(|adapter| close_at_exit(&adapter));
        let on_a_thread = || {
            std::thread::scope(|scope| {
                let thread = || std::thread::Builder::new().name("weir-exit".into()).spawn_scoped(scope, work);
                with_signals_blocked(thread).is_ok()
            })
        };
        // A panic that escapes would end the process by SIGABRT. The adapter has failed by then.
        catch_panic(|| {
            if !logs || !on_a_thread() {
                work();
            }
        });
    }
    // SAFETY: registers a function of the right type.
    ONCE.call_once(|| unsafe {
        libc::atexit(flush);
    });
}
