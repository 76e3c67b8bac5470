//! What a process and its node cost: times with their sources in M ("Designing MPI Library with On-Demand Paging", Li et al.,
//! SC'16), which has few numbers.
//!
//! *Fitted*: with the result that decides the value; claims about that result are calibrated. *Assumed*: M says nothing. The
//! adapter's own times are in the profile `connectib`.

use std::time::Duration;
use weir_sim::{Link, QpSetup};
use weir_transport::QpCaps;

/// A work request is posted. Assumed.
pub const POST: Duration = Duration::from_nanos(150);
/// A receive is posted again. Assumed.
pub const POST_RECEIVE: Duration = Duration::from_nanos(50);
/// A completion is polled, and what it brings is matched. Assumed.
pub const POLL: Duration = Duration::from_nanos(150);
/// A copied byte, ps: 5 GByte/s, a core of Sandy Bridge. Assumed.
const COPY: u64 = 200;
/// The call that asks for pages. M V.A: 5 µs for 64 bytes. M II.B.2: it is asynchronous.
pub const PREFETCH: Duration = Duration::from_micros(5);
/// A look at the number of pages that the adapter has lost, in sysfs (M III.A, VII.B). A read of an open file there takes 0.9 µs
/// in a virtual machine of ours. M's adapter may not tell processes apart; here each process has a count of its own, as with Weir.
pub const STATISTICS: Duration = Duration::from_micros(1);
/// From the call until the first [`CHUNK`] pages are present. Chosen so that ODP-Optimal has few page faults (M VII.D.1): a
/// receiver prefetches behind its grant, and data come 5 µs after the grant, so that pages that come only when the call
/// returns are often late. Any value below 4.5 µs does.
pub const FIRST_PAGES: Duration = Duration::from_micros(3);
/// A missing page that is prefetched, after the first [`CHUNK`] and beside the process: mlx5 gives each call to a thread of the
/// kernel (`system_unbound_wq`). The time is assumed, as for a page that is pinned; M fig. 3(b) has sizes up to 1 MiB, but the
/// text has no numbers.
pub const PREFETCHED_PAGE: Duration = Duration::from_nanos(250);
/// Pages that become present together.
pub const CHUNK: u64 = 16;
/// A registration, whatever its length. Assumed.
const REGISTER: Duration = Duration::from_micros(20);
/// A page that is pinned. Assumed.
const PINNED_PAGE: Duration = Duration::from_nanos(250);

/// InfiniBand FDR to the switch. Its latency, with that of an adapter, is fitted on 64 bytes in 2 µs one way (M V.A).
pub const LINK: Link = Link { latency: Duration::from_nanos(796), ..Link::FDR };
/// InfiniBand loses no packets: the switch has room for all.
pub const SWITCH_BUFFER: u64 = 1 << 40;

/// Requests in a send queue.
pub const DEPTH: usize = 128;
/// Longest inline request, bytes. Assumed: what MVAPICH2 has by default, as far as remembered.
pub const INLINE: usize = 128;
/// An RNR delay of 0.64 ms (code 12): the default of MVAPICH (`DEFAULT_MIN_RNR_TIMER`).
const MIN_RNR_TIMER: u8 = 12;
/// 4.3 s, as far as remembered the default of MVAPICH2. No packet is lost here.
const TIMEOUT: u8 = 20;

/// A copy of so many bytes.
pub fn copy(bytes: usize) -> Duration {
    Duration::from_nanos(bytes as u64 * COPY / 1000)
}

/// A registration of so many pages.
pub fn register(pages: u64, pinned: bool) -> Duration {
    REGISTER + if pinned { PINNED_PAGE * pages as u32 } else { Duration::ZERO }
}

/// A connection.
pub fn qp(receives: u16) -> QpSetup {
    let (send, receive) = (DEPTH as u32, u32::from(receives));
    QpSetup {
        caps: QpCaps {
            max_send_wr: send,
            max_recv_wr: receive,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: INLINE as u32,
        },
        timeout: TIMEOUT,
        min_rnr_timer: MIN_RNR_TIMER,
        ..QpSetup::default()
    }
}
