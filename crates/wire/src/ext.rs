//! Extension headers (IBTA 9.3). Each is fixed-size, so the zerocopy struct of big-endian fields is the checked view.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

macro_rules! header {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(C)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }

        impl $name {
            /// Bytes on the wire.
            pub const LEN: usize = size_of::<$name>();
        }
    };
}

header! {
    /// Base transport header in wire format (IBTA 9.2); [`crate::Bth`] is the unpacked form.
    RawBth { opcode: u8, flags: u8, pkey: U16, dest_qp: U32, psn: U32 }
}
header! {
    /// The header of a frame in wire format; [`crate::frame`] describes it.
    RawFrame { bth: RawBth, address: U64, key: U32, offset: U32, length: U32, srq: U32, word: U32 }
}
header! {
    /// RDMA extended transport header: the destination of a WRITE or the source of a READ (IBTA 9.3.3).
    Reth {
        /// Virtual address at the responder.
        va: U64,
        /// Remote key.
        rkey: U32,
        /// Length of the whole message in bytes, not of this packet.
        dma_len: U32,
    }
}
header! {
    /// Atomic extended transport header (IBTA 9.3.4).
    AtomicEth {
        /// Virtual address at the responder, 8-byte aligned.
        va: U64,
        /// Remote key.
        rkey: U32,
        /// The value to swap in, or the addend.
        swap_or_add: U64,
        /// The value to compare with; unused by fetch-and-add.
        compare: U64,
    }
}
header! {
    /// ACK extended transport header (IBTA 9.3.5).
    Aeth {
        /// Syndrome in the top byte, MSN in the low 24 bits.
        syndrome_msn: U32,
    }
}
header! {
    /// Atomic ACK extended transport header: the value before the operation (IBTA 9.3.5.3).
    AtomicAckEth { original: U64 }
}
header! {
    /// Immediate data, carried unchanged (IBTA 9.3.6).
    ImmDt { imm: U32 }
}
header! {
    /// Invalidate extended transport header (IBTA 9.3.7).
    Ieth { rkey: U32 }
}
header! {
    /// Datagram extended transport header (IBTA 9.3.2).
    Deth {
        /// Queue key.
        qkey: U32,
        /// Source QP in the low 24 bits.
        src_qp: U32,
    }
}
header! {
    /// XRC extended transport header: the SRQ in the low 24 bits (IBTA annex A14).
    XrcEth { srq: U32 }
}
header! {
    /// FLUSH extended transport header: selectivity and placement type (IBTA annex A19).
    Feth { flags: U32 }
}

impl Aeth {
    /// Packs a syndrome byte and a message sequence number (its low 24 bits).
    pub fn new(syndrome: u8, msn: u32) -> Self {
        Aeth { syndrome_msn: U32::new(u32::from(syndrome) << 24 | (msn & 0xff_ffff)) }
    }

    /// The syndrome byte.
    pub fn syndrome(&self) -> u8 {
        (self.syndrome_msn.get() >> 24) as u8
    }

    /// The message sequence number, 24 bits.
    pub fn msn(&self) -> u32 {
        self.syndrome_msn.get() & 0xff_ffff
    }
}

/// The maximum length in bytes of all extension headers: that of XRC compare-and-swap.
pub(crate) const MAX_EXTENSIONS: usize = XrcEth::LEN + AtomicEth::LEN;
