//! Why a QP went to the error state, for people.

use crate::completion::vendor;
use crate::config::Config;
use crate::requester::{Failure, Requester};
use crate::responder::Fatal;
use crate::{Side, Status};
use weir_wire::{NakCode, Psn};

/// How a reliable QP ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The requester: its oldest work request failed. The responder: a request of the peer was refused.
    pub side: Side,
    /// How that work request completed; or how the peer's does.
    pub status: Status,
    /// Weir's own detail of the status, as the completion carries it.
    pub vendor_err: u32,
    /// Of the packet concerned.
    pub psn: Psn,
    /// How often that packet was sent, where that is why it failed.
    pub tries: Option<u32>,
}

impl Ending {
    /// Nothing was heard of the packet, rather than that it is missing.
    pub fn is_silence(&self) -> bool {
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
        Ending { side: Side::Requester, status: failure.status, vendor_err: failure.vendor, psn, tries }
    }

    pub(crate) fn responder(fatal: Fatal, psn: Psn) -> Ending {
        let status = match fatal.nak {
            NakCode::RemoteAccess => Status::RemoteAccess,
            NakCode::RemoteOperational => Status::RemoteOperation,
            NakCode::InvalidRequest | NakCode::PsnSequence => Status::RemoteInvalidRequest,
        };
        let vendor_err = fatal.receive.map_or(0, |(_, vendor)| vendor);
        Ending { side: Side::Responder, status, vendor_err, psn, tries: None }
    }
}
