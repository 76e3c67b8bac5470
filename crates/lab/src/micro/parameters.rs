//! Checks of parameters, and addresses of operations.

use super::{Micro, Operation, Sides, Workaround};
use anyhow::{Result, ensure};
use std::time::Duration;

/// Limit of the bytes of all operations together.
pub const MAX_BYTES: u64 = 1 << 30;
/// Limits of the QPs and operations of a run.
const MAX_QPS: u32 = 16384;
const MAX_OPS: u32 = 1 << 20;
const PAGE: u64 = 4096;

impl Micro {
    /// The kind of operation i.
    pub fn kind(&self, operation: u32) -> Operation {
        self.second.filter(|_| operation > 0).unwrap_or(self.operation)
    }

    /// The QP of operation i.
    pub fn qp(&self, operation: u32) -> u32 {
        operation % self.num_qps
    }

    /// The offset of operation i in either buffer.
    pub fn offset(&self, operation: u32) -> u64 {
        u64::from(self.size) * u64::from(operation)
    }

    /// Bytes of either buffer, whole pages.
    pub fn bytes(&self) -> u64 {
        self.offset(self.num_ops).next_multiple_of(PAGE)
    }

    /// Invalidations of a side with ODP memory after the run.
    pub fn invalidations(&self) -> u64 {
        let pages = self.bytes() / PAGE;
        if self.invalidate == 0 { 0 } else { pages.div_ceil(self.invalidate.into()) }
    }

    /// The page in which operation i begins.
    pub fn page(&self, operation: u32) -> u64 {
        self.offset(operation) / PAGE
    }

    /// Checks the parameters. An error names the wrong parameter and its limits.
    pub fn check(&self) -> Result<()> {
        ensure!(self.size > 0, "operations of no bytes access no page: use a size of at least 1");
        ensure!((1..=MAX_OPS).contains(&self.num_ops), "{} operations: use 1 to {MAX_OPS}", self.num_ops);
        ensure!((1..=MAX_QPS).contains(&self.num_qps), "{} QPs: use 1 to {MAX_QPS}", self.num_qps);
        ensure!(self.bytes() <= MAX_BYTES, "{} operations of {} bytes are more than 1 GiB", self.num_ops, self.size);
        for (what, value, most) in [
            ("an RNR timer", self.rnr_timer, 31),
            ("an ACK timeout", self.ack_timeout, 31),
            ("a retry count", self.retry_cnt, 7),
        ] {
            ensure!(value <= most, "{what} of {value}: use 0 to {most}");
        }
        let reads = self.operation == Operation::Read || self.second == Some(Operation::Read);
        ensure!(!reads || self.max_rd_atomic > 0, "READs need a max_rd_atomic of at least 1");
        ensure!(self.max_rd_atomic <= 128, "a max_rd_atomic of {}: use at most 128", self.max_rd_atomic);
        let apart = match self.workaround {
            Some(Workaround::Dummy { every }) => every,
            Some(Workaround::Again { after }) => after,
            None => Duration::MAX,
        };
        ensure!(
            apart >= Duration::from_micros(10),
            "a workaround every {apart:?} leaves no time for operations: use at least 10 µs"
        );
        ensure!(self.invalidate == 0 || self.odp != Sides::default(), "no ODP memory to invalidate: use it on a side");
        ensure!(!self.wrong_peer || self.ack_timeout > 0, "with an ACK timeout of 0 a QP never fails: use at least 1");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::{Outcome, Wakeup};

    #[test]
    fn json_and_back() {
        let micro = Micro {
            second: Some(Operation::Send),
            interval: Duration::from_micros(1500),
            odp: Sides { client: true, server: false },
            workaround: Some(Workaround::Dummy { every: Duration::from_millis(2) }),
            guards: "rnr,dummy".parse().unwrap(),
            ..Micro::default()
        };
        let text = serde_json::to_string(&micro).unwrap();
        assert!(text.contains(r#""interval":1500.0"#) && text.contains(r#""dummy":{"every":2000.0}"#), "{text}");
        assert_eq!(serde_json::from_str::<Micro>(&text).unwrap(), micro);
        assert_eq!(serde_json::from_str::<Micro>("{}").unwrap(), Micro::default());
        assert!(text.contains(r#""guards":"rnr,dummy""#), "{text}");
        let none = serde_json::to_string(&Micro::default()).unwrap();
        assert!(
            none.contains(r#""guards":"none""#) && serde_json::from_str::<Micro>(&none).unwrap() == Micro::default()
        );
        let error = serde_json::from_str::<Micro>(r#"{"guards": "dumy"}"#).unwrap_err().to_string();
        assert!(error.contains("no guard `dumy`"), "{error}");
        assert!(serde_json::from_str::<Micro>(r#"{"ops": 3}"#).is_err());
        let outcome = Outcome {
            time: Duration::from_nanos(12_345_678),
            completions: vec![Some(Duration::from_nanos(4_639_100)), None],
            wakeup: Some(Wakeup { median: Duration::from_micros(7), most: Duration::from_micros(90) }),
            cpu: Some(Duration::from_millis(3)),
            ..Outcome::default()
        };
        let text = serde_json::to_string(&outcome).unwrap();
        assert!(text.contains(r#""completions":[4639.1,null]"#), "{text}");
        assert_eq!(serde_json::from_str::<Outcome>(&text).unwrap(), outcome);
    }

    #[test]
    fn wrong_parameters_are_refused() {
        let micro = Micro::default();
        micro.check().unwrap();
        let wrong = [
            (Micro { size: 0, ..micro.clone() }, "no bytes"),
            (Micro { num_qps: 0, ..micro.clone() }, "0 QPs"),
            (Micro { num_ops: 1 << 20, size: 4096, ..micro.clone() }, "1 GiB"),
            (Micro { rnr_timer: 32, ..micro.clone() }, "RNR timer of 32"),
            (Micro { retry_cnt: 8, ..micro.clone() }, "retry count of 8"),
            (Micro { max_rd_atomic: 0, ..micro.clone() }, "max_rd_atomic of at least 1"),
            (Micro { invalidate: 1, ..micro.clone() }, "no ODP memory"),
            (Micro { ack_timeout: 0, wrong_peer: true, ..micro.clone() }, "never fails"),
            (Micro { workaround: Some(Workaround::Again { after: Duration::ZERO }), ..micro.clone() }, "10 µs"),
        ];
        for (micro, message) in wrong {
            let error = micro.check().unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        Micro { operation: Operation::Write, max_rd_atomic: 0, ..micro }.check().unwrap();
    }

    #[test]
    fn operations_are_contiguous() {
        let micro = Micro { num_ops: 128, num_qps: 3, size: 100, ..Micro::default() };
        assert_eq!((micro.qp(4), micro.offset(41), micro.page(40), micro.page(41)), (1, 4100, 0, 1));
        assert_eq!(micro.bytes(), 4 * 4096);
        assert_eq!(
            [0, 1, 3, 4, 9].map(|invalidate| Micro { invalidate, ..micro.clone() }.invalidations()),
            [0, 4, 2, 1, 1]
        );
        assert_eq!(micro.kind(1), Operation::Read);
        assert_eq!(Micro { second: Some(Operation::Write), ..micro }.kind(1), Operation::Write);
    }
}
