//! What a flow did over time, in memory of fixed size.

use hdrhistogram::Histogram;

/// Counts of a flow, its timeline and the latencies of its requests.
#[derive(Debug, Default)]
pub struct Stats {
    pub packets: u64,
    /// Payload bytes, repeated ones included.
    pub bytes: u64,
    pub requests: u64,
    pub messages: u64,
    /// Request packets that are repetitions.
    pub repeats: u64,
    pub repeated_bytes: u64,
    /// Bytes that requests asked for or carried, counted once.
    pub goodput: u64,
    /// ACK packets (without NAKs).
    pub acks: u64,
    pub rnr_naks: u64,
    pub sequence_naks: u64,
    /// Packets that a switch marked.
    pub congested: u64,
    pub bad_icrc: u64,
    /// The most open request packets.
    pub most_outstanding: u32,
    /// Time of the first and of the last packet, ns since 1970.
    pub first: u64,
    pub last: u64,
    pub timeline: Timeline,
    /// From the last transmission of a request to its response, ns: near the median. 0: none was seen.
    pub response_time: u64,
    latencies: Option<Box<Histogram<u32>>>,
}

/// Equal intervals of time; when the flow lasts longer, two become one.
#[derive(Debug, Default)]
pub struct Timeline {
    start: u64,
    /// Length of an interval, ns.
    width: u64,
    intervals: Vec<Interval>,
}

/// What happened in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Payload bytes.
    pub bytes: u64,
    pub packets: u32,
    pub repeats: u32,
    /// The most open requests.
    pub outstanding: u32,
}

/// The most intervals of a timeline.
const INTERVALS: usize = 128;
/// Length of an interval at first, ns.
const FIRST_WIDTH: u64 = 1 << 14;

impl Stats {
    /// Counts the time from the first transmission of a message to its completion, ns.
    pub fn latency(&mut self, nanoseconds: u64) {
        let histogram = self.latencies.get_or_insert_with(|| {
            Box::new(Histogram::new(2).expect("two digits are a valid precision")) // grows as needed
        });
        // It cannot fail: the histogram grows.
        let _ = histogram.record(nanoseconds.max(1));
    }

    /// A response came so long after the last transmission of its request.
    pub fn responded(&mut self, nanoseconds: u64) {
        // A step towards each value leads to the median, whatever the outliers are.
        let step = self.response_time / 16 + 1;
        self.response_time = match self.response_time {
            0 => nanoseconds.max(1),
            median if nanoseconds > median => nanoseconds.min(median + step),
            median => nanoseconds.max(median - step),
        };
    }

    /// The latency that the share `quantile` of the messages does not exceed, ns; `None` without completed messages.
    pub fn latency_at(&self, quantile: f64) -> Option<u64> {
        self.latencies.as_ref().map(|histogram| histogram.value_at_quantile(quantile))
    }
}

impl Timeline {
    /// The interval of a time.
    pub fn at(&mut self, time: u64) -> &mut Interval {
        if self.width == 0 {
            (self.start, self.width) = (time, FIRST_WIDTH);
        }
        let mut at = (time.saturating_sub(self.start) / self.width) as usize;
        while at >= INTERVALS {
            self.halve();
            at = (time.saturating_sub(self.start) / self.width) as usize;
        }
        if at >= self.intervals.len() {
            self.intervals.resize(at + 1, Interval::default());
        }
        &mut self.intervals[at]
    }

    /// The start, ns since 1970, the length of each interval, ns, and the intervals.
    pub fn parts(&self) -> (u64, u64, &[Interval]) {
        (self.start, self.width, &self.intervals)
    }

    fn halve(&mut self) {
        self.width *= 2;
        for at in 0..self.intervals.len().div_ceil(2) {
            let mut both = self.intervals[2 * at];
            if let Some(other) = self.intervals.get(2 * at + 1) {
                both.bytes += other.bytes;
                both.packets += other.packets;
                both.repeats += other.repeats;
                both.outstanding = both.outstanding.max(other.outstanding);
            }
            self.intervals[at] = both;
        }
        self.intervals.truncate(self.intervals.len().div_ceil(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_keeps_its_sums_when_it_grows() {
        let mut timeline = Timeline::default();
        for n in 0..10_000u64 {
            let interval = timeline.at(5_000_000 + n * n * 1000);
            interval.bytes += n;
            interval.packets += 1;
            interval.outstanding = interval.outstanding.max(n as u32);
        }
        let (start, width, intervals) = timeline.parts();
        assert_eq!(start, 5_000_000);
        assert!(intervals.len() <= INTERVALS && width * intervals.len() as u64 > 9_999 * 9_999 * 1000);
        assert_eq!(intervals.iter().map(|interval| interval.bytes).sum::<u64>(), 9_999 * 10_000 / 2);
        assert_eq!(intervals.iter().map(|interval| interval.packets).sum::<u32>(), 10_000);
        assert_eq!(intervals.iter().map(|interval| interval.outstanding).max(), Some(9_999));
    }

    #[test]
    fn outliers_do_not_move_the_response_time_far() {
        let mut stats = Stats::default();
        (0..1000).for_each(|n| stats.responded(if n % 10 == 0 { 500_000_000 } else { 3000 + n }));
        assert!((3000..5000).contains(&stats.response_time), "{}", stats.response_time);
    }

    #[test]
    fn latencies_have_percentiles() {
        let mut stats = Stats::default();
        assert_eq!(stats.latency_at(0.5), None);
        (1..=1000).for_each(|n| stats.latency(n * 1000));
        let [median, high] = [0.5, 0.99].map(|quantile| stats.latency_at(quantile).unwrap());
        assert!((495_000..=506_000).contains(&median) && (980_000..=1_000_000).contains(&high), "{median} {high}");
    }
}
