//! Compares Weir's reading of a capture with tshark's: number, time and length of every frame, and every field of every
//! RDMA packet.
//!
//! Only tests depend on this crate.
#![forbid(unsafe_code)]

mod fields;

use fields::{INNER, OUTER, PAYLOAD_LEN, Seen, value};
use std::path::Path;
use std::process::{Command, Stdio};
use thiserror::Error;
use weir_capture::packet::{self, RdmaPacket};
use weir_capture::{CaptureError, Frame, open};
use weir_wire::{Headers, ICRC_LEN, Operation, ParseError, Service};

/// The result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Frames that both parse alike.
    pub passed: usize,
    /// Frames with a wrong ICRC that Weir cannot parse or parses differently; damaged packets are not compared.
    pub skipped: usize,
    /// Differences, a line for each frame.
    pub failures: Vec<String>,
}

/// Why there is no comparison.
#[derive(Debug, Error)]
pub enum CompareError {
    #[error(transparent)]
    Capture(#[from] CaptureError),
    #[error("cannot run tshark: {0}")]
    Run(#[from] std::io::Error),
    #[error("tshark failed: {0}")]
    Tshark(String),
    #[error("tshark reads {theirs} frames, Weir {ours}")]
    Count { ours: usize, theirs: usize },
}

/// Reads the file with tshark and with Weir's parser, and compares the fields.
pub fn compare(path: impl AsRef<Path>) -> Result<Comparison, CompareError> {
    compare_files(path.as_ref(), path.as_ref())
}

/// The same for a file of which tshark reads a variant: tshark 4.0 does not know LINKTYPE_INFINIBAND, but takes
/// LINKTYPE_USER0 for it here.
pub fn compare_files(ours: &Path, theirs: &Path) -> Result<Comparison, CompareError> {
    let rows = read_with_tshark(theirs)?;
    let mut reader = open(ours)?;
    let mut comparison = Comparison::default();
    let mut count = 0;
    while let Some(frame) = reader.next_frame()? {
        let row = rows.get(count);
        count += 1;
        let Some(row) = row else { break };
        match check(row, &frame) {
            Outcome::Alike => comparison.passed += 1,
            Outcome::Skipped => comparison.skipped += 1,
            Outcome::Different(what) => comparison.failures.push(format!("frame {}: {what}", frame.number)),
        }
    }
    while reader.next_frame()?.is_some() {
        count += 1;
    }
    if rows.len() != count {
        return Err(CompareError::Count { ours: count, theirs: rows.len() });
    }
    Ok(comparison)
}

enum Outcome {
    Alike,
    Skipped,
    Different(String),
}

/// Of every frame, RDMA or not. A record of ERF has a time of its own.
const FRAME: [&str; 5] = ["_ws.malformed", "frame.number", "frame.len", "frame.time_epoch", "erf.ts"];

/// A row for each frame: [`FRAME`], then [`OUTER`] and [`INNER`].
fn read_with_tshark(path: &Path) -> Result<Vec<Vec<String>>, CompareError> {
    let mut tshark = Command::new("tshark");
    // tshark's RPC-over-RDMA dissector claims every SEND, and then reports it as malformed.
    tshark.args(["-n", "--disable-protocol", "rpcordma", "-T", "fields", "-E", "occurrence=a", "-E", "separator=/t"]);
    tshark.args(["-o", r#"uat:user_dlts:"User 0 (DLT=147)","infiniband","0","","0","""#]);
    for name in FRAME.into_iter().chain(OUTER.iter().chain(&INNER).map(|(name, ..)| *name)) {
        tshark.args(["-e", name]);
    }
    let output = tshark.arg("-r").arg(path).stdin(Stdio::null()).output()?;
    if !output.status.success() {
        return Err(CompareError::Tshark(String::from_utf8_lossy(&output.stderr).trim().into()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    // Of the VLANs of a frame the last is the innermost; no other field occurs twice.
    let last = |cell: &str| cell.rsplit(',').next().unwrap_or_default().to_owned();
    Ok(text.lines().map(|line| line.split('\t').map(last).collect()).collect())
}

fn check(row: &[String], frame: &Frame<'_>) -> Outcome {
    let Some((head, fields)) = row.split_first_chunk::<5>() else {
        return Outcome::Different("tshark printed nothing".into());
    };
    if let Some(what) = frame_difference(head, frame) {
        return Outcome::Different(what);
    }
    let opcode = fields.first().map_or("", String::as_str);
    // tshark knows packets over several links only with a script.
    let Some(found) = packet::find(frame).filter(|found| found.edge.is_none()) else {
        return match opcode {
            "" => Outcome::Alike,
            _ => Outcome::Different(format!("no RDMA packet to Weir, opcode {opcode} to tshark")),
        };
    };
    let damaged = found.icrc_ok() == Some(false);
    let headers = match parse(&found) {
        Ok(headers) => headers,
        Err(_) if damaged => return Outcome::Skipped,
        Err(error) => return Outcome::Different(format!("no wrong ICRC, but {error}")),
    };
    let opcode = headers.bth.opcode;
    // tshark 4.0 does not know these two operations, XRC and reserved operations, and parses only their BTH.
    let known = !matches!(opcode.operation(), None | Some(Operation::Flush | Operation::AtomicWrite))
        && opcode.service() != Service::Xrc;
    let malformed = &head[0];
    if !malformed.is_empty() && !damaged && found.is_complete() && known {
        return Outcome::Different(format!("malformed to tshark: {malformed}"));
    }
    let seen = Seen { found: &found, headers: &headers };
    let count = if known { OUTER.len() + INNER.len() } else { OUTER.len() };
    let mut differences = Vec::new();
    for ((name, print, ours), text) in OUTER.iter().chain(&INNER).zip(fields).take(count) {
        let (ours, theirs) = (ours(&seen), value(*print, text));
        // Another dissector may claim the payload; and tshark takes the end of what is captured for payload and ICRC.
        let comparable = match *name {
            PAYLOAD_LEN => found.is_complete() && theirs.is_some(),
            fields::ICRC => found.is_complete(),
            _ => true,
        };
        if ours != theirs && comparable {
            differences.push(format!("{name} is {ours:x?} to Weir, {theirs:x?} to tshark"));
        }
    }
    match differences.is_empty() {
        true => Outcome::Alike,
        false if damaged => Outcome::Skipped,
        false => Outcome::Different(differences.join(", ")),
    }
}

/// The headers of a packet that is as long as they say.
fn parse(found: &RdmaPacket<'_>) -> Result<Headers, ParseError> {
    let headers = found.headers()?;
    found.payload_len(&headers)?;
    match found.transport_len < headers.len() + ICRC_LEN {
        true => Err(ParseError::Truncated { len: found.transport_len, need: headers.len() + ICRC_LEN }),
        false => Ok(headers),
    }
}

fn frame_difference([_, number, len, time, erf]: &[String; 5], frame: &Frame<'_>) -> Option<String> {
    let time = match erf.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
        Some(stamp) => Some((stamp >> 32) * 1_000_000_000 + (((stamp & 0xffff_ffff) * 1_000_000_000) >> 32)),
        None => time.replace('.', "").parse().ok(),
    };
    let ours = (Some(frame.number), Some(frame.orig_len), Some(frame.timestamp));
    let theirs = (number.parse().ok(), len.parse().ok(), time);
    (ours != theirs).then(|| format!("number, length and time are {ours:?} to Weir, {theirs:?} to tshark"))
}

#[cfg(test)]
mod tests {
    use super::fields::Print;
    use super::*;
    use weir_capture::LinkType;
    use weir_wire::ip::Envelope;
    use weir_wire::{Aeth, Bth, Opcode, Psn, ROCE_PORT, icrc};

    /// An Ethernet frame with an ACK, and tshark's row for it.
    fn acknowledgement() -> (Vec<u8>, Vec<String>) {
        let bth = Bth::new(Opcode::new(Service::Rc, Operation::Acknowledge), 0x1b, Psn::new(77));
        let mut headers = Headers::new(bth);
        headers.put(Aeth::new(0x1f, 5));
        let mut body = [0; 16];
        headers.emit(&mut body);
        let [src, dst] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        let envelope = Envelope { src, dst, src_port: 9, dst_port: ROCE_PORT, ip_id: 0, dont_fragment: true };
        let mut ip_udp = [0; 28];
        envelope.emit(body.len() + 4, 2, 64, &mut ip_udp);
        let icrc = icrc::compute(&envelope, &body);
        let frame = [&[0; 12][..], &[8, 0], &ip_udp, &body, &icrc.to_le_bytes()].concat();
        let len = frame.len().to_string();
        let mut row = ["", "9", &len, "7.000000001", ""].map(str::to_owned).to_vec();
        row.resize(FRAME.len() + OUTER.len() + INNER.len(), String::new());
        let bth = ["17", "77", "0x00001b", "0", "False", "1", "0", "65535", "0", "0"];
        let ip = ["10.0.0.1", "10.0.0.2", "0x02"];
        for (cell, text) in row[FRAME.len()..].iter_mut().zip(bth.into_iter().chain(ip)) {
            *cell = text.into();
        }
        let (source, length, inner) = (FRAME.len() + 16, FRAME.len() + 17, FRAME.len() + OUTER.len());
        (row[source], row[length]) = ("9".into(), "28".into());
        (row[inner], row[inner + 1]) = ("31".into(), "5".into());
        row[inner + 12] = format!("{:#010x}", icrc.swap_bytes());
        (frame, row)
    }

    #[test]
    fn equal_fields_pass_and_each_difference_fails() {
        let (bytes, row) = acknowledgement();
        let frame = Frame::new(9, 7_000_000_001, LinkType::Ethernet, &bytes);
        assert!(matches!(check(&row, &frame), Outcome::Alike));
        let prints = OUTER.iter().chain(&INNER).map(|(_, print, _)| *print);
        let prints = FRAME.iter().map(|_| Print::Number).chain(prints);
        for (changed, print) in prints.enumerate() {
            let mut other = row.clone();
            other[changed] = match (print, other[changed].as_str()) {
                (Print::Address, _) => "10.0.0.9",
                (_, "1") => "0",
                (Print::Bytes, _) => "01",
                (Print::Number, _) => "0x01",
            }
            .into();
            assert!(matches!(check(&other, &frame), Outcome::Different(_)), "column {changed}");
        }
    }
}
