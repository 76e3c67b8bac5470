//! The resolution of a service to a UD QP.

use crate::Error;
use crate::request::padded;
use weir_wire::cm::{ServiceId, SidrRep, SidrReq, SidrStatus};

/// What the requester asks (IBTA 12.11.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrRequest {
    pub service_id: ServiceId,
    pub pkey: u16,
    /// The request is repeated after 4.096 µs · 2^value. A received request has the default.
    pub response_timeout: u8,
    /// How often it is repeated. A received request has the default.
    pub max_retries: u8,
    /// 216 bytes at most; a received request has all 216.
    pub private: Vec<u8>,
}

/// The timeout and retries of Linux's rdma_cm.
impl Default for SidrRequest {
    fn default() -> Self {
        SidrRequest {
            service_id: ServiceId(0),
            pkey: weir_wire::DEFAULT_PKEY,
            response_timeout: 20,
            max_retries: 15,
            private: Vec::new(),
        }
    }
}

/// What the service answers (IBTA 12.11.2).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SidrReply {
    pub status: SidrStatus,
    pub qpn: u32,
    pub qkey: u32,
    /// Additional information, 72 bytes at most.
    pub info: Vec<u8>,
    /// 136 bytes at most; a received reply has all 136.
    pub private: Vec<u8>,
}

impl SidrRequest {
    pub(crate) fn message(&self, request_id: u32) -> Result<SidrReq, Error> {
        Ok(SidrReq { request_id, pkey: self.pkey, service_id: self.service_id, private: padded(&self.private)? })
    }

    pub(crate) fn from_message(req: &SidrReq) -> SidrRequest {
        SidrRequest {
            service_id: req.service_id,
            pkey: req.pkey,
            private: req.private.to_vec(),
            ..SidrRequest::default()
        }
    }
}

impl SidrReply {
    pub(crate) fn message(&self, request_id: u32, service_id: ServiceId) -> Result<SidrRep, Error> {
        let info = padded(&self.info)?;
        Ok(SidrRep {
            request_id,
            status: self.status,
            info_len: self.info.len() as u8,
            qpn: self.qpn,
            service_id,
            qkey: self.qkey,
            info,
            private: padded(&self.private)?,
        })
    }

    pub(crate) fn from_message(rep: &SidrRep) -> SidrReply {
        SidrReply {
            status: rep.status,
            qpn: rep.qpn,
            qkey: rep.qkey,
            info: rep.info[..usize::from(rep.info_len).min(rep.info.len())].to_vec(),
            private: rep.private.to_vec(),
        }
    }
}
