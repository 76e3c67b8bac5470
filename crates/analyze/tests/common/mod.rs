//! Captures that are typed in: a line for each packet.

use std::collections::HashSet;
use weir_analyze::report::{Document, FindingEntry};
use weir_analyze::{Analysis, Options};
use weir_capture::{Frame, LinkType};
use weir_wire::ip::Envelope;
use weir_wire::{
    Aeth, Bth, Headers, ICRC_LEN, NakCode, Opcode, Operation, Psn, ROCE_PORT, Reth, RnrTimer, Service, Syndrome, icrc,
};

pub const REQUESTER: u32 = 0x11;
pub const RESPONDER: u32 = 0x22;

/// The document of a capture given as text: `SECONDS DIRECTION WHAT PSN [BYTES]`, one packet on each line. The direction
/// is `>` for the requester's packets. WHAT is `read`, `write`, `send`, `response`, `ack`, `rnr` or `nak`; of `rnr` the
/// last number is the timer's code.
pub fn analyzed(capture: &str) -> Document {
    let mut analysis = Analysis::new(Options::default());
    for (at, line) in capture.lines().map(str::trim).filter(|line| !line.is_empty()).enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let seconds: f64 = words[0].parse().expect(line);
        let number = |at: usize| words.get(at).map(|word| word.parse::<u32>().expect(line));
        let (psn, extra) = (number(3).expect(line), number(4));
        let bytes = packet(words[1] == ">", words[2], psn, extra);
        let time = START + (seconds * 1e9).round() as u64;
        analysis.frame(0, &Frame::new(at as u64 + 1, time, LinkType::Ethernet, &bytes));
    }
    Document::new(&analysis.finish(), &["typed.pcap".to_owned()])
}

/// The kinds of the findings.
pub fn kinds(document: &Document) -> HashSet<&'static str> {
    document.findings.iter().map(|finding| finding.kind).collect()
}

/// The finding of a kind.
pub fn finding<'a>(document: &'a Document, kind: &str) -> &'a FindingEntry {
    let found = document.findings.iter().find(|finding| finding.kind == kind);
    found.unwrap_or_else(|| panic!("no {kind} in {:?}", kinds(document)))
}

/// An arbitrary day, ns since 1970.
pub const START: u64 = 1_600_000_000_000_000_000;

fn packet(from_requester: bool, what: &str, psn: u32, extra: Option<u32>) -> Vec<u8> {
    let bytes = extra.unwrap_or(100);
    let aeth = |syndrome: Syndrome| Some(syndrome.to_byte());
    let (operation, syndrome, payload) = match what {
        "read" => (Operation::ReadRequest, None, 0),
        "write" => (Operation::WriteOnly, None, bytes),
        "send" => (Operation::SendOnly, None, bytes),
        "response" => (Operation::ReadResponseOnly, aeth(Syndrome::ACK_UNLIMITED), bytes),
        "ack" => (Operation::Acknowledge, aeth(Syndrome::ACK_UNLIMITED), 0),
        "rnr" => (Operation::Acknowledge, aeth(Syndrome::RnrNak(RnrTimer::new(extra.unwrap_or(14) as u8))), 0),
        "nak" => (Operation::Acknowledge, aeth(Syndrome::Nak(NakCode::PsnSequence)), 0),
        other => panic!("no packet {other}"),
    };
    let to = if from_requester { RESPONDER } else { REQUESTER };
    let bth = Bth { ack_req: true, ..Bth::new(Opcode::new(Service::Rc, operation), to, Psn::new(psn)) };
    let mut headers = Headers::new(Bth { pad: (4 - payload % 4) as u8 % 4, ..bth });
    headers.put(Reth { va: 0x1000.into(), rkey: 7.into(), dma_len: bytes.into() });
    if let Some(syndrome) = syndrome {
        headers.put(Aeth::new(syndrome, 0));
    }
    let mut body = vec![0; headers.len() + payload.next_multiple_of(4) as usize];
    headers.emit(&mut body);
    let hosts = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
    let [src, dst] = if from_requester { hosts } else { [hosts[1], hosts[0]] };
    let envelope = Envelope { src, dst, src_port: 50_000, dst_port: ROCE_PORT, ip_id: 0, dont_fragment: true };
    let mut frame = vec![2; 12];
    frame.extend([0x08, 0x00]);
    let mut head = [0; 48];
    let len = envelope.emit(body.len() + ICRC_LEN, 0, 64, &mut head);
    frame.extend(&head[..len]);
    frame.extend(&body);
    frame.extend(icrc::compute(&envelope, &body).to_le_bytes());
    frame
}
