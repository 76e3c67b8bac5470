//! Memory regions: registration, reregistration and deregistration.

use crate::Errno;
use crate::adapter::Adapter;
use crate::memory::pin::{self, Pinned};
use crate::memory::region::{Kind, Region};
use crate::objects::dm::Dm;
use crate::objects::pd::Pd;
use crate::os::locks::{RankedGuard, RankedMutex, rank};
use crate::os::process::Owned;
use crate::paging::Registered;
use std::sync::Arc;
use weir_transport::Access;

/// A memory region.
pub struct Mr {
    adapter: Arc<Adapter>,
    key: u32,
    state: RankedMutex<State, { rank::REGION }>,
}

struct State {
    pd: Arc<Pd>,
    region: Region,
    /// Owned: a forked child does not release what its parent holds.
    backing: Owned<Backing>,
}

/// The memory that a region keeps alive.
enum Backing {
    Memory {
        _pinned: Pinned,
    },
    OnDemand(Registered),
    Device(Arc<Dm>),
    Null,
    /// The region is deregistered.
    Gone,
}

impl Backing {
    /// A region of this key has it.
    fn registered(&self, key: u32) {
        match self {
            Backing::Memory { .. } => pin::count_registration(false),
            Backing::OnDemand(registered) => {
                registered.name(key);
                pin::count_registration(true);
            }
            Backing::Device(_) | Backing::Null | Backing::Gone => {}
        }
    }
}

/// What `ibv_rereg_mr` changes.
#[derive(Clone, Default)]
pub struct Rereg {
    /// New address and length; peers address the region by this address, or from 0 if it is zero-based.
    pub translation: Option<(u64, u64)>,
    pub pd: Option<Arc<Pd>>,
    pub access: Option<Access>,
    /// Whether its memory is paged on demand.
    pub on_demand: Option<bool>,
}

impl Pd {
    /// Registers `len` bytes at `addr`; peers address them from `iova` (from 0 if `access` is zero-based). EINVAL for
    /// remote write or atomic without local write and for an invalid length, EFAULT for memory that is not mapped or
    /// does not allow the access, ENOMEM beyond `max_mr` and beyond RLIMIT_MEMLOCK under `--memlock strict`.
    pub fn reg_mr(self: &Arc<Self>, addr: u64, len: u64, iova: u64, access: Access) -> Result<Arc<Mr>, Errno> {
        let adapter = &self.context.adapter;
        adapter.check()?;
        let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
        let region = Region { key: 0, pd: self.number, addr, iova, len, access, kind: Kind::Memory, paged: None };
        let pinned = populate(adapter, &region)?;
        Mr::enter(self, region, Backing::Memory { _pinned: pinned })
    }

    /// Registers an ODP region: `len` bytes at `addr`, or all of memory for `addr` 0 and `len` `u64::MAX`. The memory
    /// need not be mapped. EINVAL as [`Pd::reg_mr`], for `huge` where there are no huge pages, and for all of memory
    /// with another `iova` or if the profile has no implicit regions; EOPNOTSUPP if it has no ODP; ENOMEM beyond `max_mr`.
    pub fn reg_on_demand_mr(
        self: &Arc<Self>,
        addr: u64,
        len: u64,
        iova: u64,
        access: Access,
        huge: bool,
    ) -> Result<Arc<Mr>, Errno> {
        let adapter = &self.context.adapter;
        adapter.check()?;
        let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
        if len == u64::MAX && iova != addr {
            return Err(refuse(
                adapter,
                libc::EINVAL,
                (addr, len),
                "all of memory as a region begins at iova 0, as at address 0",
            ));
        }
        let region = Region { key: 0, pd: self.number, addr, iova, len, access, kind: Kind::Memory, paged: None };
        let (region, backing) = demand(adapter, region, huge)?;
        Mr::enter(self, region, backing)
    }

    /// A region without memory, for local keys: reads return zeros, and writes are discarded.
    pub fn alloc_null_mr(self: &Arc<Self>) -> Result<Arc<Mr>, Errno> {
        self.context.adapter.check()?;
        let access = Access::LOCAL_WRITE;
        let region =
            Region { key: 0, pd: self.number, addr: 0, iova: 0, len: u64::MAX, access, kind: Kind::Null, paged: None };
        Mr::enter(self, region, Backing::Null)
    }

    /// Registers part of device memory, addressed from 0. EINVAL out of its bounds, without `ZERO_BASED`, or with
    /// access that device memory does not support.
    pub fn reg_dm_mr(self: &Arc<Self>, dm: &Arc<Dm>, offset: u64, len: u64, access: Access) -> Result<Arc<Mr>, Errno> {
        self.context.adapter.check()?;
        let allowed = access.contains(Access::ZERO_BASED) && !access.contains(Access::MW_BIND);
        if !allowed || !dm.memory.holds(offset, len) || !consistent(access) {
            let why = "device memory: a region must have IBV_ACCESS_ZERO_BASED, no IBV_ACCESS_MW_BIND, and bytes \
                       within the memory";
            return Err(self.refuse(libc::EINVAL, format_args!("{why}")));
        }
        let addr = dm.memory.addr() + offset;
        let region = Region { key: 0, pd: self.number, addr, iova: 0, len, access, kind: Kind::Memory, paged: None };
        dm.attach();
        Mr::enter(self, region, Backing::Device(dm.clone())).inspect_err(|_| dm.detach())
    }
}

impl Mr {
    fn enter(pd: &Arc<Pd>, region: Region, backing: Backing) -> Result<Arc<Mr>, Errno> {
        let adapter = pd.context.adapter.clone();
        let key = adapter.regions.insert(region)?;
        pd.attach();
        backing.registered(key);
        let state = State { pd: pd.clone(), region, backing: Owned::new(backing) };
        Ok(Arc::new(Mr { adapter, key, state: RankedMutex::new(state) }))
    }

    /// Local key.
    pub fn lkey(&self) -> u32 {
        self.key
    }

    /// Remote key; 0 for a null region, which peers cannot access.
    pub fn rkey(&self) -> u32 {
        if matches!(*self.state().backing, Backing::Null) { 0 } else { self.key }
    }

    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.state().region.len
    }

    /// Changes what the keys refer to; the keys stay. On an error the region is unchanged: EINVAL for a region that
    /// is not process memory, for a PD of another device and as [`Pd::reg_mr`]; EBUSY while windows are bound to it.
    pub fn rereg(&self, change: &Rereg) -> Result<(), Errno> {
        self.adapter.check()?;
        let mut state = self.state();
        let on_demand = match &*state.backing {
            Backing::Memory { .. } => change.on_demand.unwrap_or(false),
            Backing::OnDemand(_) => change.on_demand.unwrap_or(true),
            Backing::Device(_) | Backing::Null | Backing::Gone => return Err(Errno(libc::EINVAL)),
        };
        if change.pd.as_ref().is_some_and(|pd| !Arc::ptr_eq(&pd.context.adapter, &self.adapter)) {
            return Err(Errno(libc::EINVAL));
        }
        let mut region = state.region;
        let was_zero_based = region.access.contains(Access::ZERO_BASED);
        region.access = change.access.unwrap_or(region.access);
        let zero_based = region.access.contains(Access::ZERO_BASED);
        if let Some((addr, len)) = change.translation {
            (region.addr, region.len) = (addr, len);
        }
        if change.translation.is_some() || zero_based != was_zero_based {
            region.iova = if zero_based { 0 } else { region.addr };
        }
        region.pd = change.pd.as_ref().map_or(region.pd, |pd| pd.number);
        region.paged = None;
        let (region, backing) = if on_demand {
            // A new, empty page table.
            demand(&self.adapter, region, false)?
        } else {
            (region, Backing::Memory { _pinned: populate(&self.adapter, &region)? })
        };
        self.adapter.regions.replace(self.key, region).map_err(|error| self.bound(error))?;
        backing.registered(self.key);
        self.adapter.quiesce();
        state.region = region;
        let old = std::mem::replace(&mut *state.backing, backing);
        if let Some(pd) = &change.pd {
            pd.attach();
            std::mem::replace(&mut state.pd, pd.clone()).detach();
        }
        drop(state);
        drop(old);
        Ok(())
    }

    /// Deregisters the region. EBUSY while windows are bound to it. When it returns, no access to the region is under
    /// way. Does nothing in a forked child. A memory hook of the program may call it within any allocation of Weir,
    /// also while this thread holds an engine or reregisters another region. It waits for a region that is being
    /// reregistered: a hook within `rereg` must not deregister the same region, nor may two threads in `rereg`
    /// deregister each other's.
    pub fn dereg(&self) -> Result<(), Errno> {
        if !self.adapter.is_ours() {
            return Ok(());
        }
        let mut state = self.state.lock_in_hook();
        if matches!(*state.backing, Backing::Gone) {
            return Ok(());
        }
        self.adapter.regions.remove(self.key).map_err(|error| self.bound(error))?;
        let backing = std::mem::replace(&mut *state.backing, Backing::Gone);
        let pd = state.pd.clone();
        drop(state);
        self.adapter.quiesce();
        if let Backing::Device(dm) = &backing {
            dm.detach();
        }
        drop(backing);
        pd.detach();
        Ok(())
    }

    /// Says why a region stays, if windows are the reason.
    fn bound(&self, error: Errno) -> Errno {
        match error.0 {
            libc::EBUSY => {
                let why =
                    format_args!("MR: lkey {:#x}: memory windows are bound to it: ibv_dealloc_mw first", self.key);
                self.adapter.refuse(error.0, why)
            }
            _ => error,
        }
    }

    fn state(&self) -> RankedGuard<'_, State, { rank::REGION }> {
        self.state.lock()
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let _ = self.dereg();
    }
}

/// IBTA 10.6.3.1: remote write and atomic access require local write access.
fn consistent(access: Access) -> bool {
    access.contains(Access::LOCAL_WRITE) || !access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
}

/// Checks the request for an ODP region and registers its pages.
fn demand(adapter: &Arc<Adapter>, region: Region, huge: bool) -> Result<(Region, Backing), Errno> {
    let range = (region.addr, region.len);
    if !consistent(region.access) {
        return Err(refuse(adapter, libc::EINVAL, range, INCONSISTENT));
    }
    // The kernel's error for an adapter without ODP (ib_check_mr_access).
    if !adapter.profile.on_demand {
        return Err(refuse(
            adapter,
            libc::EOPNOTSUPP,
            range,
            "the profile has no on-demand paging: see `weir profiles`",
        ));
    }
    // The error of mlx5 for an adapter without implicit regions.
    if range == (0, u64::MAX) && !adapter.profile.device.odp.implicit {
        return Err(refuse(
            adapter,
            libc::EINVAL,
            range,
            "the profile has no implicit ODP regions: see `weir profiles`",
        ));
    }
    let writable = region.access.contains(Access::LOCAL_WRITE);
    let registered =
        Registered::new(&adapter.device.name, || adapter.resolver(), (region.addr, region.len), writable, huge)?;
    Ok((Region { paged: Some(registered.paged()), ..region }, Backing::OnDemand(registered)))
}

/// Checks the request for a pinned region and brings its memory in.
fn populate(adapter: &Adapter, region: &Region) -> Result<Pinned, Errno> {
    let range = (region.addr, region.len);
    if !consistent(region.access) {
        return Err(refuse(adapter, libc::EINVAL, range, INCONSISTENT));
    }
    if region.len == 0 || region.addr.checked_add(region.len).is_none() {
        return Err(refuse(adapter, libc::EINVAL, range, "the length is 0, or goes beyond the end of memory"));
    }
    let writable = region.access.contains(Access::LOCAL_WRITE);
    pin::pin(region.addr, region.len, writable, adapter.config.memlock).map_err(|error| match error.0 {
        libc::EFAULT if writable => refuse(adapter, libc::EFAULT, range, "part of it is not mapped, or not writable"),
        libc::EFAULT => refuse(adapter, libc::EFAULT, range, "part of it is not mapped, or not readable"),
        libc::ENOMEM => {
            refuse(adapter, libc::ENOMEM, range, "no memory, or more than `ulimit -l` with --memlock strict")
        }
        errno => refuse(adapter, errno, range, "the system does not bring the memory in"),
    })
}

const INCONSISTENT: &str = "IBV_ACCESS_REMOTE_WRITE and IBV_ACCESS_REMOTE_ATOMIC need IBV_ACCESS_LOCAL_WRITE";

/// Memory is not registered; the log says why.
fn refuse(adapter: &Adapter, errno: i32, (addr, len): (u64, u64), why: &str) -> Errno {
    adapter.refuse(errno, format_args!("MR: {len} bytes at {addr:#x} are not registered: {why}"))
}
