//! What the engine and the objects both see of an adapter: all of it except the engine itself.

use crate::Errno;
use crate::config::Config;
use crate::local::endpoint::{MAX_RINGS, Sleepers};
use crate::memory::device_memory::Budget;
use crate::memory::keys::Regions;
use crate::os::descriptors;
use crate::os::interfaces::DeviceInfo;
use crate::os::locks::{LeafGuard, LeafMutex};
use crate::os::process::{Owned, OwnerProcess};
use crate::os::refused::refused;
use crate::os::watch::Watch;
use crate::pace::Pace;
use crate::paging::Resolver;
use crate::shared::addresses::Addresses;
use crate::shared::allowed_hosts;
use crate::shared::arrival_errors::ArrivalErrorLog;
use crate::shared::condition::Condition;
use crate::shared::cq::AllCqs;
use crate::shared::doorbells::Doorbells;
use crate::shared::drop_log::DropLog;
use crate::shared::gathering::Gathering;
use crate::shared::route::Route;
use crate::shared::send_errors::SendErrorLog;
use crate::slot;
use crate::stat::sheet;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use weir_transport::{AddressVector, Instant, Profile, Side};

/// An adapter without its engine.
pub(crate) struct AdapterState {
    pub device: DeviceInfo,
    pub config: Config,
    pub watch: Owned<Watch>,
    /// Whether it has failed.
    pub condition: Condition,
    pub profile: Arc<Profile>,
    pub regions: Regions,
    pub addresses: Addresses,
    pub device_memory: Budget,
    /// Failed sends, for the log.
    pub send_errors: SendErrorLog,
    /// Arrivals that were dropped, for the log.
    pub arrival_errors: ArrivalErrorLog,
    pub dropped: DropLog,
    pub pace: Arc<Owned<Pace>>,
    /// The rings that the engine's thread waits for when it sleeps.
    pub sleepers: Arc<Sleepers>,
    /// Descriptors of the slot and the ports. A forked child closes them.
    sockets: LeafMutex<Vec<RawFd>>,
    /// What all its CQs share.
    pub cqs: Arc<AllCqs>,
    /// Resolves page faults; set when there is an on-demand region.
    pub resolver: OnceLock<Arc<Resolver>>,
    /// Sides of QPs with resolved pages, for the engine's next turn.
    resolved: LeafMutex<Vec<(u32, Side)>>,
    any_resolved: AtomicBool,
    /// QPs with new work, each once.
    pub doorbells: Doorbells,
    /// Which requests wait to leave together while no program polls.
    pub gathering: Gathering,
    pds: AtomicU32,
    owner_process: OwnerProcess,
    /// The device's part of the statistics sheet, which other processes read.
    pub shown: &'static sheet::Device,
}

/// What an adapter's state is made of.
pub(crate) struct Parts {
    pub device: DeviceInfo,
    pub config: Config,
    pub watch: Watch,
    pub profile: Arc<Profile>,
    /// Bytes of device memory.
    pub device_memory: u64,
    pub pace: Arc<Owned<Pace>>,
    /// Descriptors of the slot and the ports.
    pub sockets: Vec<RawFd>,
    pub shown: &'static sheet::Device,
}

impl AdapterState {
    /// The state of an adapter of this process that works.
    pub fn new(parts: Parts) -> AdapterState {
        AdapterState {
            device: parts.device,
            config: parts.config,
            watch: Owned::with_descriptors(parts.watch),
            condition: Condition::new(),
            profile: parts.profile,
            regions: Regions::default(),
            addresses: Addresses::default(),
            device_memory: Budget::new(parts.device_memory),
            send_errors: SendErrorLog::default(),
            arrival_errors: ArrivalErrorLog::default(),
            dropped: DropLog::default(),
            pace: parts.pace,
            sleepers: Arc::new(Sleepers::new(MAX_RINGS)),
            sockets: LeafMutex::new(parts.sockets),
            cqs: Arc::default(),
            resolver: OnceLock::new(),
            resolved: LeafMutex::new(Vec::with_capacity(64)),
            any_resolved: AtomicBool::new(false),
            doorbells: Doorbells::new(),
            gathering: Gathering::new(),
            pds: AtomicU32::new(1),
            owner_process: OwnerProcess::current(),
            shown: parts.shown,
        }
    }

    /// Descriptors that a forked child must close.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let mut descriptors = self.pace.descriptors();
        descriptors.extend(self.watch.descriptors());
        // Allocated without the lock, which the engine takes. Its list has room for more than it gets.
        let count = self.sockets.lock().capacity();
        descriptors.reserve(count);
        let room = descriptors.capacity() - descriptors.len();
        descriptors.extend(self.sockets.lock().iter().take(room));
        descriptors
    }

    /// Adds sockets that a forked child must close too.
    pub fn add_sockets(&self, sockets: &[RawFd]) {
        self.sockets.lock().extend(sockets);
        descriptors::register(sockets);
    }

    /// Removes a socket that is about to be closed.
    pub fn forget_socket(&self, socket: RawFd) {
        self.sockets.lock().retain(|other| *other != socket);
        self.pace.forget(socket);
        descriptors::forget(&[socket]);
    }

    /// EIO if the adapter has failed, and in a forked child, which must not use its parent's adapter.
    #[inline]
    pub fn check(&self) -> Result<(), Errno> {
        if self.is_ours() && self.condition.works() { Ok(()) } else { Err(Errno(libc::EIO)) }
    }

    /// Returns whether this process made it.
    #[inline]
    pub fn is_ours(&self) -> bool {
        !self.owner_process.is_inherited()
    }

    /// Number of packets dropped because of their P_Key.
    pub fn pkey_violations(&self) -> u64 {
        self.shown.traffic.pkey_violations.get()
    }

    /// A number for a new PD.
    pub fn new_pd(&self) -> u32 {
        self.pds.fetch_add(1, Ordering::Relaxed)
    }

    /// The route of an address vector. EINVAL if it has no GRH or an index without a GID; EACCES if `--allow` leaves its
    /// host out. A multicast group is no host. `qp` is for the log.
    pub fn route(&self, av: &AddressVector, qp: Option<u32>) -> Result<Route, Errno> {
        let route = Route::resolve(&self.device, self.watch.device().as_ref(), av)?;
        if !route.remote.is_multicast() {
            self.permits(route.remote, qp)?;
        }
        Ok(route)
    }

    /// EACCES if `--allow` leaves a host out. `qp` is for the log.
    pub fn permits(&self, remote: IpAddr, qp: Option<u32>) -> Result<(), Errno> {
        let allowed = &self.config.allowed;
        if allowed_hosts::holds(allowed, remote) {
            return Ok(());
        }
        let qp = qp.map(|num| format!(", QP {num:#08x}")).unwrap_or_default();
        let why = format_args!(
            "{}{qp}: {remote} is not an allowed address: WEIR_ALLOW is {allowed}. Add it to the option --allow of `weir \
             run`",
            self.device.name
        );
        Err(refused(libc::EACCES, why))
    }

    /// The route of an address vector for a connection from the QP `own` to the QP `qpn`. Without a GRH the vector names no
    /// host; programs that were written for InfiniBand (`ibv_rc_pingpong` without `-g`) leave it out. They mean this host
    /// if a process here has the peer's QPN. Error: as of [`route`](Self::route).
    pub fn route_to(&self, av: &AddressVector, qpn: u32, own: u32) -> Result<Route, Errno> {
        if !av.is_global
            && slot::is_claimed(qpn)?
            && let Some(route) = Route::to_itself(&self.device, self.watch.device().as_ref())
        {
            return Ok(route);
        }
        self.route(av, Some(own))
    }

    /// Returns whether pages of a QP have come since the last `take_resolved`.
    #[inline]
    pub fn has_resolved(&self) -> bool {
        self.any_resolved.load(Ordering::Acquire)
    }

    /// Takes the sides of QPs with pages resolved by `now` (nanoseconds). Returns the time at which to look again,
    /// where pages come late (nanoseconds).
    pub fn take_resolved(&self, into: &mut Vec<(u32, Side)>, now: u64) -> Option<u64> {
        self.any_resolved.store(false, Ordering::Release);
        std::mem::swap(&mut *self.resolved(), into);
        if !self.resolves_late() {
            return None;
        }
        self.resolver.get()?.take_due(now, |num, side| into.push((num, side)))
    }

    /// Returns whether page faults take a time drawn from the profile, rather than as long as populating memory takes.
    pub fn resolves_late(&self) -> bool {
        !self.profile.page_faults.resolve.high.is_zero()
    }

    /// Queues a page-fault event of a QP's requester ([`weir_transport::FaultEvents::met_fault`]).
    pub fn met_fault(&self, now: Instant, num: u32, resumes: bool) {
        if let Some(resolver) = self.resolver.get() {
            resolver.events(|events| events.met_fault(now, num, resumes));
        }
    }

    /// Whether a QP's requester continues by a page-fault event, rather than when its page is present.
    pub fn waits_for_fault_event(&self, num: u32) -> bool {
        self.resolver.get().is_some_and(|resolver| resolver.events(|events| events.waits(num)))
    }

    /// Calls `each` with each QP for its requester to resume now. Returns the time of the next call (nanoseconds).
    pub fn resume_requesters(&self, now: Instant, mut each: impl FnMut(u32)) -> Option<u64> {
        self.resolver.get()?.events(|events| {
            std::iter::from_fn(|| events.poll(now)).for_each(&mut each);
            events.next().map(|next| next.0)
        })
    }

    /// Discards the page-fault events of a QP.
    pub fn forget_fault_events(&self, num: u32) {
        if let Some(resolver) = self.resolver.get() {
            resolver.events(|events| events.forget(num));
        }
    }

    /// The engine's next turn must look at `resolved`, or at pages that came late.
    pub fn note_resolved(&self) {
        self.any_resolved.store(true, Ordering::Release);
    }

    /// The sides of QPs with resolved pages that the engine has not taken yet.
    pub fn resolved(&self) -> LeafGuard<'_, Vec<(u32, Side)>> {
        self.resolved.lock()
    }
}
