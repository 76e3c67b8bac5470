//! The packets around an event, for the drawing of a packet ladder.

use super::event::Cause;
use crate::packet::{FrameId, Seen};
use std::collections::VecDeque;

/// Packets in a row, with the direction of each.
#[derive(Clone, Debug, Default)]
pub struct Clip {
    /// Why it was kept.
    pub cause: Option<Cause>,
    /// The frame of the event.
    pub frame: FrameId,
    /// How long the requester waited, ns.
    pub waited: u64,
    /// Whether the half's requester sent it.
    pub packets: Vec<(Seen, bool)>,
}

/// The last packets of a half, and the clips that were kept: for each cause the first and the longest wait.
#[derive(Debug, Default)]
pub struct Clips {
    recent: VecDeque<(Seen, bool)>,
    kept: Vec<Clip>,
    /// Clips that take more packets: their places, and how many.
    growing: Vec<(usize, usize)>,
}

/// Packets before an event, and after it.
const BEFORE: usize = 14;
const AFTER: usize = 6;
/// Clips of a half.
const KEPT: usize = 8;

impl Clips {
    /// Takes a packet, after the events of it.
    pub fn packet(&mut self, packet: &Seen, from_requester: bool) {
        if self.recent.len() == BEFORE {
            self.recent.pop_front();
        }
        self.recent.push_back((*packet, from_requester));
        for (clip, more) in &mut self.growing {
            self.kept[*clip].packets.push((*packet, from_requester));
            *more -= 1;
        }
        self.growing.retain(|(_, more)| *more > 0);
    }

    /// An event with surroundings of interest. Its packet is not among the recent ones yet.
    pub fn event(&mut self, cause: Cause, frame: FrameId, waited: u64) {
        let kind = std::mem::discriminant(&cause);
        let same = |clip: &Clip| clip.cause.map(|cause| std::mem::discriminant(&cause)) == Some(kind);
        let mut places = self.kept.iter().enumerate().filter(|(_, clip)| same(clip)).map(|(at, _)| at);
        let (first, longest) = (places.next(), places.next());
        let clip = Clip { cause: Some(cause), frame, waited, packets: self.recent.iter().copied().collect() };
        let at = match (first, longest) {
            (Some(_), Some(longest)) if self.kept[longest].waited < waited => {
                self.kept[longest] = clip;
                longest
            }
            (Some(_), Some(_)) => return,
            _ if self.kept.len() == KEPT => return,
            _ => {
                self.kept.push(clip);
                self.kept.len() - 1
            }
        };
        self.growing.retain(|(place, _)| *place != at);
        self.growing.push((at, AFTER));
    }

    /// The clip that has one of these frames, of those the one with the longest wait.
    pub fn of(&self, frames: &[FrameId]) -> Option<&Clip> {
        let has = |clip: &&Clip| frames.contains(&clip.frame);
        self.kept.iter().filter(has).max_by_key(|clip| clip.waited)
    }
}
