//! A queue pair in its host: the adapter's state of it, in addition to that of the protocol.

use crate::ids::HostId;
use crate::packet::PacketKey;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use weir_transport::{
    Access, AttrMask, Host, Instant, Mtu, Profile, Psn, Qp, QpAttr, QpCaps, QpInit, QpState, Service, Tuning,
};
use weir_wire::{Headers, RnrTimer};

/// Attributes of a connection (RC).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpSetup {
    pub mtu: Mtu,
    pub caps: QpCaps,
    /// Local ACK timeout: 4.096 µs · 2^n, 0 = infinite.
    pub timeout: u8,
    pub retry_cnt: u8,
    /// 7 = infinite.
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub max_rd_atomic: u8,
    /// First PSN of each end.
    pub psn: [u32; 2],
}

impl Default for QpSetup {
    fn default() -> Self {
        QpSetup {
            mtu: Mtu::M4096,
            caps: QpCaps { max_send_wr: 128, max_recv_wr: 0, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 14,
            max_rd_atomic: 4,
            psn: [0, 0],
        }
    }
}

/// An adapter requests a whole READ at once and responds at once; it coalesces ACKs only while its port is busy.
const TUNING: Tuning = Tuning { ack_every: 16, read_chunk: 1 << 31, ack_delay: Duration::ZERO };

pub(crate) struct SimQp {
    pub qp: Qp,
    pub peer: HostId,
    /// It is in the list of QPs ready to send.
    pub ready: bool,
    /// Time of its pending deadline event; events at other times are obsolete.
    pub armed: Option<Instant>,
    /// Packets that wait for pages, or for READs, by [`weir_transport::Side`].
    pub held: [VecDeque<PacketKey>; 2],
    /// Requests are held because they wait for READs.
    pub waits_for_reads: bool,
    pub sent: Sent,
}

/// The PSN after the last one sent, of requests and of responses.
#[derive(Default)]
pub(crate) struct Sent([Option<Psn>; 2]);

impl SimQp {
    /// A QP in RESET.
    pub fn new(num: u32, peer: HostId, setup: &QpSetup, profile: &Arc<Profile>) -> Self {
        let init = QpInit { qp_num: num, service: Service::Rc, caps: setup.caps, sq_sig_all: false };
        SimQp {
            qp: Qp::new(init, profile.clone(), TUNING),
            peer,
            ready: false,
            armed: None,
            held: Default::default(),
            waits_for_reads: false,
            sent: Sent::default(),
        }
    }

    /// Moves it from RESET to RTS; `end` is 0 or 1.
    pub fn connect<H: Host>(&mut self, now: Instant, dest: u32, setup: &QpSetup, end: usize, host: &mut H) {
        let attr = QpAttr {
            path_mtu: setup.mtu,
            rq_psn: Psn::new(setup.psn[1 - end]),
            sq_psn: Psn::new(setup.psn[end]),
            dest_qp_num: dest,
            access_flags: Access::all(),
            max_rd_atomic: setup.max_rd_atomic,
            max_dest_rd_atomic: setup.max_rd_atomic,
            min_rnr_timer: RnrTimer::new(setup.min_rnr_timer),
            timeout: setup.timeout,
            retry_cnt: setup.retry_cnt,
            rnr_retry: setup.rnr_retry,
            ..QpAttr::default()
        };
        self.go_to_rts(now, &attr, host);
    }

    /// Moves it to ERROR: its work requests are flushed.
    pub fn fail<H: Host>(&mut self, now: Instant, host: &mut H) {
        self.modify(now, &QpAttr::default(), QpState::Error, AttrMask::empty(), host);
    }

    /// Moves it through RESET back to RTS with the attributes that it has, except for the first PSN to send.
    pub fn start_again<H: Host>(&mut self, now: Instant, sq_psn: Psn, host: &mut H) {
        let attr = QpAttr { sq_psn, ..self.qp.attr() };
        self.modify(now, &attr, QpState::Reset, AttrMask::empty(), host);
        self.go_to_rts(now, &attr, host);
    }

    /// Changes the RNR delay that it asks its peer for.
    pub fn set_min_rnr_timer<H: Host>(&mut self, now: Instant, code: u8, host: &mut H) {
        let attr = QpAttr { min_rnr_timer: RnrTimer::new(code), ..QpAttr::default() };
        self.modify(now, &attr, QpState::Rts, AttrMask::MIN_RNR_TIMER, host);
    }

    fn go_to_rts<H: Host>(&mut self, now: Instant, attr: &QpAttr, host: &mut H) {
        let steps = [
            (QpState::Init, AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS),
            (
                QpState::Rtr,
                AttrMask::AV
                    | AttrMask::PATH_MTU
                    | AttrMask::DEST_QPN
                    | AttrMask::RQ_PSN
                    | AttrMask::MAX_DEST_RD_ATOMIC
                    | AttrMask::MIN_RNR_TIMER,
            ),
            (
                QpState::Rts,
                AttrMask::TIMEOUT
                    | AttrMask::RETRY_CNT
                    | AttrMask::RNR_RETRY
                    | AttrMask::SQ_PSN
                    | AttrMask::MAX_QP_RD_ATOMIC,
            ),
        ];
        for (qp_state, mask) in steps {
            self.modify(now, attr, qp_state, mask, host);
        }
    }

    fn modify<H: Host>(&mut self, now: Instant, attr: &QpAttr, qp_state: QpState, mask: AttrMask, host: &mut H) {
        let attr = QpAttr { qp_state, ..*attr };
        self.qp.modify(now, &attr, mask | AttrMask::STATE, host).expect("attributes within their ranges");
    }

    /// The time of the event that its deadline needs. `None`: it has no deadline, or there is an event already.
    #[inline]
    pub fn arm(&mut self, now: Instant) -> Option<Instant> {
        let at = self.qp.poll_timeout()?.max(now);
        // An event that is too early checks the deadline again, so that a later deadline needs no new event.
        let new = self.armed.is_none_or(|armed| at < armed);
        new.then(|| *self.armed.insert(at))
    }
}

impl Sent {
    /// Records a sent packet; returns true if this PSN or a later one was sent before. An ACK or NAK reports the
    /// current state: it is never a retransmission.
    #[inline]
    pub fn leaves(&mut self, headers: &Headers, payload: usize) -> bool {
        let (opcode, psn) = (headers.bth.opcode, headers.bth.psn);
        let response = opcode.is_response();
        if response && opcode.has_aeth() && opcode.starts_message() && payload == 0 {
            return false;
        }
        let next = &mut self.0[usize::from(response)];
        let repeated = next.is_some_and(|next| psn.before(next));
        if !repeated {
            *next = Some(psn.next());
        }
        repeated
    }
}
