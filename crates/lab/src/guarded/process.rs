//! What the guards know of a process: its memory, what it asked for, what it waits for.

use super::bounce::Bounce;
use std::collections::VecDeque;
use weir_guard::Pages;
use weir_sim::{Done, Paging, Region, Simulation};
use weir_transport::{Instant, SendOp, Sge};

/// A send work request of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Post {
    pub wr_id: u64,
    /// A SEND, WRITE or READ.
    pub op: SendOp,
    /// It has a completion if it succeeds.
    pub signaled: bool,
    pub sge: Sge,
}

/// A request that is open, and where its data goes in the meantime.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub post: Post,
    pub bounced: Option<Bounced>,
}

/// A part of the pinned memory.
#[derive(Clone, Copy, Debug)]
pub struct Bounced {
    pub block: u64,
    /// Within the region.
    pub offset: u64,
}

/// A process. Its program has one thread: while that prefetches, it neither posts nor polls.
#[derive(Debug, Default)]
pub struct Process {
    pub regions: Vec<(Region, Paging)>,
    pub pages: Pages,
    pub bounce: Option<Bounce>,
    pub busy_until: Instant,
    /// Requests that the program has posted, by QP. The first may have been prefetched.
    pub posts: VecDeque<(usize, Post)>,
    pub prefetched: bool,
    /// Completions that the program has not polled.
    pub done: VecDeque<Done>,
}

impl Process {
    /// Whether it has ODP memory.
    pub fn pages_on_demand(&self) -> bool {
        self.regions.iter().any(|(_, paging)| *paging == Paging::OnDemand)
    }

    /// The region of an SGE, if it is ODP memory.
    pub fn on_demand(&self, sge: &Sge) -> Option<&Region> {
        let found = self.regions.iter().find(|(region, _)| region.key == sge.lkey)?;
        (found.1 == Paging::OnDemand).then_some(&found.0)
    }

    /// The pinned memory, registered when it is needed first.
    pub fn bounce(&mut self, sim: &mut Simulation) -> Option<&mut Bounce> {
        let host = self.regions.first()?.0.host;
        if self.bounce.is_none() {
            let contents = self.regions.iter().any(|(region, _)| !sim.bytes(region).is_empty());
            self.bounce = Some(Bounce::new(sim, host, contents));
        }
        self.bounce.as_mut()
    }

    /// A request is over: its data reaches the program's memory, if it went elsewhere and has succeeded.
    pub fn finish(&mut self, sim: &mut Simulation, work: &Work, success: bool) {
        let (Some(bounced), Some(bounce)) = (work.bounced, &mut self.bounce) else { return };
        let sge = &work.post.sge;
        if success && let Some((region, _)) = self.regions.iter().find(|(region, _)| region.key == sge.lkey) {
            let from = bounced.offset as usize;
            let data: Vec<u8> =
                sim.bytes(&bounce.region).iter().skip(from).take(sge.length as usize).copied().collect();
            let to = sim.bytes_mut(region).iter_mut().skip((sge.addr - region.addr) as usize);
            to.zip(data).for_each(|(to, byte)| *to = byte);
        }
        bounce.release(bounced.block);
    }
}
