//! The detectors: a file for each kind of finding. Its doc says how it decides.
//!
//! A detector takes the events of all flows ([`crate::flow::Event`]), keeps what it needs for the flows in which
//! something happened, and gives its findings at the end.

mod common;
mod congestion;
mod damming;
mod end;
mod exhausted;
mod flood;
mod icrc;
mod loss;
mod page_fault;
mod remote_error;
mod reordering;
mod rnr_storm;
mod rnr_zero;
mod slow_receiver;
mod small_messages;
mod stopped;
mod timeout;
mod window;
mod write_flood;

pub use common::{time, times};
pub use end::End;

use crate::finding::Finding;
use crate::flow::{Event, FlowId};
use crate::packet::FrameId;
use std::collections::HashSet;
use weir_capture::packet::RdmaPacket;

/// All detectors.
#[derive(Debug, Default)]
pub struct Detectors {
    damming: damming::Damming,
    flood: flood::Flood,
    write_flood: write_flood::WriteFlood,
    responder_faults: page_fault::ResponderFaults,
    requester_faults: page_fault::RequesterFaults,
    timeout: timeout::Timeouts,
    rnr_storm: rnr_storm::RnrStorm,
    rnr_zero: rnr_zero::RnrZero,
    slow_receiver: slow_receiver::SlowReceiver,
    loss: loss::Losses,
    reordering: reordering::Reordering,
    remote_error: remote_error::RemoteErrors,
    window: window::OutOfWindow,
    icrc: icrc::BadIcrc,
    congestion: congestion::Congestion,
}

impl Detectors {
    /// Takes an event of a flow's requests.
    #[inline]
    pub fn event(&mut self, flow: FlowId, event: &Event<'_>) {
        match event {
            Event::Completed { request, .. } => {
                if request.first_during_replay {
                    self.damming.completed(flow, request);
                }
                if request.discards > 0 {
                    self.flood.completed(flow, request);
                }
            }
            Event::Packet { at, .. } => {
                if at.marks.is_remarkable() {
                    self.congestion.packet(flow, at);
                    self.icrc.packet(flow, at);
                }
            }
            Event::Elsewhere { at } => {
                self.congestion.packet(flow, at);
                self.icrc.packet(flow, at);
            }
            Event::Repeat(repeat) => {
                self.damming.repeat(flow, repeat);
                self.write_flood.repeat(flow, repeat);
                self.responder_faults.repeat(flow, repeat);
                self.requester_faults.repeat(flow, repeat);
                self.timeout.repeat(flow, repeat);
                self.rnr_storm.repeat(flow, repeat);
                self.rnr_zero.repeat(flow, repeat);
                self.slow_receiver.repeat(flow, repeat);
                self.loss.repeat(flow, repeat);
                self.window.repeat(flow, repeat);
            }
            Event::RnrNak { nak, timer, request } => {
                self.responder_faults.rnr_nak(flow, nak, *request);
                self.write_flood.rnr_nak(flow, nak, *request);
                self.slow_receiver.rnr_nak(flow, nak, *request);
                self.rnr_storm.rnr_nak(flow, nak, *timer, *request);
                self.rnr_zero.rnr_nak(flow, nak, *timer);
            }
            Event::SequenceNak { nak, request } => {
                self.damming.sequence_nak(flow, nak);
                self.loss.sequence_nak(flow, nak, *request);
            }
            Event::Fatal { nak, code, request } => self.remote_error.nak(flow, nak, *code, *request),
            Event::ResponseGap { at } => self.loss.response_gap(flow, at),
            Event::Late { at } => {
                if !at.marks.over_links {
                    self.reordering.late(flow, at);
                }
                self.loss.late(flow, at);
            }
            Event::Stray { at } => self.window.stray(flow, at),
            Event::AnsweredAgain { at, request } => self.window.answered_again(flow, at, request),
            Event::New(_) => {}
        }
    }

    /// A congestion notification packet.
    pub fn notification(&mut self, packet: &RdmaPacket<'_>, time: u64, frame: FrameId) {
        self.congestion.notification(packet, time, frame);
    }

    /// All findings, in no order.
    pub fn findings(&mut self, end: &End<'_>) -> Vec<Finding> {
        self.damming.decide(end);
        let dammed = self.damming.findings(end);
        let flooded = self.flood.findings(end);
        let exhausted = exhausted::findings(end);
        let stopped = stopped::findings(end, &exhausted);
        let storms = self.rnr_storm.findings(end, &self.responder_faults);
        let write_floods = self.write_flood.findings(end, &self.responder_faults);
        let mut all = Vec::new();
        all.extend(self.responder_faults.findings(end));
        all.extend(self.requester_faults.findings(end));
        let explained: HashSet<FlowId> =
            exhausted.iter().chain(&stopped).flat_map(|finding| finding.flows.clone()).collect();
        all.extend(self.timeout.findings(end, &self.damming, &explained));
        all.extend(self.rnr_zero.findings(end));
        all.extend(self.slow_receiver.findings(end, &self.responder_faults));
        all.extend(self.loss.findings(end, &self.damming, &self.window, &explained));
        all.extend(self.reordering.findings(end));
        all.extend(self.remote_error.findings(end));
        all.extend(self.window.findings(end));
        all.extend(self.icrc.findings(end));
        all.extend(self.congestion.findings(end));
        all.extend(small_messages::findings(end));
        all.extend([dammed, flooded, write_floods, exhausted, stopped, storms].into_iter().flatten());
        all
    }
}
