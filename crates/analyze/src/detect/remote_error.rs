//! Requests that the responder refused: a NAK that ends the connection (IBTA 9.7.5.2).
//!
//! Evidence: a NAK with the code of an invalid request, a remote access error or a remote operational error.

use super::common::{PerFlow, Sightings};
use super::end::End;
use crate::advice::{self, Advice};
use crate::finding::{Finding, FindingKind};
use crate::flow::{FlowId, Nak, Request};
use weir_wire::NakCode;

/// Refusals by flow.
#[derive(Debug, Default)]
pub struct RemoteErrors {
    flows: PerFlow<Refused>,
}

#[derive(Debug, Default)]
struct Refused {
    seen: Sightings,
    /// The last: its code and its PSN.
    last: Option<(NakCode, u32)>,
}

impl RemoteErrors {
    pub fn nak(&mut self, flow: FlowId, nak: &Nak, code: NakCode, request: Option<&Request>) {
        let refused = self.flows.entry(flow).or_default();
        refused.seen.see(nak.time, &[nak.frame]);
        if let Some(request) = request {
            refused.seen.evidence(&[request.last.frame]);
        }
        refused.last = Some((code, nak.psn.get()));
    }

    pub fn findings(&self, _end: &End<'_>) -> Vec<Finding> {
        let finding = |(flow, refused): (&FlowId, &Refused)| {
            let (code, psn) = refused.last?;
            let (name, advice) = explained(code);
            let text = format!("The responder refused the request with PSN {psn}: {name}.");
            Some(refused.seen.finding(FindingKind::RemoteError, *flow, 1.0, text, advice))
        };
        self.flows.iter().filter_map(finding).collect()
    }
}

fn explained(code: NakCode) -> (&'static str, Vec<Advice>) {
    match code {
        NakCode::RemoteAccess => ("remote access error (IBV_WC_REM_ACCESS_ERR)", advice::keys()),
        NakCode::RemoteOperational => ("remote operational error (IBV_WC_REM_OP_ERR)", advice::responder()),
        _ => ("invalid request (IBV_WC_REM_INV_REQ_ERR)", advice::rights()),
    }
}
