//! The responder of raw QPs: each Ethernet frame is a message.

use super::page_fault::Stop;
use super::{Fatal, Responder};
use crate::completion::vendor;
use crate::config::Config;
use crate::recv_queue::{Received, RecvQueue};
use crate::{Host, Status, WcOpcode};

impl Responder {
    /// Handles an Ethernet frame. Without a receive work request it is dropped. A frame that is longer than its receive
    /// completes the receive with a local length error (IBTA 9.9.3.1, class E). A frame that meets a missing page is lost,
    /// as on a wire; the receive stays for the next frame.
    pub fn handle_ethernet<H: Host>(
        &mut self,
        frame: &[u8],
        config: &Config,
        queue: &mut RecvQueue,
        host: &mut H,
    ) -> Result<(), Fatal> {
        self.established = true;
        if !queue.ready(host) {
            return Ok(());
        }
        if frame.len() as u64 > queue.room() {
            queue.fail(host, config, Status::LocalLength, vendor::TOO_LONG);
            return Ok(());
        }
        match host.scatter(queue.sges(), 0, frame).map_err(Stop::receiving) {
            Ok(()) => {}
            Err(Stop::Fatal(fatal)) => return Err(fatal),
            Err(_) => return Ok(()),
        }
        let received = Received {
            opcode: WcOpcode::Recv,
            byte_len: frame.len() as u32,
            imm: None,
            invalidated_rkey: None,
            solicited: false,
            from: None,
        };
        queue.complete(host, config, received);
        Ok(())
    }
}
