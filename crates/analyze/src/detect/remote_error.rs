//! Requests that the responder refused: a NAK that ends the connection (IBTA 9.7.5.2).
//!
//! Evidence: a NAK with the code of an invalid request, a remote access error or a remote operational error.

use super::End;
use super::common::{PerFlow, Sightings};
use crate::advice;
use crate::finding::{Finding, FindingKind};
use crate::flow::{FlowId, Nak, Request};
use weir_wire::NakCode;

/// Refusals by flow.
#[derive(Debug, Default)]
pub struct RemoteErrors {
    flows: PerFlow<(Sightings, &'static str, u32)>,
}

impl RemoteErrors {
    pub fn nak(&mut self, flow: FlowId, nak: &Nak, code: NakCode, request: Option<&Request>) {
        let (seen, name, psn) = self.flows.entry(flow).or_default();
        seen.see(nak.time, &[nak.frame]);
        seen.evidence(&request.map(|request| request.last.frame).into_iter().collect::<Vec<_>>());
        *psn = nak.psn.get();
        *name = match code {
            NakCode::InvalidRequest => "invalid request (IBV_WC_REM_INV_REQ_ERR)",
            NakCode::RemoteAccess => "remote access error (IBV_WC_REM_ACCESS_ERR)",
            NakCode::RemoteOperational => "remote operational error (IBV_WC_REM_OP_ERR)",
            NakCode::PsnSequence => "sequence error",
        };
    }

    pub fn findings(&self, _end: &End<'_>) -> Vec<Finding> {
        let finding = |(flow, (seen, name, psn)): (&FlowId, &(Sightings, &'static str, u32))| {
            let text = format!("The responder refused the request with PSN {psn}: {name}.");
            seen.finding(FindingKind::RemoteError, *flow, 1.0, text, vec![advice::keys()])
        };
        self.flows.iter().map(finding).collect()
    }
}
