//! Captures that are typed in: a line for each packet.

mod documents;
mod packets;

pub use documents::{finding, kinds};
pub use packets::{REQUESTER, RESPONDER, START, headers};

use weir_analyze::report::Document;
use weir_analyze::{Analysis, Options};
use weir_capture::{Frame, LinkType};
use weir_wire::ip::Envelope;
use weir_wire::{ICRC_LEN, ROCE_PORT, icrc};

/// The document of a capture given as text: `SECONDS DIRECTION WHAT PSN [BYTES]`, one packet on each line. The direction
/// is `>` for the requester's packets. WHAT is `read`, `write`, `send`, `response` (`first` and `last` of two packets),
/// `ack`, `rnr` or `nak`; of `rnr` the last number is the timer's code.
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

fn packet(from_requester: bool, what: &str, psn: u32, extra: Option<u32>) -> Vec<u8> {
    let (headers, payload) = headers(from_requester, what, psn, extra);
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
