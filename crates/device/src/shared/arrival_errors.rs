//! Log messages about packets that reach a QP changed, from another address, or by the wrong port: what came, why that
//! may be, and what to do. Each kind is reported once a minute. The engine's thread writes the log, so that a slow
//! terminal delays no program.

use crate::shared::note_log::NoteLog;
use std::net::{IpAddr, SocketAddr};
use weir_transport::Instant;
use weir_wire::ROCE_PORT;

/// Arrivals that wait for the log.
#[derive(Default)]
pub struct ArrivalErrorLog(NoteLog<ArrivalError, KINDS>);

/// A packet that was dropped, or that came by a way that it should not need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrivalError {
    pub kind: ArrivalErrorKind,
    /// The QP that it was for.
    pub qp: u32,
    pub from: SocketAddr,
    pub to_port: u16,
    /// The address of the QP's peer; that of the sender for datagrams.
    pub peer: IpAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivalErrorKind {
    /// The sender's address is not that of the QP's peer.
    Translated,
    /// The ICRC is wrong.
    Changed,
    /// A Weir process sends to port 4791, because no hello passes between the ports of the slots.
    NoHello,
}

const KINDS: usize = 3;

impl ArrivalErrorLog {
    /// Keeps an error for the log. Allocates nothing. False: one of its kind was kept a short time ago.
    pub fn note(&self, error: ArrivalError, now: Instant) -> bool {
        self.0.note(error.kind as usize, error, now)
    }

    /// Writes the noted errors to the log.
    pub fn write_log(&self, device: &str) {
        for error in self.0.take() {
            tracing::warn!("{}", text(&error, device));
        }
    }
}

#[cfg(test)]
impl ArrivalErrorLog {
    /// What waits for the log.
    pub fn noted(&self) -> Vec<ArrivalError> {
        self.0.noted()
    }
}

fn text(error: &ArrivalError, device: &str) -> String {
    let ArrivalError { kind, qp, from, to_port, peer } = error;
    let port = from.port();
    match kind {
        ArrivalErrorKind::Translated => format!(
            "{device}, QP {qp:#08x}: packets for it come from {from}, and are dropped, because its peer is at {peer}. \
             An address translation (NAT) is on the way, or another host sends in its name. RoCE cannot pass NAT, \
             because its ICRC covers the addresses: let the hosts reach each other by their own addresses, or by a \
             tunnel (WireGuard, VXLAN)"
        ),
        ArrivalErrorKind::Changed => format!(
            "{device}, QP {qp:#08x}: packets from {from} to port {to_port} have a wrong ICRC, and are dropped. \
             Something on the way changes them: a translation of ports or addresses (NAT), a load balancer, or a \
             damaged link. Let the hosts reach each other without it, or by a tunnel (WireGuard, VXLAN)"
        ),
        ArrivalErrorKind::NoHello => format!(
            "{device}, QP {qp:#08x}: its peer at {peer} is a Weir process, but its hellos from UDP port {port} do not \
             come: a firewall drops them. Packets go by port {ROCE_PORT}, which is slower. Open UDP ports 20480 to \
             21503, both ways"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(kind: ArrivalErrorKind) -> ArrivalError {
        let (from, peer) = ("10.9.8.7:20490".parse().unwrap(), "192.168.1.2".parse().unwrap());
        ArrivalError { kind, qp: 0x12, from, to_port: 20481, peer }
    }

    #[test]
    fn each_message_names_device_qp_and_remedy() {
        use ArrivalErrorKind::*;
        for (kind, parts) in [
            (Translated, ["from 10.9.8.7:20490", "peer is at 192.168.1.2", "tunnel"]),
            (Changed, ["from 10.9.8.7:20490", "wrong ICRC", "tunnel"]),
            (NoHello, ["from UDP port 20490", "peer at 192.168.1.2", "Open UDP ports"]),
        ] {
            let text = text(&error(kind), "weir_eth0");
            assert!(text.starts_with("weir_eth0, QP 0x000012: "), "{text}");
            parts.iter().for_each(|part| assert!(text.contains(part), "{part} in {text}"));
        }
    }
}
