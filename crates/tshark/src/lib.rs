//! Compares Weir's parsing of a capture with tshark's: every field of every RoCEv2 packet.
//!
//! Only tests depend on this crate.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::{Command, Stdio};
use thiserror::Error;
use weir_capture::{CaptureError, open, roce};
use weir_wire::{Aeth, AtomicAckEth, AtomicEth, Deth, Ieth, ImmDt, Operation, Packet, Reth, icrc};

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
    let rows = read_with_tshark(path.as_ref())?;
    let frames = open(path)?.owned_frames().collect::<Result<Vec<_>, _>>()?;
    if rows.len() != frames.len() {
        return Err(CompareError::Count { ours: frames.len(), theirs: rows.len() });
    }
    let mut comparison = Comparison::default();
    for (number, (row, frame)) in (1..).zip(rows.iter().zip(&frames)) {
        match check(row, &frame.data) {
            Outcome::Alike => comparison.passed += 1,
            Outcome::Skipped => comparison.skipped += 1,
            Outcome::Different(what) => comparison.failures.push(format!("frame {number}: {what}")),
        }
    }
    Ok(comparison)
}

enum Outcome {
    Alike,
    Skipped,
    Different(String),
}

/// The format in which tshark prints a field.
#[derive(Clone, Copy)]
enum Print {
    /// Decimal, 0x and hexadecimal, or True and False.
    Number,
    /// Hexadecimal bytes.
    Bytes,
}

/// A field's name in tshark, its format, and its value from Weir's parser.
type Field = (&'static str, Print, fn(&Packet<'_>) -> Option<u64>);

const MALFORMED: &str = "_ws.malformed";
/// Payload length, if no other dissector claims the payload; tshark counts the pad bytes as payload.
const PAYLOAD_LEN: &str = "data.len";

const FIELDS: [Field; 22] = [
    ("infiniband.bth.opcode", Print::Number, |p| Some(p.headers.bth.opcode.0.into())),
    ("infiniband.bth.psn", Print::Number, |p| Some(p.headers.bth.psn.get().into())),
    ("infiniband.bth.destqp", Print::Number, |p| Some(p.headers.bth.dest_qp.into())),
    ("infiniband.bth.a", Print::Number, |p| Some(p.headers.bth.ack_req.into())),
    ("infiniband.bth.se", Print::Number, |p| Some(p.headers.bth.solicited.into())),
    ("infiniband.bth.m", Print::Number, |p| Some(p.headers.bth.mig_req.into())),
    ("infiniband.bth.padcnt", Print::Number, |p| Some(p.headers.bth.pad.into())),
    ("infiniband.bth.p_key", Print::Number, |p| Some(p.headers.bth.pkey.into())),
    ("infiniband.aeth.syndrome", Print::Number, |p| p.headers.get::<Aeth>().map(|h| h.syndrome().into())),
    ("infiniband.aeth.msn", Print::Number, |p| p.headers.get::<Aeth>().map(|h| h.msn().into())),
    ("infiniband.reth.va", Print::Number, |p| {
        p.headers.get::<Reth>().map(|h| h.va.get()).or(p.headers.get::<AtomicEth>().map(|h| h.va.get()))
    }),
    ("infiniband.reth.r_key", Print::Number, |p| {
        p.headers
            .get::<Reth>()
            .map(|h| h.rkey.get().into())
            .or(p.headers.get::<AtomicEth>().map(|h| h.rkey.get().into()))
    }),
    ("infiniband.reth.dmalen", Print::Number, |p| p.headers.get::<Reth>().map(|h| h.dma_len.get().into())),
    ("infiniband.atomiceth.swapdt", Print::Number, |p| p.headers.get::<AtomicEth>().map(|h| h.swap_or_add.get())),
    ("infiniband.atomiceth.cmpdt", Print::Number, |p| p.headers.get::<AtomicEth>().map(|h| h.compare.get())),
    ("infiniband.atomicacketh.origremdt", Print::Number, |p| p.headers.get::<AtomicAckEth>().map(|h| h.original.get())),
    ("infiniband.immdt", Print::Bytes, |p| p.headers.get::<ImmDt>().map(|h| h.imm.get().into())),
    ("infiniband.ieth", Print::Bytes, |p| p.headers.get::<Ieth>().map(|h| h.rkey.get().into())),
    ("infiniband.deth.q_key", Print::Number, |p| p.headers.get::<Deth>().map(|h| h.qkey.get().into())),
    ("infiniband.deth.srcqp", Print::Number, |p| p.headers.get::<Deth>().map(|h| (h.src_qp.get() & 0xff_ffff).into())),
    ("infiniband.invariant.crc", Print::Number, |p| Some(p.icrc.swap_bytes().into())),
    (PAYLOAD_LEN, Print::Number, |p| Some((p.payload.len() + usize::from(p.headers.bth.pad)) as u64)),
];
/// Number of the fields, from the first, that are in the BTH.
const BTH_FIELDS: usize = 8;

/// A row for each frame: whether it is malformed, then [`FIELDS`].
fn read_with_tshark(path: &Path) -> Result<Vec<Vec<String>>, CompareError> {
    let mut tshark = Command::new("tshark");
    // tshark's RPC-over-RDMA dissector claims every SEND, and then reports it as malformed.
    tshark.args(["-n", "--disable-protocol", "rpcordma", "-T", "fields", "-E", "occurrence=f", "-E", "separator=/t"]);
    tshark.args(["-e", MALFORMED]);
    for (name, ..) in FIELDS {
        tshark.args(["-e", name]);
    }
    let output = tshark.arg("-r").arg(path).stdin(Stdio::null()).output()?;
    if !output.status.success() {
        return Err(CompareError::Tshark(String::from_utf8_lossy(&output.stderr).trim().into()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect())
}

fn check(row: &[String], frame: &[u8]) -> Outcome {
    let [malformed, fields @ ..] = row else { return Outcome::Different("tshark printed nothing".into()) };
    let opcode = fields.first().map_or("", String::as_str);
    let Some(datagram) = roce::find(frame) else {
        return match opcode {
            "" => Outcome::Alike,
            _ => Outcome::Different(format!("no RoCE packet to Weir, opcode {opcode} to tshark")),
        };
    };
    let good = datagram.is_complete()
        && datagram.payload.len() >= 16
        && icrc::verify(&datagram.envelope, datagram.payload) == icrc::Verdict::Good;
    let packet = match Packet::parse(datagram.payload) {
        Ok(packet) => packet,
        Err(_) if !good => return Outcome::Skipped,
        Err(error) => return Outcome::Different(format!("good ICRC, but {error}")),
    };
    let operation = packet.headers.bth.opcode.operation();
    // tshark 4.0 does not know these two operations and reserved ones, and parses only their BTH.
    let known = !matches!(operation, None | Some(Operation::Flush | Operation::AtomicWrite));
    if !malformed.is_empty() && good && known {
        return Outcome::Different(format!("malformed to tshark: {malformed}"));
    }
    let count = if known { FIELDS.len() } else { BTH_FIELDS };
    let mut differences = Vec::new();
    for ((name, print, ours), text) in FIELDS.iter().zip(fields).take(count) {
        let (ours, theirs) = (ours(&packet), number(*print, text));
        let unclaimed = *name != PAYLOAD_LEN || theirs.is_some();
        if ours != theirs && unclaimed {
            differences.push(format!("{name} is {ours:x?} to Weir, {theirs:x?} to tshark"));
        }
    }
    match differences.is_empty() {
        true => Outcome::Alike,
        false if good => Outcome::Different(differences.join(", ")),
        false => Outcome::Skipped,
    }
}

fn number(print: Print, text: &str) -> Option<u64> {
    match (print, text) {
        (_, "") => None,
        (_, "True") => Some(1),
        (_, "False") => Some(0),
        (Print::Bytes, _) => u64::from_str_radix(&text.replace(':', ""), 16).ok(),
        (Print::Number, _) => match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_wire::ip::Envelope;
    use weir_wire::{Aeth, Bth, Headers, Opcode, Psn, ROCE_PORT, Service};

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
        envelope.emit(body.len() + 4, 0, 64, &mut ip_udp);
        let icrc = icrc::compute(&envelope, &body);
        let frame = [&[0; 12][..], &[8, 0], &ip_udp, &body, &icrc.to_le_bytes()].concat();
        let mut row = vec![String::new(); 1 + FIELDS.len()];
        let texts = ["17", "77", "0x00001b", "0", "False", "1", "0", "65535", "31", "5"];
        for (cell, text) in row[1..].iter_mut().zip(texts) {
            *cell = text.into();
        }
        row[21] = format!("{:#010x}", icrc.swap_bytes());
        (frame, row)
    }

    #[test]
    fn equal_fields_pass_and_each_difference_fails() {
        let (frame, row) = acknowledgement();
        assert!(matches!(check(&row, &frame), Outcome::Alike));
        for changed in 0..row.len() {
            let mut other = row.clone();
            other[changed] = if other[changed] == "1" { "0" } else { "1" }.into();
            assert!(matches!(check(&other, &frame), Outcome::Different(_)), "column {changed}");
        }
    }
}
