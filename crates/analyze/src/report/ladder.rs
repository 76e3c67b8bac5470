//! The packets around a finding's most expensive occurrence, and what is special about each.

use crate::flow::{Cause, Clip};
use crate::packet::Seen;
use serde::Serialize;
use weir_wire::{NakCode, Psn, RnrTimer, Syndrome};

/// A packet of a ladder.
#[derive(Clone, Debug, Serialize)]
pub struct LadderStep {
    /// Since the ladder's first packet, ns.
    pub time_ns: u64,
    pub frame: u64,
    pub from_requester: bool,
    /// Such as "READ request".
    pub what: &'static str,
    pub psn: u32,
    /// What is special about it; empty if nothing is.
    pub note: String,
    pub mark: Mark,
}

/// What became of a packet, or why it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mark {
    /// Nothing special.
    None,
    /// The responder says by a sequence NAK that it did not get the packet.
    Lost,
    /// No response was captured before the packet was repeated after a timeout: it or its response was lost.
    Unanswered,
    /// A request that was sent before.
    Repeat,
    /// A negative acknowledgement.
    Nak,
}

/// The steps of a clip.
pub(super) fn steps(clip: &Clip) -> Vec<LadderStep> {
    let start = clip.packets.first().map_or(0, |(packet, _)| packet.time);
    let step = |(at, (packet, from_requester)): (usize, &(Seen, bool))| LadderStep {
        time_ns: packet.time.saturating_sub(start),
        frame: packet.frame.number(),
        from_requester: *from_requester,
        what: packet.name(),
        psn: packet.psn.get(),
        note: note(packet, clip),
        mark: mark(at, clip),
    };
    clip.packets.iter().enumerate().map(step).collect()
}

fn mark(at: usize, clip: &Clip) -> Mark {
    let (packet, from_requester) = &clip.packets[at];
    if !from_requester {
        let negative = matches!(packet.acknowledgement(), Some(Syndrome::RnrNak(_) | Syndrome::Nak(_)));
        return if negative { Mark::Nak } else { Mark::None };
    }
    let requests = |packets: &[(Seen, bool)]| -> Vec<Psn> {
        packets.iter().filter(|(_, from_requester)| *from_requester).map(|(packet, _)| packet.psn).collect()
    };
    // A sequence NAK names the PSN that the responder misses, so the last packet with it did not arrive. A packet that
    // goes again before the NAK stands for its earlier transmission. After an RNR NAK the packet had arrived: later
    // packets get sequence NAKs because the responder waits for its repetition.
    let about = |(other, _): &&(Seen, bool)| other.psn == packet.psn;
    if let Some((other, false)) = clip.packets[at + 1..].iter().find(about)
        && other.acknowledgement() == Some(Syndrome::Nak(NakCode::PsnSequence))
    {
        return Mark::Lost;
    }
    let event = clip.packets.iter().position(|(packet, _)| packet.frame == clip.frame);
    if let Some(event) = event
        && clip.cause == Some(Cause::Timeout)
        && at < event
        && packet.psn == clip.packets[event].0.psn
        && !requests(&clip.packets[at + 1..event]).contains(&packet.psn)
    {
        return Mark::Unanswered;
    }
    let again = packet.frame == clip.frame || requests(&clip.packets[..at]).contains(&packet.psn);
    if again { Mark::Repeat } else { Mark::None }
}

/// What is special about a packet of a clip.
fn note(packet: &Seen, clip: &Clip) -> String {
    if packet.frame == clip.frame {
        return match clip.cause {
            Some(Cause::Timeout) => "again, after a timeout".to_owned(),
            Some(Cause::Rnr { .. }) => "again, after the RNR delay".to_owned(),
            Some(Cause::SequenceNak) => "again, after the NAK".to_owned(),
            Some(Cause::Discarded) => "again: the response was dropped".to_owned(),
            Some(Cause::ResponseGap) => "again: a part of the response is missing".to_owned(),
            Some(Cause::Acknowledged) => "again, although acknowledged".to_owned(),
            Some(Cause::Unseen) | None => "again".to_owned(),
        };
    }
    match packet.acknowledgement() {
        Some(Syndrome::RnrNak(timer)) => delay(timer),
        _ if packet.marks.bad_icrc => "wrong ICRC".to_owned(),
        _ if packet.marks.congested => "marked: congestion".to_owned(),
        _ => String::new(),
    }
}

fn delay(timer: RnrTimer) -> String {
    format!("wait {} ms", timer.delay().as_micros() as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{FrameId, Marks};
    use weir_wire::Opcode;

    const SEND_ONLY: Opcode = Opcode(0x04);
    const ACKNOWLEDGE: Opcode = Opcode(0x11);
    const SEQUENCE_NAK: u8 = 0x60;

    fn packet(number: u64, opcode: Opcode, psn: u32, syndrome: u8) -> (Seen, bool) {
        let seen = Seen {
            time: number * 1000,
            frame: FrameId::new(0, number),
            psn: Psn::new(psn),
            opcode,
            marks: Marks::default(),
            syndrome,
            payload: 8,
            message: 0,
            rkey: 0,
            va: 0,
        };
        (seen, opcode == SEND_ONLY)
    }

    fn marks(cause: Cause, frame: u64, packets: Vec<(Seen, bool)>) -> Vec<Mark> {
        let clip = Clip { cause: Some(cause), frame: FrameId::new(0, frame), waited: 0, packets };
        steps(&clip).iter().map(|step| step.mark).collect()
    }

    #[test]
    fn a_sequence_nak_marks_the_packet_that_it_names_as_lost_and_no_other() {
        let packets = vec![
            packet(1, SEND_ONLY, 7, 0),
            packet(2, SEND_ONLY, 8, 0),
            packet(3, SEND_ONLY, 9, 0),
            packet(4, ACKNOWLEDGE, 8, SEQUENCE_NAK),
            packet(5, SEND_ONLY, 8, 0),
            packet(6, SEND_ONLY, 9, 0),
        ];
        use Mark::*;
        assert_eq!(marks(Cause::SequenceNak, 5, packets), [None, Lost, None, Nak, Repeat, Repeat]);
    }

    #[test]
    fn a_packet_that_got_an_rnr_nak_was_not_lost() {
        let packets = vec![
            packet(1, SEND_ONLY, 7, 0),
            packet(2, SEND_ONLY, 8, 0),
            packet(3, ACKNOWLEDGE, 7, 0x20 | 12),
            packet(4, ACKNOWLEDGE, 7, SEQUENCE_NAK),
            packet(5, SEND_ONLY, 7, 0),
        ];
        use Mark::*;
        assert_eq!(marks(Cause::Rnr { code: 12 }, 5, packets), [None, None, Nak, Nak, Repeat]);
    }

    #[test]
    fn a_timeout_marks_the_last_transmission_before_it_as_unanswered() {
        let packets = vec![
            packet(1, SEND_ONLY, 7, 0),
            packet(2, SEND_ONLY, 8, 0),
            packet(3, ACKNOWLEDGE, 7, 0x1f),
            packet(4, SEND_ONLY, 8, 0),
            packet(5, SEND_ONLY, 8, 0),
            packet(6, ACKNOWLEDGE, 8, 0x1f),
        ];
        use Mark::*;
        assert_eq!(marks(Cause::Timeout, 5, packets), [None, None, None, Unanswered, Repeat, None]);
    }
}
