//! An endpoint as an object of libfabric.

use crate::domain::{Domain, Listener, Registered};
use crate::endpoint::bindings::Bindings;
use crate::endpoint::engine::Engine;
use crate::endpoint::report::Reports;
use crate::objects::Object;
use crate::progress::Progress;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use weir_fabric_abi::*;
use weir_msg::{PeerId, Piece};

/// An endpoint.
#[repr(C)]
pub struct EndpointObject {
    pub header: fid_ep,
    pub domain: Arc<Domain>,
    /// Where it listens, with port 0 at any.
    pub address: std::net::SocketAddr,
    /// Capabilities that the program has asked for.
    pub caps: u64,
    pub state: Mutex<State>,
}

/// What changes of an endpoint.
pub struct State {
    pub bindings: Bindings,
    /// There is one as soon as the endpoint is enabled.
    pub engine: Option<Engine>,
    /// The peer of each address of the vector.
    pub peers: Vec<Option<PeerId>>,
    /// A receive for several messages ends when fewer bytes are left.
    pub min_multi_recv: u64,
    /// The domain's, unless the program has chosen another one for this endpoint.
    pub scheme: weir_msg::Scheme,
    pub reports: Reports,
}

// SAFETY: the header is the first member.
unsafe impl Object for EndpointObject {
    type Header = fid_ep;
    const CLASS: usize = FI_CLASS_EP;
}
// SAFETY: the header's pointers lead to static tables.
unsafe impl Send for EndpointObject {}
// SAFETY: as above; the rest is locked or does not change.
unsafe impl Sync for EndpointObject {}

impl EndpointObject {
    /// Ends of operations reach queues and counters.
    pub fn report(state: &mut State) {
        let State { bindings, engine: Some(engine), reports, .. } = state else { return };
        while let Some(event) = engine.protocol.take_event() {
            reports.report(bindings, &engine.protocol, &event);
        }
    }
}

impl Progress for EndpointObject {
    fn progress(&self) {
        // If another thread is at it, that thread makes the progress.
        let Ok(mut state) = self.state.lock() else { return };
        if let Some(engine) = &mut state.engine {
            engine.progress();
            EndpointObject::report(&mut state);
        }
    }

    fn may_block(&self) -> bool {
        let Ok(mut state) = self.state.lock() else { return true };
        let may = state.engine.as_mut().is_none_or(Engine::may_block);
        EndpointObject::report(&mut state);
        may
    }

    fn waited(&self) {
        if let Ok(mut state) = self.state.lock()
            && let Some(engine) = &mut state.engine
        {
            engine.waited();
        }
    }

    fn descriptors(&self) -> Vec<RawFd> {
        let state = self.state.lock();
        state.ok().and_then(|state| state.engine.as_ref().map(Engine::descriptors)).unwrap_or_default()
    }
}

impl Listener for EndpointObject {
    fn registered(&self, memory: &Registered) {
        if let Ok(mut state) = self.state.lock()
            && let Some(engine) = &mut state.engine
        {
            let now = engine.now();
            let buffer = Piece { addr: memory.addr, len: memory.len };
            engine.protocol.add_window(&mut engine.port, now, memory.lkey, buffer, memory.writable);
        }
    }

    fn deregistered(&self, lkey: u32) {
        if let Ok(mut state) = self.state.lock()
            && let Some(engine) = &mut state.engine
        {
            engine.protocol.remove_window(lkey);
        }
    }
}
