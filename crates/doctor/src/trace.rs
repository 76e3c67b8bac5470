//! What a process left: its file of observations, with times in nanoseconds since the file was made.

use crate::layout::{self, Header, MAGIC, QPS, QPS_AT, REQUESTS, REQUESTS_AT, SIZES, SOURCES, SOURCES_AT, TIMES};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use zerocopy::FromBytes;

/// A process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    pub pid: u32,
    pub program: String,
    /// Nanoseconds since 1970 of time 0.
    pub start_unix_ns: u64,
    /// Time of the last observation.
    pub end: u64,
    pub qps: Vec<Qp>,
    /// Requests that took long or failed, by the time of their completion.
    pub requests: Vec<Request>,
    pub sources: Vec<Source>,
    /// Long requests and QPs for which there was no room, and completions that no request matched.
    pub requests_left_out: u64,
    pub qps_left_out: u64,
    pub unmatched: u64,
    pub pinned: u64,
    pub pinned_bytes: u64,
}

/// A QP and its attributes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Qp {
    pub device: String,
    pub number: u32,
    pub peer: u32,
    /// `IBV_QPT_*`.
    pub service: u32,
    pub min_rnr_timer: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub max_rd_atomic: u8,
    pub posted: u64,
    pub completed: u64,
    pub failed: u64,
    pub received: u64,
    /// It was ready to send, but its requests do not pass through functions that the layer sees.
    pub hidden: bool,
    /// Its device cannot have ODP memory.
    pub no_odp: bool,
    pub served: Served,
}

/// Number of requests by class of size and class of service time.
pub type Served = [[u32; TIMES]; SIZES];

/// A request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Request {
    /// Index in [`Trace::qps`].
    pub qp: usize,
    pub posted: u64,
    /// When its service began: it was posted, and the completion before its own was polled.
    pub begun: u64,
    /// When its completion was polled.
    pub done: u64,
    /// When the CQ was last seen without its completion.
    pub missing: u64,
    /// The first byte of its data, if that is in ODP memory.
    pub address: u64,
    pub bytes: u32,
    /// `IBV_WR_*`.
    pub opcode: u8,
    /// `IBV_WC_*`.
    pub status: u8,
    pub odp: bool,
    pub armed: bool,
    /// Requests of the QP before it that were open when it was posted.
    pub ahead: u32,
    /// When the QP's next request was posted that the peer got while this one was open; 0 without one.
    pub next: u64,
    /// It had not completed when the process ended.
    pub open: bool,
}

/// A library that registered ODP memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Source {
    pub path: String,
    /// It registered all memory of the process.
    pub implicit: bool,
    pub regions: u64,
    pub bytes: u64,
    pub largest: u64,
}

impl Request {
    /// For how long it was certainly served, ns. A completion may lie in the CQ until the program polls: only the time
    /// until the CQ was last seen without it is certain, unless the program waits for an event.
    pub fn late(&self) -> u64 {
        let until = if self.armed || self.open { self.done } else { self.missing.min(self.done) };
        until.saturating_sub(self.begun)
    }
}

/// Reads a file of observations. The process was seen running at `alive_until`, by CLOCK_MONOTONIC in ns; without it,
/// it is known to have run until its last observation only. An error says what is wrong with the file.
pub fn read(bytes: &[u8], alive_until: Option<u64>) -> Result<Trace> {
    ensure!(bytes.len() >= layout::LENGTH, "the file has {} bytes instead of {}", bytes.len(), layout::LENGTH);
    let (header, _) = Header::read_from_prefix(bytes).ok().context("no header")?;
    ensure!(header.magic == MAGIC, "the file is not of this version of weir");
    let clock = Clock::of(&header);
    let at = |ticks: u64| clock.ns(ticks);
    let end = at(header.last_ticks).max(alive_until.unwrap_or(0).saturating_sub(header.start_ns));
    let table = <[layout::Qp]>::ref_from_bytes_with_elems(&bytes[QPS_AT..REQUESTS_AT], QPS).ok().context("QPs")?;
    let kept = (header.requests as usize).min(REQUESTS);
    let requests = &bytes[REQUESTS_AT..REQUESTS_AT + kept * size_of::<layout::Request>()];
    let requests = <[layout::Request]>::ref_from_bytes(requests).ok().context("requests")?;
    let sources = &bytes[SOURCES_AT..QPS_AT];
    let sources = <[layout::Source]>::ref_from_bytes_with_elems(sources, SOURCES).ok().context("sources")?;

    // Entries in use are not always at the front: an entry becomes free at the end of its QP.
    let mut index = vec![usize::MAX; QPS];
    let mut qps = vec![];
    let mut found = vec![];
    for (slot, qp) in table.iter().enumerate().filter(|(_, qp)| qp.bits & layout::Qp::USED != 0) {
        index[slot] = qps.len();
        if qp.oldest != 0 && qp.destroyed == 0 {
            found.push(Request {
                qp: qps.len(),
                posted: at(qp.oldest),
                begun: at(qp.oldest.max(qp.served_until)).min(end),
                done: end,
                missing: end,
                address: qp.oldest_address,
                bytes: qp.oldest_bytes,
                opcode: qp.oldest_opcode as u8,
                odp: qp.oldest_address != 0,
                open: true,
                ..Request::default()
            });
        }
        qps.push(Qp {
            device: text(&qp.device),
            number: qp.qp_num,
            peer: qp.dest_qp_num,
            service: qp.service,
            min_rnr_timer: qp.min_rnr_timer,
            timeout: qp.timeout,
            retry_cnt: qp.retry_cnt,
            rnr_retry: qp.rnr_retry,
            max_rd_atomic: qp.max_rd_atomic,
            posted: qp.posted,
            completed: qp.completed,
            failed: qp.failed,
            received: qp.received,
            no_odp: qp.bits & layout::Qp::NO_ODP != 0,
            hidden: qp.bits & layout::Qp::READY != 0 && qp.posted == 0 && qp.received == 0,
            served: qp.served,
        });
    }
    for entry in requests.iter().filter(|entry| entry.used == 1) {
        let qp = index.get(entry.qp as usize).copied().filter(|&qp| qp != usize::MAX);
        let Some(qp) = qp else { continue };
        found.push(Request {
            qp,
            posted: at(entry.posted),
            begun: at(entry.begun.min(entry.done)),
            done: at(entry.done),
            missing: at(entry.missing),
            address: entry.address,
            bytes: entry.bytes,
            opcode: entry.opcode,
            status: entry.status,
            odp: entry.bits & layout::Request::ODP != 0,
            armed: entry.bits & layout::Request::ARMED != 0,
            ahead: entry.ahead,
            next: if entry.next_us == 0 { 0 } else { at(entry.begun).saturating_add(1000 * u64::from(entry.next_us)) },
            open: false,
        });
    }
    found.sort_by_key(|request| (request.done, request.posted));
    let source = |source: &layout::Source| Source {
        path: text(&source.path),
        implicit: source.bits & layout::Source::IMPLICIT != 0,
        regions: source.regions,
        bytes: source.bytes,
        largest: source.largest,
    };
    Ok(Trace {
        pid: header.pid,
        program: text(&header.program),
        start_unix_ns: header.start_unix_ns,
        end,
        qps,
        requests: found,
        sources: sources.iter().filter(|source| source.used != 0).map(source).collect(),
        requests_left_out: header.requests.saturating_sub(REQUESTS as u64),
        qps_left_out: header.qps_left_out,
        unmatched: header.unmatched,
        pinned: header.pinned,
        pinned_bytes: header.pinned_bytes,
    })
}

/// Converts ticks.
struct Clock {
    zero: u64,
    ns_per_tick: f64,
}

impl Clock {
    fn of(header: &Header) -> Clock {
        let ticks = header.last_ticks.saturating_sub(header.start_ticks);
        let ns = header.last_ns.saturating_sub(header.start_ns);
        Clock { zero: header.start_ticks, ns_per_tick: if ticks == 0 { 1.0 } else { ns as f64 / ticks as f64 } }
    }

    fn ns(&self, ticks: u64) -> u64 {
        (ticks.saturating_sub(self.zero) as f64 * self.ns_per_tick) as u64
    }
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    // The text reaches a terminal, and the program chose it.
    String::from_utf8_lossy(&bytes[..end]).replace(char::is_control, "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::{FromZeros, IntoBytes};

    fn file() -> Vec<u8> {
        let mut header = Header::new_zeroed();
        header.magic = MAGIC;
        header.pid = 42;
        header.program[..5].copy_from_slice(b"micro");
        (header.start_ticks, header.start_ns) = (1000, 7);
        (header.last_ticks, header.last_ns) = (5000, 1_000_007);
        header.requests = REQUESTS as u64 + 3;
        let mut qp = layout::Qp::new_zeroed();
        (qp.bits, qp.qp_num, qp.posted) = (layout::Qp::USED | layout::Qp::READY, 77, 2);
        (qp.oldest, qp.oldest_opcode) = (2000, 4);
        let mut request = layout::Request::new_zeroed();
        (request.used, request.qp, request.posted, request.begun) = (1, 9, 2000, 2000);
        (request.done, request.missing, request.bits) = (4000, 3000, layout::Request::ODP);
        let mut bytes = vec![0; layout::LENGTH];
        bytes[..size_of::<Header>()].copy_from_slice(header.as_bytes());
        let at = QPS_AT + 9 * size_of::<layout::Qp>();
        bytes[at..at + size_of::<layout::Qp>()].copy_from_slice(qp.as_bytes());
        bytes[REQUESTS_AT..REQUESTS_AT + 64].copy_from_slice(request.as_bytes());
        bytes
    }

    #[test]
    fn a_file_becomes_a_trace_in_nanoseconds() {
        let trace = read(&file(), None).unwrap();
        assert_eq!((trace.pid, trace.program.as_str(), trace.end), (42, "micro", 1_000_000));
        assert_eq!((trace.qps.len(), trace.qps[0].number, trace.requests_left_out), (1, 77, 3));
        let [request, open] = trace.requests[..] else { panic!("{:?}", trace.requests) };
        assert_eq!((request.posted, request.done, request.odp, request.late()), (250_000, 750_000, true, 250_000));
        assert_eq!((open.posted, open.open, open.opcode, open.late()), (250_000, true, 4, 750_000));
    }

    #[test]
    fn a_process_that_was_killed_while_it_waited_was_served_until_then() {
        let late = |alive_until| read(&file(), Some(alive_until)).unwrap().requests.last().unwrap().late();
        // Its file was made at 7 ns, the request posted 250 us later.
        assert_eq!([5, 1_000_007, 9_000_007].map(late), [750_000, 750_000, 8_750_000]);
    }

    #[test]
    fn an_open_request_is_served_after_the_completion_before_its_own() {
        let mut bytes = file();
        let qp = &mut bytes[QPS_AT + 9 * size_of::<layout::Qp>()..][..size_of::<layout::Qp>()];
        layout::Qp::mut_from_bytes(qp).unwrap().served_until = 4000;
        let trace = read(&bytes, None).unwrap();
        assert_eq!(trace.requests.last().map(|open| (open.posted, open.late())), Some((250_000, 250_000)));
    }

    #[test]
    fn a_program_that_waits_for_events_polls_at_once() {
        let request = Request { posted: 5, begun: 10, missing: 20, done: 90, ..Request::default() };
        assert_eq!(request.late(), 10);
        assert_eq!(Request { armed: true, ..request }.late(), 80);
    }

    #[test]
    fn any_content_gives_a_report() {
        let mut state = 1u64;
        // Numbers of all magnitudes.
        let mut number = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1442695040888963407);
            (state ^ state >> 29) >> (state >> 58)
        };
        let mut bytes = file();
        for _ in 0..300 {
            for at in (8..size_of::<Header>()).chain(SOURCES_AT..SOURCES_AT + 1024).step_by(8) {
                bytes[at..at + 8].copy_from_slice(&number().to_le_bytes());
            }
            for (first, size, count) in [(QPS_AT, size_of::<layout::Qp>(), 12), (REQUESTS_AT, 64, 100)] {
                (first..first + count * size)
                    .step_by(8)
                    .for_each(|at| bytes[at..at + 8].copy_from_slice(&number().to_le_bytes()));
            }
            for at in 0..100 {
                let request = &mut bytes[REQUESTS_AT + 64 * at..][..64];
                let request = layout::Request::mut_from_bytes(request).unwrap();
                (request.used, request.qp, request.status) = (1, number() as u32 % 16, number() as u8 % 16 / 11 * 12);
            }
            for at in 0..12 {
                let qp = &mut bytes[QPS_AT + at * size_of::<layout::Qp>()..][..size_of::<layout::Qp>()];
                let qp = layout::Qp::mut_from_bytes(qp).unwrap();
                (qp.service, qp.bits) = (2, qp.bits | layout::Qp::USED);
            }
            let trace = read(&bytes, Some(number())).unwrap();
            assert!(trace.requests.iter().all(|request| request.begun <= request.done));
            assert!(!crate::report::Report::of(vec![], &[trace]).text("").is_empty());
        }
    }

    #[test]
    fn other_files_are_refused() {
        let mut bytes = file();
        assert!(read(&bytes[1..], None).unwrap_err().to_string().contains("bytes"));
        bytes[7] = 1;
        assert!(read(&bytes, None).unwrap_err().to_string().contains("version"));
    }
}
