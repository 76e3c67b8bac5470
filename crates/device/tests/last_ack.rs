//! A program that has seen its last message may end the connection at once: the ACK of that message leaves first.

mod common;

use common::{End, open, pair};
use weir_transport::{AttrMask, Data, QpAttr, QpState, RecvWr, SendFlags, SendOp, SendWr, Status};

/// Replies in a row from which on an ACK waits for the next reply.
const REPLIES: u64 = 12;

#[test]
fn the_ack_of_the_last_message_leaves_before_the_qp_ends() {
    let context = open();
    let pd = context.alloc_pd().unwrap();
    for last in [QpState::Error, QpState::Reset] {
        for round in 0..20 {
            let [a, b] = pair(&pd, &context);
            for end in [&a, &b] {
                (0..=REPLIES).for_each(|id| end.qp.post_recv(&RecvWr { wr_id: id, sges: &[] }).unwrap());
            }
            for message in 0..REPLIES {
                send(&a, message);
                see(&b, 1);
                send(&b, message);
                see(&a, 2);
                see(&b, 1);
            }
            send(&a, REPLIES);
            see(&b, 1);
            b.qp.modify(&QpAttr { qp_state: last, ..QpAttr::default() }, AttrMask::STATE).unwrap();
            assert_eq!(see(&a, 1), Status::Success, "round {round}, to {last:?}");
        }
    }
}

fn send(end: &End, wr_id: u64) {
    let wr = SendWr { wr_id, op: SendOp::Send, flags: SendFlags::SIGNALED, data: Data::Inline(&[]) };
    end.qp.post_send(&wr).unwrap();
    end.qp.doorbell();
}

/// Polls until `count` completions have come. Returns the status of the last.
fn see(end: &End, count: u32) -> Status {
    let (mut seen, mut status) = (0, Status::Success);
    while seen < count {
        end.cq
            .poll(1, |completion| {
                seen += 1;
                status = completion.status;
            })
            .unwrap();
    }
    status
}
