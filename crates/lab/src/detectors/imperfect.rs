//! Captures as they are in practice: they begin in the middle, lack packets, have late time stamps, or cut packets.

use super::draw::Draw;
use weir_capture::OwnedFrame;

/// What is wrong with a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// It begins after so many percent of the frames.
    Middle(u64),
    /// It lacks this share of the frames, in thousandths.
    Drops(u64),
    /// Time stamps are those of a poll, which comes after so many µs (ibdump).
    Polled(u64),
    /// Frames are cut after so many bytes.
    Snapped(usize),
}

impl Flaw {
    pub fn draw(draw: &mut Draw) -> Flaw {
        match draw.between(0, 3) {
            0 => Flaw::Middle(draw.between(5, 70)),
            1 => Flaw::Drops(draw.log(2, 30)),
            2 => Flaw::Polled(draw.log(10, 150)),
            _ => Flaw::Snapped(draw.one_of(&[74, 96, 128])),
        }
    }

    /// The frames that the flawed capture has.
    pub fn apply(self, frames: Vec<OwnedFrame>, draw: &mut Draw) -> Vec<OwnedFrame> {
        let all = frames.len() as u64;
        let keeps = |frame: &OwnedFrame, draw: &mut Draw| match self {
            Flaw::Middle(percent) => frame.number > all * percent / 100,
            Flaw::Drops(thousandths) => !draw.chance(thousandths as f64 / 1000.0),
            _ => true,
        };
        let mut last = 0;
        let mut change = |mut frame: OwnedFrame| {
            match self {
                Flaw::Polled(micros) => {
                    // Frames of a poll follow each other by some 100 ns.
                    let poll = frame.timestamp.next_multiple_of(micros * 1000);
                    frame.timestamp = poll.max(last + 100);
                    last = frame.timestamp;
                }
                Flaw::Snapped(bytes) => frame.data.truncate(bytes),
                _ => {}
            }
            frame
        };
        frames.into_iter().filter(|frame| keeps(frame, draw)).map(&mut change).collect()
    }
}
