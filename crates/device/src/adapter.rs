//! One adapter: the engine of one device in one process, and the threads that drive it.
//!
//! A thread that posts or polls drives the engine inline if no other thread holds it. While no program polls, the
//! engine's thread does: see [`crate::engine::pace`]. Contexts of one device share an adapter; a forked child has none.

use crate::address::Addresses;
use crate::cancel::Uncancelled;
use crate::config::{Config, Userfaultfd};
use crate::ending;
use crate::engine::pace::Pace;
use crate::engine::parked::Parked;
use crate::engine::quirks::Reads;
use crate::engine::{Engine, Turn, thread};
use crate::failure::{Condition, Failed};
use crate::fork::{self, DescriptorGuard, Owned, OwnerProcess};
use crate::handover::{Doorbells, Handover};
use crate::interfaces::{self, DeviceInfo};
use crate::limits::LIMITS;
use crate::memory::device_memory::Budget;
use crate::memory::region::Regions;
use crate::memory::{copy, mask, populate};
use crate::netlink::Netlink;
use crate::paging::held::HeldPackets;
use crate::paging::{Owner, Resolver};
use crate::per_process::{OnceInherited, PerProcess};
use crate::room::Grow;
use crate::route::Route;
use crate::send_errors::SendErrorLog;
use crate::shared::cq::AllCqs;
use crate::shared::qp::QpShared;
use crate::slot::Slot;
use crate::stat::{publish, sheet};
use crate::watch::Watch;
use crate::{Errno, clock, failure, userfault};
use std::cell::Cell;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::time::Duration;
use weir_link::DisabledFeatures;
use weir_transport::{AddressVector, PageFaults, Profile, Psn, RequesterFaults, ResponderFaults, Side};

/// A device's engine in this process.
pub(crate) struct Adapter {
    pub device: DeviceInfo,
    pub config: Config,
    pub watch: Owned<Watch>,
    /// Whether it has failed.
    pub condition: Condition,
    pub profile: Arc<Profile>,
    /// The profile was given by the caller of [`Adapter::open`], not by the environment.
    own_profile: bool,
    pub regions: Regions,
    pub addresses: Addresses,
    pub device_memory: Budget,
    /// Failed sends, for the log.
    pub send_errors: SendErrorLog,
    pub pace: Arc<Owned<Pace>>,
    /// Descriptors of the slot and the ports. A forked child closes them.
    sockets: Mutex<Vec<RawFd>>,
    /// What all its CQs share.
    pub cqs: Arc<AllCqs>,
    /// Resolves page faults; set when there is an on-demand region.
    resolver: OnceLock<Arc<Resolver>>,
    /// Sides of QPs with resolved pages, for the engine's next turn.
    resolved: Mutex<Vec<(u32, Side)>>,
    any_resolved: AtomicBool,
    /// The limit of the READs of all QPs together, set with the first QP; `None` if the profile has none.
    reads: OnceLock<Option<Arc<Reads>>>,
    engine: Owned<Handover<Engine>>,
    /// QPs with new work, each once.
    doorbells: Doorbells,
    pds: AtomicU32,
    owner_process: OwnerProcess,
    /// The device's part of the statistics sheet, which other processes read.
    shown: &'static sheet::Device,
    /// Held while the descriptors are closed. The last member: members are dropped in this order.
    closing: Option<DescriptorGuard>,
}

static OPEN: PerProcess<Mutex<Vec<Weak<Adapter>>>> = PerProcess::new();

thread_local! {
    /// This thread holds an engine. A memory hook of the program may call back into the library then.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Failed polls within one turn of the holder before a poll sleeps: about 100 µs, longer than nearly all turns.
const MISSES: u32 = 2048;
/// How long such a poll sleeps at most.
const ASLEEP: Duration = Duration::from_millis(1);

/// A posted burst of this many bytes goes out at once.
const FULL_BURST: u32 = 64 << 10;

impl Adapter {
    /// The adapter of a device, made if this process has none. A device may have several, each with its own profile.
    pub fn open(name: &str, profile: Option<&Profile>) -> Result<Arc<Adapter>, Errno> {
        let mut open = OPEN.get().lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|adapter| adapter.strong_count() > 0);
        let here = open.iter().filter_map(Weak::upgrade);
        let same = |adapter: &Adapter| {
            adapter.own_profile == profile.is_some() && profile.is_none_or(|p| *adapter.profile == *p)
        };
        let fits = |adapter: &Arc<Adapter>| adapter.device.name == name && same(adapter) && adapter.check().is_ok();
        if let Some(adapter) = here.into_iter().find(fits) {
            return Ok(adapter);
        }
        fork::install_handlers();
        let _guard = DescriptorGuard::begin();
        let mut netlink = Netlink::open()?;
        let Some(device) = interfaces::device(&mut netlink, name)? else {
            tracing::warn!("no device {name}: there is no interface of that name with an address");
            interfaces::unusable_interfaces()?.iter().for_each(|why| tracing::warn!("{why}"));
            return Err(Errno(libc::ENODEV));
        };
        let adapter = Arc::new(Self::start(device, netlink, profile)?);
        thread::start(&adapter)?;
        fork::register(&adapter.descriptors());
        ending::begin();
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
        let (slot, ports) = Slot::claim(disabled).inspect_err(|error| tracing::error!("{}: {error}", device.name))?;
        let own_profile = profile.is_some();
        let profile = Arc::new(profile.unwrap_or(&config.profile).clone());
        let seen = interfaces::all(&mut netlink)?;
        let index = seen.iter().position(|other| other.name == device.name).unwrap_or(0);
        let watch = Owned::new(Watch::new(&device, netlink)?);
        let shown = publish::device(&device.name, index as u64)?;
        let engine = Engine::new(&device, &config, &profile, slot, ports, shown);
        let engine = engine.inspect_err(|_| shown.state.set(sheet::state::CLOSED))?;
        let sockets = engine.descriptors();
        let pace = Pace::new(sockets.clone(), watch.descriptor(), keeps_times(&profile));
        let pace = Arc::new(Owned::new(pace.inspect_err(|_| shown.state.set(sheet::state::CLOSED))?));
        Ok(Adapter {
            device,
            config,
            watch,
            condition: Condition::new(),
            profile,
            own_profile,
            regions: Regions::default(),
            addresses: Addresses::default(),
            device_memory: Budget::new(LIMITS.max_dm_size),
            send_errors: SendErrorLog::default(),
            pace,
            sockets: Mutex::new(sockets),
            cqs: Arc::default(),
            resolver: OnceLock::new(),
            resolved: Mutex::new(Vec::with_capacity(64)),
            any_resolved: AtomicBool::new(false),
            reads: OnceLock::new(),
            engine: Owned::new(Handover::new(engine, MISSES)),
            doorbells: Doorbells::new(),
            pds: AtomicU32::new(1),
            owner_process: OwnerProcess::current(),
            shown,
            closing: None,
        })
    }

    /// Descriptors that a forked child must close.
    fn descriptors(&self) -> Vec<RawFd> {
        let mut descriptors = self.pace.descriptors();
        descriptors.extend(self.watch.descriptors());
        descriptors.extend(self.sockets.lock().unwrap_or_else(PoisonError::into_inner).iter());
        descriptors
    }

    /// Adds sockets that a forked child must close too.
    pub fn add_sockets(&self, sockets: &[RawFd]) {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).extend(sockets);
        fork::register(sockets);
    }

    /// Removes a socket that is about to be closed.
    pub fn forget_socket(&self, socket: RawFd) {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| *other != socket);
        self.pace.forget(socket);
        fork::forget(&[socket]);
    }

    /// EIO if the adapter has failed, and in a forked child, which must not use its parent's adapter.
    #[inline]
    pub fn check(&self) -> Result<(), Errno> {
        if self.is_ours() && self.condition.works() { Ok(()) } else { Err(Errno(libc::EIO)) }
    }

    /// Whether this process made it.
    #[inline]
    pub fn is_ours(&self) -> bool {
        !self.owner_process.is_inherited()
    }

    /// Marks the adapter as untrusted: it fails in a turn of this thread, or in another turn of the holder.
    #[cold]
    pub fn mark_failed(&self) {
        if self.is_ours() {
            self.condition.mark_failed();
            self.engine.want_turn(|engine| self.another_turn(engine));
        }
    }

    /// Number of packets dropped because of their P_Key.
    pub fn pkey_violations(&self) -> u64 {
        self.shown.traffic.pkey_violations.get()
    }

    pub fn new_pd(&self) -> u32 {
        self.pds.fetch_add(1, Ordering::Relaxed)
    }

    /// The route of an address vector. EINVAL if it has no GRH or an index without a GID.
    pub fn route(&self, av: &AddressVector) -> Result<Route, Errno> {
        Route::resolve(&self.device, self.watch.device().as_ref(), av)
    }

    /// Adds a QP; `make` gets its number. ENOMEM if the table is full.
    pub fn add_qp(
        self: &Arc<Self>,
        make: impl FnOnce(u32) -> Result<Arc<QpShared>, Errno>,
    ) -> Result<Arc<QpShared>, Errno> {
        let (shared, count) = self.with_engine(|engine| {
            self.check()?;
            let shared = engine.add_qp(make)?;
            // No turn comes between growing the one list and the other: each turn swaps them.
            self.doorbells.reserve(engine.qps());
            Ok::<_, Errno>((shared, engine.qps()))
        })?;
        if let Some(resolver) = self.resolver.get()
            && let Err(error) = self.make_room_for_faults(resolver, count)
        {
            self.with_engine(|engine| engine.remove_qp(self, shared.num, self.clone()));
            return Err(error);
        }
        Ok(shared)
    }

    /// The resolver of page faults, started by the first call. EAGAIN if the system gives no threads.
    pub fn resolver(self: &Arc<Self>) -> Result<Arc<Resolver>, Errno> {
        let owner: Weak<Adapter> = Arc::downgrade(self);
        let resolver = self.resolver.get_or_init(|| Resolver::new(owner, &self.profile));
        resolver.start()?;
        let spare = Box::new(HeldPackets::new()?);
        let (spare, count) = self.with_engine(|engine| (engine.provide_held_buffers(spare), engine.qps()));
        drop(spare);
        self.make_room_for_faults(resolver, count)?;
        Ok(resolver.clone())
    }

    fn make_room_for_faults(&self, resolver: &Resolver, qps: usize) -> Result<(), Errno> {
        resolver.reserve(qps)?;
        // Allocated outside of the locks. Each turn swaps the lists: no turn may come between growing the two.
        let room = 4 * qps + 64;
        let mut larger = [Vec::for_capacity(room)?, Vec::for_capacity(room)?];
        let [one, two] = &mut larger;
        self.with_engine(|engine| {
            exchange(engine.resolved(), one);
            exchange(&mut self.resolved(), two);
        });
        Ok(())
    }

    fn resolved(&self) -> MutexGuard<'_, Vec<(u32, Side)>> {
        self.resolved.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether pages of a QP have come since the last `take_resolved`.
    #[inline]
    pub fn has_resolved(&self) -> bool {
        self.any_resolved.load(Ordering::Acquire)
    }

    /// Takes the sides of QPs with pages resolved by `now` (nanoseconds). When to look again, where pages come late.
    pub fn take_resolved(&self, into: &mut Vec<(u32, Side)>, now: u64) -> Option<u64> {
        self.any_resolved.store(false, Ordering::Release);
        std::mem::swap(&mut *self.resolved(), into);
        if !self.resolves_late() {
            return None;
        }
        self.resolver.get()?.take_due(now, |num, side| into.push((num, side)))
    }

    /// Whether page faults take a time drawn from the profile, rather than as long as populating memory takes.
    pub fn resolves_late(&self) -> bool {
        !self.profile.page_faults.resolve.high.is_zero()
    }

    /// Takes the QPs with requester page faults since the last call, in that order.
    pub fn take_faulting_requesters(&self, each: impl FnMut(u32)) {
        if let Some(resolver) = self.resolver.get() {
            resolver.take_faulting_requesters(each);
        }
    }

    /// The limit of the READs of all QPs together.
    pub fn reads(self: &Arc<Self>) -> Option<Arc<Reads>> {
        let reads = || Reads::new(&self.profile, Arc::downgrade(self)).map(Arc::new);
        self.reads.get_or_init(reads).clone()
    }

    /// Whether there is a limit of the READs of all QPs together.
    pub fn limits_reads(&self) -> bool {
        self.profile.outstanding_reads.is_some()
    }

    /// Has the engine process resolved pages in a turn.
    pub fn schedule_resolved(&self) {
        self.any_resolved.store(true, Ordering::Release);
        self.engine.want_turn(|engine| self.another_turn(engine));
    }

    /// Removes a QP, and sends its peer the ACKs that it owes.
    pub fn remove_qp(self: &Arc<Self>, shared: &QpShared) {
        if self.is_ours() {
            self.with_engine(|engine| engine.remove_qp(self, shared.num, self.clone()));
        }
    }

    /// Binds a QP to a route and a destination QPN. With `rq_psn`, a new connection begins, and that is the first PSN
    /// that it receives.
    pub fn connect(&self, shared: &QpShared, route: Route, dest: u32, rq_psn: Option<Psn>) {
        self.with_engine(|engine| engine.connect(self, shared.num, route, dest, rq_psn, clock::now()));
        self.ring(shared, true);
    }

    /// A connected QP will send, and `psn` is the PSN of its first packet.
    pub fn send_from(&self, shared: &QpShared, psn: Psn) {
        self.with_engine(|engine| engine.send_from(self, shared.num, psn, clock::now()));
    }

    /// Unbinds a QP from its route.
    pub fn disconnect(&self, shared: &QpShared) {
        self.with_engine(|engine| engine.disconnect(shared.num));
    }

    /// A UD QP is ready to receive, from foreign adapters too.
    pub fn expect_foreign_senders(&self) {
        let parked = Box::new(Parked::new());
        self.with_engine(|engine| engine.provide_parked(parked));
        self.with_engine(|engine| engine.expect_foreign_senders(self, clock::now()));
    }

    /// Attaches a QP to a multicast group. ENOMEM beyond the limit; EADDRINUSE where another socket has port 4791
    /// exclusively.
    pub fn attach(&self, shared: &QpShared, group: IpAddr) -> Result<(), Errno> {
        self.check()?;
        self.with_engine(|engine| engine.attach(self, shared.num, group))
    }

    /// Detaches a QP from a multicast group. EINVAL if it is not attached.
    pub fn detach(&self, shared: &QpShared, group: IpAddr) -> Result<(), Errno> {
        if !self.is_ours() {
            return Err(Errno(libc::EIO));
        }
        self.with_engine(|engine| engine.detach(self, shared.num, group))
    }

    /// Whether a QP is attached to a multicast group.
    pub fn is_attached(&self, shared: &QpShared) -> bool {
        self.is_ours() && self.with_engine(|engine| engine.is_attached(shared.num))
    }

    /// Detaches a QP from all its multicast groups.
    pub fn detach_all(&self, shared: &QpShared) {
        if self.is_ours() {
            self.with_engine(|engine| engine.detach_all(self, shared.num));
        }
    }

    /// Rings a QP's doorbell. Takes a turn at once if `now` is set, nothing of the QP is in flight, a full burst has
    /// gathered or no program polls. Otherwise requests wait for the next poll, so that they leave in larger bursts.
    pub fn ring(&self, shared: &QpShared, now: bool) {
        if self.check().is_err() {
            return;
        }
        self.doorbells.ring(&shared.bell, shared.num);
        let wait = !now
            && shared.busy.load(Ordering::Relaxed)
            && shared.unsent.load(Ordering::Relaxed) < FULL_BURST
            && self.pace.program_polls();
        if !wait {
            self.engine.want_turn(|engine| self.another_turn(engine));
        }
    }

    /// An empty CQ was polled: takes one turn. Whether there was work; `None` if another thread holds the engine or
    /// the adapter does not work. After `MISSES` such polls in one turn of the holder, sleeps up to `ASLEEP`.
    pub fn drive_for_poll(&self) -> Option<bool> {
        if self.check().is_ok() { self.attempt(Turn::POLL) } else { None }
    }

    /// Takes turns until there was no work for 300 µs, in which a peer on this machine would have answered, for 5 ms
    /// at most: for control paths that need what is under way.
    pub fn drive_until_idle(&self) {
        const MOMENT: Duration = Duration::from_micros(300);
        const AT_MOST: Duration = Duration::from_millis(5);
        let began = clock::now();
        let mut last_work = began;
        while self.check().is_ok() && clock::now() - last_work < MOMENT && clock::now() - began < AT_MOST {
            if self.drive(Turn::POLL) {
                last_work = clock::now();
            }
            std::thread::yield_now();
        }
    }

    /// A program armed a CQ and will sleep: the engine's thread must watch the sockets.
    pub fn expects_events(&self) {
        self.pace.hand_to_thread();
    }

    /// One turn unless another thread holds the engine. Returns whether there was work; true if the engine is held.
    pub fn drive(&self, turn: Turn) -> bool {
        self.attempt(turn).unwrap_or(true)
    }

    fn attempt(&self, turn: Turn) -> Option<bool> {
        self.engine.attempt_or_sleep(ASLEEP, |engine| self.turn(engine, turn), |engine| self.another_turn(engine))
    }

    /// Returns whether there was work.
    fn turn(&self, engine: &mut Engine, turn: Turn) -> bool {
        self.guarded(engine, |engine| engine.turn(self, turn)).unwrap_or(false)
    }

    /// Sends owed ACKs. Waits for the engine.
    pub fn flush(&self) {
        if self.check().is_ok() {
            self.with_engine(|engine| engine.turn(self, Turn::FLUSH));
        }
    }

    /// Another turn of the holder, for a doorbell that rang meanwhile.
    fn another_turn(&self, engine: &mut Engine) {
        self.turn(engine, Turn::SEND);
    }

    /// Whether this thread holds an engine: what the engine uses must not be freed then.
    pub fn is_inside() -> bool {
        INSIDE.get()
    }

    /// Returns when no access that began before this call is still under way.
    pub fn quiesce(&self) {
        if !INSIDE.get() && self.is_ours() {
            self.with_engine(|_| ());
        }
    }

    /// As [`quiesce`](Self::quiesce), but waits for `patience` at most: the thread that unmaps memory may hold what
    /// the engine waits for, such as a lock of malloc.
    fn quiesce_within(&self, patience: Duration) {
        if !INSIDE.get() && self.is_ours() {
            self.engine.wait_within(patience, |_| (), |engine| self.another_turn(engine));
        }
    }

    /// Runs `work` while nothing is staged: all that was sent has left application memory.
    pub fn between_turns<T>(&self, work: impl FnOnce() -> T) -> T {
        if INSIDE.get() { work() } else { self.with_engine(|_| work()) }
    }

    /// Takes the QPs that have rung their doorbells.
    pub fn take_doorbells(&self, into: &mut Vec<u32>) {
        self.doorbells.take(into);
    }

    /// Waits for the engine; control paths only. A panic in `work` is passed on after the engine is released.
    pub fn with_engine<T>(&self, work: impl FnOnce(&mut Engine) -> T) -> T {
        let done = self.engine.wait(|engine| self.guarded(engine, work), |engine| self.another_turn(engine));
        done.unwrap_or_else(|failed: Failed| std::panic::resume_unwind(Box::new(failed)))
    }
}

impl Owner for Adapter {
    fn quiesce(&self) {
        /// Long enough for a turn on a busy machine. The thread that unmaps memory goes on after it: an access that is
        /// still under way then finds whatever the processor's page tables map there.
        const PATIENCE: Duration = Duration::from_millis(100);
        self.quiesce_within(PATIENCE);
    }

    fn resolved(&self, sides: &[(u32, Side)]) {
        if self.check().is_ok() {
            Adapter::resolved(self).extend_from_slice(sides);
            self.schedule_resolved();
        }
    }

    fn pages_deferred(&self) {
        if self.check().is_ok() {
            self.schedule_resolved();
        }
    }

    fn panicked(&self) {
        self.mark_failed();
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
            fork::forget(&self.descriptors());
            self.shown.state.set(sheet::state::CLOSED);
            self.pace.end();
        }
    }
}

/// Whether a profile has times of some hundred microseconds on the wire: too short for a thread that ticks.
fn keeps_times(profile: &Profile) -> bool {
    let PageFaults { requester, responder, .. } = profile.page_faults;
    requester != RequesterFaults::Wait || responder != ResponderFaults::Wait
}

/// Replaces a list by one with a larger capacity, and keeps its items.
fn exchange(list: &mut Vec<(u32, Side)>, longer: &mut Vec<(u32, Side)>) {
    if list.capacity() < longer.capacity() {
        longer.append(list);
        std::mem::swap(list, longer);
    }
}

/// All adapters that this process made.
pub(crate) fn all() -> Vec<Arc<Adapter>> {
    let open = OPEN.get().lock().unwrap_or_else(PoisonError::into_inner);
    open.iter().filter_map(Weak::upgrade).filter(|adapter| adapter.is_ours()).collect()
}

/// Runs `work` while this thread holds an engine. The thread is not cancelled meanwhile.
pub(crate) fn inside<T>(work: impl FnOnce() -> T) -> T {
    struct Outside;
    impl Drop for Outside {
        fn drop(&mut self) {
            INSIDE.set(false);
            mask::turn_ends();
        }
    }
    let _uncancelled = Uncancelled::new();
    INSIDE.set(true);
    mask::turn_begins();
    let _outside = Outside;
    work()
}

/// Calls `work` for each open adapter, unless a thread is opening one now. A signal handler may call it.
pub(crate) fn each_open(work: impl Fn(&Adapter)) {
    if INSIDE.get() {
        return;
    }
    if let Some(Ok(open)) = OPEN.existing().map(|open| open.try_lock()) {
        open.iter()
            .filter_map(Weak::upgrade)
            .filter(|adapter| adapter.check().is_ok())
            .for_each(|adapter| work(&adapter));
    }
}

/// Registers an exit handler that sends owed ACKs, which the peer would otherwise wait for until it times out, and
/// completes captures.
fn at_exit() {
    static ONCE: OnceInherited = OnceInherited::new();
    extern "C" fn flush() {
        let Some(open) = OPEN.existing() else { return };
        let open = match open.try_lock() {
            Ok(open) => open.clone(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().clone(),
            Err(TryLockError::WouldBlock) => return,
        };
        for adapter in open.iter().filter_map(Weak::upgrade) {
            if adapter.is_ours() && !INSIDE.get() {
                // A panic that escapes would end the process by SIGABRT. The adapter has failed by then.
                failure::catch_panic(|| {
                    adapter.with_engine(|engine| {
                        engine.turn(&adapter, Turn::FLUSH);
                        engine.close();
                    });
                });
            }
        }
    }
    // SAFETY: registers a function of the right type.
    ONCE.call_once(|| unsafe {
        libc::atexit(flush);
    });
}
