//! The reason why a QP entered the error state, for log messages.

use crate::completion::vendor;
use crate::config::Config;
use crate::requester::{Failure, Requester};
use crate::responder::Fatal;
use crate::{Side, Status};
use weir_wire::{NakCode, Psn};

/// How a reliable QP failed without a call of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The requester: its oldest work request failed. The responder: it refused a request of the peer.
    pub side: Side,
    /// The completion status of that work request, or of the peer's.
    pub status: Status,
    /// Weir's own detail of the status, as in the completion.
    pub vendor_err: u32,
    /// PSN of the packet concerned.
    pub psn: Psn,
    /// How often that packet was sent, if it failed because its retries were exhausted.
    pub tries: Option<u32>,
    /// What was wrong with it, where the status leaves several possibilities.
    pub why: Option<&'static str>,
}

/// Why an operation fails at a missing page.
pub(crate) const NO_ODP: &str = "a page of an ODP region is missing, and the adapter has no ODP for the operation: see the \
    odp_caps of ibv_query_device_ex, or bring the pages in by ibv_advise_mr";

impl Ending {
    /// Whether the peer did not respond at all, rather than reporting an error.
    pub fn is_ack_timeout(&self) -> bool {
        self.vendor_err == vendor::ACK_TIMEOUT
    }

    pub(crate) fn requester(failure: Failure, requester: &Requester, config: &Config) -> Ending {
        let tries = match failure.status {
            Status::RetryExceeded if failure.vendor == vendor::ACK_TIMEOUT => Some(requester.timeouts() + 1),
            Status::RetryExceeded => Some(u32::from(config.attr.retry_cnt) + 1),
            Status::RnrRetryExceeded => Some(u32::from(config.attr.rnr_retry) + 1),
            _ => None,
        };
        let psn = requester.una_psn();
        let why = (failure.vendor == vendor::NO_ODP).then_some(NO_ODP);
        Ending { side: Side::Requester, status: failure.status, vendor_err: failure.vendor, psn, tries, why }
    }

    pub(crate) fn responder(fatal: Fatal, psn: Psn) -> Ending {
        let status = match fatal.nak {
            NakCode::RemoteAccess => Status::RemoteAccess,
            NakCode::RemoteOperational => Status::RemoteOperation,
            NakCode::InvalidRequest | NakCode::PsnSequence => Status::RemoteInvalidRequest,
        };
        let vendor_err = fatal.receive.map_or(0, |(_, vendor)| vendor);
        Ending { side: Side::Responder, status, vendor_err, psn, tries: None, why: fatal.why }
    }
}
