//! Log messages about messages of UC and UD that are dropped: their sender does not learn it, and neither does the program
//! that should receive them. Each kind is reported once a minute.

use crate::shared::note_log::NoteLog;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_transport::{DropCause, Dropped, Instant};

/// Dropped messages that wait for the log.
#[derive(Default)]
pub struct DropLog(NoteLog<DropNote, { DropNote::KINDS }>);

/// A message that was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropNote {
    /// The QP that it was for.
    pub qp: u32,
    /// The QP that sent it.
    pub sender: u32,
    /// The sender's address, if the message has it: it is a datagram.
    pub from: Option<IpAddr>,
    pub why: DropCause,
}

impl DropNote {
    /// As many kinds of notes there are.
    pub const KINDS: usize = 5;

    #[cold]
    pub fn new(qp: u32, message: &Dropped<'_>) -> DropNote {
        DropNote { qp, sender: message.sender, from: message.network_header.and_then(sender_of), why: message.why }
    }

    /// From 0.
    pub fn kind(&self) -> usize {
        match self.why {
            DropCause::QKey { .. } => 0,
            DropCause::NoReceive => 1,
            DropCause::TooLong { .. } => 2,
            DropCause::AboveMtu { .. } => 3,
            DropCause::Refused => 4,
        }
    }
}

impl DropLog {
    /// Keeps a note for the log. Allocates nothing. False: one of its kind was kept a short time ago.
    pub fn note(&self, note: DropNote, now: Instant) -> bool {
        self.0.note(note.kind(), note, now)
    }

    /// Writes the notes to the log.
    pub fn write_log(&self, device: &str) {
        for note in self.0.take() {
            tracing::warn!("{device}, {note} (said once a minute)");
        }
    }

    /// What waits for the log.
    #[cfg(test)]
    pub fn noted(&self) -> Vec<DropNote> {
        self.0.noted()
    }
}

impl fmt::Display for DropNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DropNote { qp, sender, from, why } = self;
        let what = if from.is_some() { "a datagram" } else { "a message" };
        write!(f, "QP {qp:#08x}: {what} of QP {sender:#08x}")?;
        if let Some(from) = from {
            write!(f, " at {from}")?;
        }
        match why {
            DropCause::QKey { sent, own } => write!(
                f,
                " is dropped because its Q_Key is {sent:#x}, and that of this QP is {own:#x}: send with the Q_Key that \
                 the receiver has set (IBV_QP_QKEY). If bit 31 of remote_qkey is set, the Q_Key of the sending QP is sent"
            ),
            DropCause::NoReceive => write!(
                f,
                " is dropped because no receive is posted: post receives before the peer sends, and as many as may \
                 come until the program posts new ones. UC and UD repeat nothing"
            ),
            DropCause::TooLong { room } if from.is_some() => write!(
                f,
                " is dropped because it does not fit into its receive of {room} bytes: post receives of 40 bytes for \
                 the GRH and the length of the message"
            ),
            DropCause::TooLong { room } => {
                write!(f, " is dropped because it is longer than its receive of {room} bytes: post longer receives")
            }
            DropCause::AboveMtu { length, mtu } => write!(
                f,
                " is dropped because it has {length} bytes, and the port carries {mtu}: send no more than the \
                 active_mtu of both ports, or give the interface a larger MTU"
            ),
            DropCause::Refused => write!(
                f,
                " is dropped because it is not allowed here: look at rkey, address, length, the access flags of the \
                 region, and qp_access_flags of this QP"
            ),
        }
    }
}

/// The sender's address in a network header.
fn sender_of(header: &[u8; 40]) -> Option<IpAddr> {
    if header[0] >> 4 == 6 {
        let address = header[8..24].first_chunk::<16>()?;
        return Some(Ipv6Addr::from(*address).into());
    }
    let address = header[32..36].first_chunk::<4>()?;
    Some(Ipv4Addr::from(*address).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_names_qp_sender_and_remedy() {
        let from = Some("10.0.0.2".parse().unwrap());
        for (from, why, parts) in [
            (from, DropCause::QKey { sent: 0x11, own: 0x22 }, ["its Q_Key is 0x11", "that of this QP is 0x22"]),
            (from, DropCause::NoReceive, ["no receive is posted", "post receives before"]),
            (from, DropCause::TooLong { room: 64 }, ["its receive of 64 bytes", "40 bytes for the GRH"]),
            (from, DropCause::AboveMtu { length: 2048, mtu: 1024 }, ["has 2048 bytes", "active_mtu"]),
            (None, DropCause::NoReceive, ["no receive is posted", "post receives before"]),
            (None, DropCause::TooLong { room: 64 }, ["its receive of 64 bytes", "post longer receives"]),
            (None, DropCause::Refused, ["not allowed", "qp_access_flags"]),
        ] {
            let note = DropNote { qp: 0x12, sender: 0x34, from, why };
            let (text, at) = (note.to_string(), from.map_or("", |_| " at 10.0.0.2"));
            assert!(text.starts_with("QP 0x000012: a ") && text.contains(&format!("of QP 0x000034{at} is")), "{text}");
            parts.iter().for_each(|part| assert!(text.contains(part), "{part} in {text}"));
            assert!(note.kind() < DropNote::KINDS);
        }
    }
}
