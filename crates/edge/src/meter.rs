//! Where CPU time goes, as thesis 3.1 divides it: measured by clocks, if that is wanted.

use crate::clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

/// What a thread does for a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Looks for packets, and finds none; goes to sleep and wakes.
    Poll,
    SendCopy,
    ReceiveCopy,
    Packet,
    Device,
}

const PARTS: usize = 5;

/// Time of threads, by what they did for a node. All 0 unless `Options::measure` is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Times {
    /// Looking for packets in vain, going to sleep, and waking.
    pub poll: Duration,
    /// Copying the bytes of packets that leave, or looking whether they are there.
    pub send_copy: Duration,
    /// Copying the bytes of packets that have come to their place.
    pub receive_copy: Duration,
    /// The protocol.
    pub packet: Duration,
    /// System calls that send, or receive something. The kernel copies in them, too.
    pub device: Duration,
}

/// Measures one node. Only the thread that has its lock uses it.
#[derive(Clone, Debug)]
pub struct Meter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    enabled: bool,
    /// The number of the part, or [`NONE`].
    current: AtomicU8,
    since: AtomicU64,
    times: [AtomicU64; PARTS],
}

const NONE: u8 = u8::MAX;

impl Meter {
    /// One that measures only if `enabled`.
    pub fn new(enabled: bool) -> Meter {
        let (current, since) = (AtomicU8::new(NONE), AtomicU64::new(0));
        Meter(Arc::new(Inner { enabled, current, since, times: [const { AtomicU64::new(0) }; PARTS] }))
    }

    /// Whether it measures.
    pub fn is_enabled(&self) -> bool {
        self.0.enabled
    }

    /// The time until the end of the value that is returned is for this part.
    pub fn during(&self, part: Part) -> During<'_> {
        During { meter: self, before: self.enter(part as u8) }
    }

    /// Time was spent on a part elsewhere.
    pub fn add(&self, part: Part, nanoseconds: u64) {
        self.0.times[part as usize].fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// What has been measured.
    pub fn times(&self) -> Times {
        let time = |part: Part| Duration::from_nanos(self.0.times[part as usize].load(Ordering::Relaxed));
        Times {
            poll: time(Part::Poll),
            send_copy: time(Part::SendCopy),
            receive_copy: time(Part::ReceiveCopy),
            packet: time(Part::Packet),
            device: time(Part::Device),
        }
    }

    fn enter(&self, part: u8) -> u8 {
        let Inner { enabled, current, since, times } = &*self.0;
        if !enabled {
            return NONE;
        }
        let (now, before) = (clock::now().0, current.load(Ordering::Relaxed));
        current.store(part, Ordering::Relaxed);
        if let Some(time) = times.get(usize::from(before)) {
            time.fetch_add(now - since.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        since.store(now, Ordering::Relaxed);
        before
    }
}

/// A part is under way.
pub struct During<'a> {
    meter: &'a Meter,
    before: u8,
}

impl During<'_> {
    /// It is another part, as it turns out.
    pub fn is_for(&self, part: Part) {
        if self.meter.0.enabled {
            self.meter.0.current.store(part as u8, Ordering::Relaxed);
        }
    }
}

impl Drop for During<'_> {
    fn drop(&mut self) {
        self.meter.enter(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_for_the_innermost_part() {
        let meter = Meter::new(true);
        let sleep = || std::thread::sleep(Duration::from_millis(2));
        {
            let _packet = meter.during(Part::Packet);
            sleep();
            {
                let _copy = meter.during(Part::SendCopy);
                sleep();
            }
            let call = meter.during(Part::Device);
            sleep();
            call.is_for(Part::Poll);
        }
        sleep();
        let times = meter.times();
        let slept = |time: Duration| time >= Duration::from_millis(2);
        assert!(slept(times.packet) && slept(times.send_copy) && slept(times.poll), "{times:?}");
        assert_eq!((times.device, times.receive_copy), (Duration::ZERO, Duration::ZERO));
        let before = Meter::new(false);
        drop(before.during(Part::Packet));
        assert_eq!(before.times(), Times::default());
    }
}
