//! What the work of a host costs: times in ns, each with its source in the thesis (E).
//!
//! Three sources: a table or figure of basic costs; *fitted*, with the result that decides the value; *assumed*, where the
//! thesis says nothing and the value hardly matters. Claims about what a value is fitted on are calibrated.

use crate::edge::setting::Platform;

/// The costs of a host, ns, and the rates of its memory.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// An empty system call. E table 3.2: 0.15 to 0.25 µs.
    pub call: f64,
    /// An operation besides its packets. Fitted, with the two below, on the least overhead of an operation, 2 µs (E 3.2.2).
    pub operation: f64,
    /// Header, order and flow control of a packet that leaves.
    pub packet_out: f64,
    /// Descriptor and doorbell of a packet that leaves.
    pub device_out: f64,
    /// Release of the descriptor of a packet that has left. Assumed.
    pub released: f64,
    /// Header, order and flow control of a packet that has come. Fitted, with the one below, on the shares of E 3.3.3: packets
    /// and adapters take up to 36.3 % of the receiver's CPU at 14.7 Gbit/s.
    pub packet_in: f64,
    /// A new buffer for the adapter, in place of that of a packet that has come.
    pub device_in: f64,
    /// An interrupt, before any adapter is read. Fitted, with `access`, on 550 MByte/s over eight links of 1 Gbit/s (E fig.
    /// 3.1).
    pub interrupt: f64,
    /// Programmed I/O that asks one adapter for its events. An interrupt, or a round of polling, asks all.
    pub access: f64,
    /// The least time of a round of polling. E 2.4.1 has 1 ms between polls of an adapter, which excludes ping-pongs of 23 µs
    /// (E 3.2.3): it is taken for 1 µs.
    pub round: f64,
    /// The scheduler lets a thread run that has waited. Assumed.
    pub wake: f64,
    /// A byte that is copied to be sent. Base: 1 GByte/s (E fig. 3.6). Zero-copy: fitted on 7.7 Gbit/s with both copies (E
    /// 1.1); the source is in the cache, and memory takes 1.9 GByte/s (E table 3.1).
    pub copy_out: f64,
    /// A byte that is copied after it has come. Base: 1 GByte/s. Zero-copy: fitted on 27 % more without the other copy (E
    /// 3.3.3); the destination is in the cache, and memory gives 2.5 GByte/s (E table 3.1).
    pub copy_in: f64,
    /// Accesses of memory that a copied byte takes: two, or one if one side is in the cache.
    pub copy_accesses: f64,
    /// Bytes that memory reads and writes in a ns: two CPUs copy 2 GByte/s (E fig. 3.6).
    pub memory: f64,
    /// A page of a source in the protocol's own table. Pinning (3.6 µs, E table 3.2) is done at registration. Assumed.
    pub translate: f64,
    /// A page that is remapped. E table 3.2: 0.9 to 1.1 µs.
    pub remap: f64,
    /// Invalidation of the TLB, once for an operation, with the misses that follow. Fitted on 13 % at a page (E 3.3.4).
    pub flush: f64,
    /// Invalidation of the TLB's entry of a page. Fitted on 17 % (E 3.3.4).
    pub flush_page: f64,
    /// From the doorbell to the peer's interrupt, without the packet's own time on the link. Fitted on 23 µs (E 3.2.2).
    pub wire: f64,
    /// The least time between two interrupts of an adapter of 10 Gbit/s; those of 1 Gbit/s have none. Fitted on
    /// 825 MByte/s over one link of 10 Gbit/s (E fig. 3.1).
    pub coalescing: f64,
}

/// Bytes of a page.
pub const PAGE: u32 = 4096;
/// Bytes of a packet on the wire around the MTU: preamble, Ethernet header, FCS, gap.
pub const FRAME: u32 = 8 + 14 + 4 + 12;
/// The least bytes of a packet behind the Ethernet header.
pub const LEAST: u32 = 46;

impl Costs {
    /// Those of a host of the thesis.
    pub fn of(platform: Platform) -> Costs {
        let base = Costs {
            call: 200.0,
            operation: 600.0,
            packet_out: 650.0,
            device_out: 550.0,
            released: 50.0,
            packet_in: 800.0,
            device_in: 600.0,
            interrupt: 1400.0,
            access: 600.0,
            round: 1000.0,
            wake: 3000.0,
            copy_out: 1.0,
            copy_in: 1.0,
            copy_accesses: 2.0,
            memory: 4.0,
            translate: 20.0,
            remap: 1000.0,
            flush: 620.0,
            flush_page: 950.0,
            wire: 11_300.0,
            coalescing: 30_000.0,
        };
        match platform {
            Platform::Base => base,
            Platform::ZeroCopy => Costs { copy_out: 0.73, copy_in: 0.66, copy_accesses: 1.0, ..base },
        }
    }

    /// A host that takes no time: what remains is the links and the protocol.
    pub const NONE: Costs = Costs {
        call: 0.0,
        operation: 0.0,
        packet_out: 0.0,
        device_out: 0.0,
        released: 0.0,
        packet_in: 0.0,
        device_in: 0.0,
        interrupt: 0.0,
        access: 0.0,
        round: 0.0,
        wake: 0.0,
        copy_out: 0.0,
        copy_in: 0.0,
        copy_accesses: 0.0,
        memory: f64::INFINITY,
        translate: 0.0,
        remap: 0.0,
        flush: 0.0,
        flush_page: 0.0,
        wire: 0.0,
        coalescing: 0.0,
    };
}
