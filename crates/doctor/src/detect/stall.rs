//! Which requests took much longer than such requests take.

use crate::expect::FLOOR;
use crate::layout::{SIZES, TIMES, size_class};
use crate::trace::{Request, Trace};
use crate::verbs;

/// How many times longer than usual a stalled request takes.
const TIMES_LONGER: u64 = 8;
/// With fewer requests a histogram tells nothing.
const ENOUGH: u64 = 16;

/// A request that stalled, or failed.
#[derive(Clone, Copy, Debug)]
pub struct Stall {
    pub request: Request,
    /// For how long it was certainly served, ns.
    pub late: u64,
    /// What such a request usually takes, ns.
    pub usual: u64,
}

impl Stall {
    /// How much longer it took than usual, ns.
    pub fn cost(&self) -> u64 {
        self.late.saturating_sub(self.usual)
    }

    pub fn succeeded(&self) -> bool {
        self.request.status == verbs::SUCCESS && !self.request.open
    }
}

/// The stalls of RC requests, in order of their completion.
pub fn stalls(trace: &Trace) -> Vec<Stall> {
    let usual: Vec<u64> = (0..SIZES).map(|class| quarter(trace, class)).collect();
    let stall = |request: &Request| {
        let most = 100_000 + 16 * u64::from(request.bytes);
        let usual = match usual[size_class(request.bytes)] {
            0 => 20_000 + u64::from(request.bytes),
            time => time,
        };
        Stall { request: *request, late: request.late(), usual: usual.min(most) }
    };
    let is_stall = |stall: &Stall| {
        let failed = !matches!(stall.request.status, verbs::SUCCESS);
        trace.qps[stall.request.qp].service == verbs::RC
            && (failed || stall.late >= FLOOR.max(TIMES_LONGER * stall.usual))
    };
    trace.requests.iter().map(stall).filter(is_stall).collect()
}

/// The time within which a quarter of all requests of a class of sizes was served; 0 if there were too few.
fn quarter(trace: &Trace, class: usize) -> u64 {
    let mut counts = [0u64; TIMES];
    for qp in &trace.qps {
        counts.iter_mut().zip(qp.served[class]).for_each(|(sum, count)| *sum += u64::from(count));
    }
    let all: u64 = counts.iter().sum();
    if all < ENOUGH {
        return 0;
    }
    let mut seen = 0;
    let class = counts.iter().position(|count| {
        seen += count;
        4 * seen >= all
    });
    class.map_or(0, |class| 2 << class)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Qp;

    fn trace(late: u64, bytes: u32) -> Trace {
        let request = Request { done: late, missing: late, bytes, ..Request::default() };
        let qp = Qp { service: verbs::RC, ..Qp::default() };
        Trace { qps: vec![qp], requests: vec![request], ..Trace::default() }
    }

    #[test]
    fn without_experience_the_size_decides() {
        assert_eq!(stalls(&trace(140_000, 8)).len(), 0);
        assert_eq!(stalls(&trace(300_000, 8)).len(), 1);
        assert_eq!(stalls(&trace(5_000_000, 1 << 20)).len(), 0);
        assert_eq!(stalls(&trace(50_000_000, 1 << 20)).len(), 1);
    }

    #[test]
    fn what_other_requests_take_is_usual() {
        let mut busy = trace(50_000_000, 1 << 20);
        busy.qps[0].served[size_class(1 << 20)][23] = 1000;
        assert_eq!(stalls(&busy).len(), 0, "requests of this program take 16 ms");
        busy.requests[0].status = verbs::RETRY_EXCEEDED;
        assert_eq!(stalls(&busy).len(), 1, "errors always count");
        busy.qps[0].service = 4;
        assert_eq!(stalls(&busy).len(), 0, "UD has no acknowledgements");
    }

    #[test]
    fn a_quarter_of_all_requests_tells_what_is_usual() {
        let mut slow = trace(2_000_000, 8);
        slow.qps[0].served[size_class(8)][11] = 30;
        slow.qps[0].served[size_class(8)][20] = 70;
        assert_eq!(stalls(&slow)[0].usual, 4096);
        assert_eq!(stalls(&slow)[0].cost(), 1_995_904);
    }
}
