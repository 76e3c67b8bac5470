//! Latency, bandwidth, put and get between two processes, as the OSU micro-benchmarks measure them.

use super::script::{Op, Script};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// Ping-pong of blocking sends and receives.
    Latency,
    /// 64 sends, and an answer when all have come.
    Bandwidth,
    /// Lock, put, unlock.
    Put,
    /// Lock, get, unlock.
    Get,
}

/// Sends of one round of [`Test::Bandwidth`].
pub const WINDOW: u64 = 64;

/// Scripts of both processes. The buffers have a page of their own each, and are `largest` bytes long.
pub fn scripts(test: Test, len: u64, largest: u64, times: u32) -> Vec<Script> {
    let mut pair = [Script::default(), Script::default()];
    for script in &mut pair {
        script.times = times;
        script.buffers = vec![largest, largest, 64];
    }
    let [first, second] = &mut pair;
    let (sent, received, small) = (0, 1, 2);
    first.body.push(Op::Mark);
    match test {
        Test::Latency => {
            first.send(1, 0, sent, len);
            first.receive(1, 0, received, len);
            second.receive(0, 0, received, len);
            second.send(0, 0, sent, len);
        }
        Test::Bandwidth => {
            let isend = Op::Isend { to: 1, tag: 0, buffer: sent, len, req: 0 };
            let irecv = Op::Irecv { from: 0, tag: 0, buffer: received, len, req: 0 };
            first.body.extend((0..WINDOW).map(|_| isend).chain([Op::WaitAll]));
            second.body.extend((0..WINDOW).map(|_| irecv).chain([Op::WaitAll]));
            first.receive(1, 1, small, 4);
            second.send(0, 1, small, 4);
        }
        Test::Put => {
            first.body.extend([Op::Lock(1), Op::Put { to: 1, buffer: sent, at: 0, len }, Op::Unlock(1)]);
            second.window = Some(received);
        }
        Test::Get => {
            first.body.extend([Op::Lock(1), Op::Get { from: 1, buffer: sent, at: 0, len }, Op::Unlock(1)]);
            second.window = Some(received);
        }
    }
    first.last.push(Op::Mark);
    if second.body.is_empty() {
        second.times = 0;
    }
    pair.into()
}
