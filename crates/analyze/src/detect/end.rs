//! What detectors see at the end of the captures.

use crate::flow::{Flow, FlowId};
use crate::setup::{Attributes, Setups};
use weir_transport::Profile;

/// All flows, and what is known besides.
pub struct End<'a> {
    pub flows: &'a [Flow],
    pub setups: &'a Setups,
    /// Time of the last frame, ns since 1970.
    pub last: u64,
    /// The adapter of all hosts, if the user named it.
    pub profile: Option<&'a Profile>,
}

impl End<'_> {
    /// A flow by its number.
    pub fn flow(&self, id: FlowId) -> &Flow {
        &self.flows[id.0 as usize]
    }

    /// The attributes of the QP that sends a flow's requests, if its set-up was captured.
    pub fn attributes(&self, id: FlowId) -> Option<Attributes> {
        let flow = self.flow(id);
        let partner = flow.partner?;
        self.setups.of((flow.key.from, self.flow(partner).key.qpn))
    }
}
