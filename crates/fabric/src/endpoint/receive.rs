//! Receives of both kinds: posting, looking for messages, claiming and discarding them.

use crate::endpoint::call::Call;
use std::ffi::c_void;
use weir_fabric_abi::*;
use weir_msg::{Buffer, Event, Kind, Pattern, ReceiveCall};

/// What a program gives with a receive.
pub struct Wanted {
    pub buffer: Buffer,
    pub from: fi_addr_t,
    /// The tag, and the bits of it that do not matter; `None`: messages without a tag.
    pub tag: Option<(u64, u64)>,
    pub context: *mut c_void,
}

/// Posts a receive, or looks for a message (FI_PEEK, FI_CLAIM, FI_DISCARD).
pub fn receive(call: &mut Call<'_>, wanted: &Wanted, flags: u64) -> Result<(), i32> {
    let (tag, ignore) = wanted.tag.unwrap_or((0, u64::MAX));
    let pattern = Pattern { tag, ignore, from: call.source(wanted.from)? };
    let multi = (flags & FI_MULTI_RECV != 0).then(|| call.min_multi_recv());
    let receive = ReceiveCall {
        tagged: wanted.tag.is_some(),
        pattern,
        buffer: wanted.buffer,
        multi,
        context: wanted.context as u64,
        report: call.reports_receive(flags),
    };
    if flags & FI_PEEK != 0 {
        peek(call, &receive, flags);
        return Ok(());
    }
    let (protocol, port, now) = call.engine().parts();
    match (flags & FI_CLAIM != 0, flags & FI_DISCARD != 0) {
        (true, discards) => {
            let found = if discards {
                protocol.discard(port, now, &receive, true)
            } else {
                protocol.receive_claimed(port, now, &receive)
            };
            if found { Ok(()) } else { Err(FI_ENOMSG) }
        }
        (false, true) => Err(FI_EBADFLAGS),
        (false, false) => {
            protocol.receive(port, now, &receive);
            Ok(())
        }
    }
}

/// Looks for a message. The completion says what there is, or FI_ENOMSG.
fn peek(call: &mut Call<'_>, receive: &ReceiveCall, flags: u64) {
    let engine = call.engine();
    // A message may have arrived that nothing has looked at.
    engine.progress();
    let (protocol, port, now) = engine.parts();
    if flags & FI_DISCARD != 0 {
        // The program waits for the answer, whatever it wants to hear of receives.
        if protocol.discard(port, now, &ReceiveCall { report: true, ..*receive }, false) {
            return;
        }
    } else {
        let claim = (flags & FI_CLAIM != 0).then_some(receive.context);
        if let Some(found) = protocol.peek(receive.tagged, &receive.pattern, claim) {
            let event = Event {
                context: receive.context,
                kind: Kind::Receive { tagged: receive.tagged },
                reported: true,
                len: found.len,
                tag: found.envelope.tag,
                data: found.envelope.data,
                from: Some(found.from),
                addr: 0,
                released: false,
                result: Ok(()),
            };
            call.report(&event);
            return;
        }
    }
    call.report_no_message(receive.context, receive.tagged);
}
