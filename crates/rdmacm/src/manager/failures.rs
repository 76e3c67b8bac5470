//! What the log says of connections that fail: which connection, why, and what to do.

use super::Manager;
use crate::abi::event;
use crate::manager::id::Id;
use std::net::SocketAddr;
use weir_device::Errno;
use weir_wire::ROCE_PORT;

/// Reasons of a REJ (IBTA table 114): no program listens; the program has rejected the request.
const INVALID_SERVICE: i32 = 8;
const BY_PROGRAM: i32 = 28;

impl Manager {
    /// An event says that an id cannot be connected.
    #[cold]
    pub(super) fn note_failure(&mut self, number: u32, kind: u32, status: i32) {
        let Some(id) = self.ids.get(number) else { return };
        if let Some(text) = text(id, kind, status) {
            self.host.warn(&text);
        }
    }

    /// An address cannot be bound. Returns the error.
    #[cold]
    pub(super) fn note_unbound(&mut self, address: SocketAddr, error: Errno) -> Errno {
        let why = match error.0 {
            libc::EADDRINUSE => {
                "another rdma_cm_id has this port, of this process or of another one on this host: end \
                                 it, or bind another port"
            }
            libc::EADDRNOTAVAIL => {
                "no device has this address, or no port is free: see `weir devices`; a server binds \
                                    0.0.0.0 or [::] for all devices"
            }
            libc::EACCES => "the port is below 1024, for which CAP_NET_BIND_SERVICE is needed: bind a higher one",
            _ => return error,
        };
        self.host.warn(&format!("rdma_bind_addr to {address}: {why}"));
        error
    }
}

fn text(id: &Id, kind: u32, status: i32) -> Option<String> {
    let device = id.attached.as_ref().map_or("no device", |attached| attached.device.name.as_str());
    let (local, remote) = (id.local?, id.remote?);
    let connection = format!("{device}: the connection from {local} to {remote}");
    let port = remote.port();
    Some(match (kind, status) {
        (event::REJECTED, INVALID_SERVICE) => format!(
            "{connection} is rejected: no program there listens on port {port}, or one for another port space or kind of \
             QP. Start the server first, and use the same port and port space on both sides"
        ),
        (event::REJECTED, BY_PROGRAM) => {
            format!("{connection} is rejected by the program there (rdma_reject): see its log")
        }
        (event::REJECTED, reason) => format!("{connection} is rejected, reason {reason} (IBTA table 114)"),
        (event::UNREACHABLE, reason) if reason < 0 => format!(
            "{connection} gets no answer. Check that a program with an RDMA device runs at {}, and that UDP port {ROCE_PORT} \
             is open both ways",
            remote.ip()
        ),
        (event::UNREACHABLE, status) => format!("{connection} is refused by the service there, status {status}"),
        (event::ADDR_ERROR, _) => format!(
            "the system sends to {remote} by an interface that has no device. See `weir devices`; WEIR_INTERFACE and \
             WEIR_LINKS choose devices"
        ),
        _ => return None,
    })
}
