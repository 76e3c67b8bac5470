//! One CPU of a host: a piece of work at a time, which interrupts delay.

use crate::edge::found::Cpu;
use std::time::Duration;
use weir_transport::Instant;

/// A CPU. `J` is what happens when a piece of work is done.
#[derive(Debug)]
pub struct Core<J> {
    work: Option<(Instant, J)>,
    /// When the interrupt ends that runs.
    interrupt: Option<Instant>,
    /// Work begins no earlier.
    free: Instant,
    /// Time spent so far, ns.
    pub spent: Cpu,
}

impl<J> Default for Core<J> {
    fn default() -> Core<J> {
        Core { work: None, interrupt: None, free: Instant(0), spent: Cpu::default() }
    }
}

/// A time of so many ns.
pub fn time(ns: f64) -> Duration {
    Duration::from_nanos(ns.round() as u64)
}

impl<J> Core<J> {
    /// Whether it takes work.
    pub fn is_free(&self, now: Instant) -> bool {
        self.work.is_none() && self.interrupt.is_none() && self.free <= now
    }

    /// Begins a piece of work that takes these times, ns.
    pub fn begin(&mut self, now: Instant, takes: Cpu, job: J) {
        self.spent = self.spent + takes;
        self.work = Some((now + time(takes.total()), job));
    }

    /// An interrupt begins, whatever runs.
    pub fn interrupt(&mut self, now: Instant, takes: Cpu) {
        let from = now.max(self.free);
        self.interrupt = Some(from + time(takes.total()));
        self.delay(now, takes);
    }

    /// Whatever runs, or runs next, is later by so much.
    pub fn delay(&mut self, now: Instant, takes: Cpu) {
        self.spent = self.spent + takes;
        let more = time(takes.total());
        if let Some((end, _)) = &mut self.work {
            *end = *end + more;
        }
        self.free = now.max(self.free) + more;
    }

    /// Whether an interrupt has ended.
    pub fn interrupt_ended(&mut self, now: Instant) -> bool {
        self.interrupt.take_if(|end| *end <= now).is_some()
    }

    /// The piece of work that has ended.
    pub fn ended(&mut self, now: Instant) -> Option<J> {
        self.work.take_if(|(end, _)| *end <= now).map(|(_, job)| job)
    }

    /// When something ends next.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        let work = self.work.as_ref().map(|(end, _)| *end);
        let free = Some(self.free).filter(|free| *free > now);
        work.into_iter().chain(self.interrupt).chain(free).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_delays_what_runs() {
        let mut core = Core::default();
        let takes = |ns: f64| Cpu { packet: ns, ..Cpu::default() };
        core.begin(Instant(0), takes(100.0), 'a');
        core.interrupt(Instant(50), takes(30.0));
        assert!(!core.interrupt_ended(Instant(79)) && core.interrupt_ended(Instant(80)));
        assert_eq!((core.ended(Instant(129)), core.ended(Instant(130))), (None, Some('a')));
        assert!(core.is_free(Instant(130)));
        assert_eq!(core.spent.total(), 130.0);
    }
}
