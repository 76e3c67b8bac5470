//! What a port answers where no process has the service or the connection of a message.

use super::{Drep, Message, Rej, RejectReason, SidrRep, SidrStatus};

/// `message` of a REJ that rejects a REP (IBTA 12.6.7).
const REP: u8 = 1;

impl Message {
    /// The answer to a message for a service or connection that does not exist, so that its sender does not repeat it:
    /// to a REQ and SIDR_REQ that there is no service, to a REP that its connection is unknown, to a DREQ that the
    /// connection is over. None to other messages, and so never to an answer.
    pub fn refusal(&self) -> Option<Message> {
        Some(match self {
            Message::Req(req) => {
                let remote_comm_id = req.local_comm_id;
                Rej { remote_comm_id, reason: RejectReason::INVALID_SERVICE_ID, ..Rej::default() }.into()
            }
            Message::Rep(rep) => {
                let (local_comm_id, remote_comm_id) = (rep.remote_comm_id, rep.local_comm_id);
                let reason = RejectReason::INVALID_COMM_ID;
                Rej { local_comm_id, remote_comm_id, message: REP, reason, ..Rej::default() }.into()
            }
            Message::Dreq(dreq) => {
                let (local_comm_id, remote_comm_id) = (dreq.remote_comm_id, dreq.local_comm_id);
                Drep { local_comm_id, remote_comm_id, ..Drep::default() }.into()
            }
            Message::SidrReq(req) => {
                let (request_id, service_id) = (req.request_id, req.service_id);
                SidrRep { request_id, service_id, status: SidrStatus::UNSUPPORTED, ..SidrRep::default() }.into()
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::{Dreq, Mra, Rep, Req, Rtu, ServiceId, SidrReq};

    #[test]
    fn only_messages_that_are_repeated_are_refused() {
        let req = Req { local_comm_id: 1, service_id: ServiceId(2), ..Req::default() };
        let Some(Message::Rej(rej)) = Message::from(req).refusal() else { panic!() };
        assert_eq!((rej.local_comm_id, rej.remote_comm_id, rej.message), (0, 1, 0));
        assert_eq!(rej.reason, RejectReason::INVALID_SERVICE_ID);
        let rep = Rep { local_comm_id: 1, remote_comm_id: 2, ..Rep::default() };
        let Some(Message::Rej(rej)) = Message::from(rep).refusal() else { panic!() };
        assert_eq!((rej.local_comm_id, rej.remote_comm_id, rej.message), (2, 1, 1));
        assert_eq!(rej.reason, RejectReason::INVALID_COMM_ID);
        let dreq = Dreq { local_comm_id: 1, remote_comm_id: 2, ..Dreq::default() };
        let Some(Message::Drep(drep)) = Message::from(dreq).refusal() else { panic!() };
        assert_eq!((drep.local_comm_id, drep.remote_comm_id), (2, 1));
        let sidr = SidrReq { request_id: 1, service_id: ServiceId(2), ..SidrReq::default() };
        let Some(Message::SidrRep(rep)) = Message::from(sidr).refusal() else { panic!() };
        assert_eq!((rep.request_id, rep.status, rep.service_id), (1, SidrStatus::UNSUPPORTED, ServiceId(2)));
        for answer in [Message::Rej(rej), Message::Drep(drep), Message::SidrRep(rep)] {
            assert_eq!(answer.refusal(), None);
        }
        assert_eq!(Message::from(Rtu::default()).refusal(), None);
        assert_eq!(Message::from(Mra::default()).refusal(), None);
    }
}
