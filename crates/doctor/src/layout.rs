//! The file in which a process leaves its observations: a header, and tables of QPs, requests and registrations.
//!
//! The process maps the file and writes while it runs, so that the file is complete whenever the process ends, and
//! however. It is read after the end of the process, on the same machine. Free entries are all zeros. The file is as
//! long as all tables together, with holes where nothing was written.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The environment variable with the folder in which each process makes its file.
pub const VARIABLE: &str = "WEIR_DOCTOR";
/// How the names of these files end.
pub const SUFFIX: &str = ".observed";
/// The first bytes of a file; the last is the version of the layout.
pub const MAGIC: [u8; 8] = *b"weirobs\x03";

/// Entries of the tables.
pub const QPS: usize = 16384;
pub const REQUESTS: usize = 1 << 17;
pub const SOURCES: usize = 64;

/// Where each table begins, bytes.
pub const SOURCES_AT: usize = 4096;
pub const QPS_AT: usize = SOURCES_AT + SOURCES * size_of::<Source>();
pub const REQUESTS_AT: usize = QPS_AT + QPS * size_of::<Qp>();
pub const LENGTH: usize = REQUESTS_AT + REQUESTS * size_of::<Request>();

/// Classes of a request's size: 0, up to 15, 255, 4095 bytes and so on, by factors of 16.
pub const SIZES: usize = 8;
/// Classes of a request's service time: the binary logarithm of the nanoseconds.
pub const TIMES: usize = 32;

/// Times of the file are ticks of `clock` since its zero.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    pub magic: [u8; 8],
    pub pid: u32,
    pub unused: u32,
    /// A moment on both clocks, and nanoseconds since 1970.
    pub start_ticks: u64,
    pub start_ns: u64,
    pub start_unix_ns: u64,
    /// A later moment on both clocks, so that ticks can be converted; updated while the process runs.
    pub last_ticks: u64,
    pub last_ns: u64,
    /// Requests that took long, also those for which the table has no room.
    pub requests: u64,
    /// QPs that found no room in their table.
    pub qps_left_out: u64,
    /// Work requests that could not be matched with a completion.
    pub unmatched: u64,
    /// Regions of pinned memory, and their bytes.
    pub pinned: u64,
    pub pinned_bytes: u64,
    /// The program's name, NUL-terminated.
    pub program: [u8; 64],
}

/// A QP. It keeps its entry after its end if a request of it is in the table of requests.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Qp {
    /// [`Qp::USED`] and the other bits below.
    pub bits: u32,
    pub qp_num: u32,
    pub dest_qp_num: u32,
    /// `IBV_QPT_*`.
    pub service: u32,
    /// The attributes as last set: code of the RNR timer and of the ACK timeout, retry counts.
    pub min_rnr_timer: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub max_rd_atomic: u8,
    pub unused: [u8; 3],
    /// 0 as long as it exists.
    pub destroyed: u64,
    pub posted: u64,
    pub completed: u64,
    /// Completions with an error.
    pub failed: u64,
    pub received: u64,
    /// When the oldest open request was posted that asks for a completion, 0 without one; its opcode, bytes and
    /// address.
    pub oldest: u64,
    pub oldest_bytes: u32,
    pub oldest_opcode: u32,
    pub oldest_address: u64,
    /// When the last completion was polled that read the time. Others did not only if no other request was open.
    pub served_until: u64,
    /// Name of the device, NUL-terminated.
    pub device: [u8; 32],
    /// Number of requests by size and service time. The service time of a request begins when it was posted, or when
    /// the request before it completed, if that is later. A request that did not read the time counts with the next one
    /// that did.
    pub served: [[u32; TIMES]; SIZES],
}

impl Qp {
    pub const USED: u32 = 1;
    /// A request of it is in the table.
    pub const KEPT: u32 = 4;
    /// It has been ready to send.
    pub const READY: u32 = 8;
    /// Its device cannot have ODP memory.
    pub const NO_ODP: u32 = 16;
}

/// A request that took long, or failed.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Request {
    /// Written last: 1 for an entry in use.
    pub used: u32,
    /// Index of its QP.
    pub qp: u32,
    pub posted: u64,
    /// When its service began.
    pub begun: u64,
    /// When a poll returned its completion.
    pub done: u64,
    /// When the CQ was last seen without it.
    pub missing: u64,
    /// The first byte of its data, if that is in ODP memory.
    pub address: u64,
    pub bytes: u32,
    /// `IBV_WR_*`.
    pub opcode: u8,
    /// `IBV_WC_*`.
    pub status: u8,
    pub bits: u16,
    /// Requests of the QP before it that were open when it was posted.
    pub ahead: u32,
    /// From the beginning of its service until the QP's next request was posted that the peer got while this one was
    /// open, us; 0 if there was none. Requests that were posted within [`Request::TOGETHER`] do not count.
    pub next_us: u32,
}

impl Request {
    /// Its data is in ODP memory.
    pub const ODP: u16 = 1;
    /// The program had requested an event: it waits, and does not leave the completion in the CQ.
    pub const ARMED: u16 = 2;

    /// A peer that repeats a READ gets requests that are posted so soon after it together with the READ, ns.
    pub const TOGETHER: u64 = 200_000;
}

/// A library that registered ODP memory.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Source {
    pub used: u32,
    /// Bits of [`Source::IMPLICIT`] and below.
    pub bits: u32,
    pub regions: u64,
    pub bytes: u64,
    /// The largest region.
    pub largest: u64,
    /// Path of the file, NUL-terminated.
    pub path: [u8; 224],
}

impl Source {
    /// It registered the whole address space.
    pub const IMPLICIT: u32 = 1;
}

/// Class of a request's size.
#[inline]
pub fn size_class(bytes: u32) -> usize {
    ((35 - bytes.leading_zeros() as usize) / 4).min(SIZES - 1)
}

/// Class of a service time.
#[inline]
pub fn time_class(ns: u64) -> usize {
    (63 - (ns | 1).leading_zeros() as usize).min(TIMES - 1)
}

const _: () = {
    assert!(size_of::<Header>() <= SOURCES_AT);
    assert!(size_of::<Request>() == 64 && size_of::<Source>() == 256);
    assert!(QPS_AT.is_multiple_of(64) && REQUESTS_AT.is_multiple_of(64));
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_sizes_are_by_factors_of_sixteen() {
        let classes = [0, 1, 15, 16, 255, 256, 4095, 4096, 65535, 1 << 20, 1 << 24, u32::MAX].map(size_class);
        assert_eq!(classes, [0, 1, 1, 2, 2, 3, 3, 4, 4, 6, 7, 7]);
    }

    #[test]
    fn classes_of_times_are_logarithms() {
        assert_eq!([0, 1, 2, 1000, 1 << 38, u64::MAX].map(time_class), [0, 0, 1, 9, 31, 31]);
    }
}
