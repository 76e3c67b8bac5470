//! Where each extension header is in a packet.

use crate::Opcode;
use crate::ext::{Aeth, AtomicAckEth, AtomicEth, Deth, Feth, Ieth, ImmDt, Reth, XrcEth};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A header between BTH and payload.
pub trait Extension: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Copy {
    /// Its offset after the BTH, if packets with this opcode have it.
    fn offset(opcode: Opcode) -> Option<usize>;
}

macro_rules! extension {
    ($($name:ident, $has:ident, |$opcode:ident| $offset:expr;)*) => {$(
        impl Extension for $name {
            #[inline(always)]
            fn offset($opcode: Opcode) -> Option<usize> {
                $opcode.$has().then(|| $offset)
            }
        }
    )*};
}

// IBTA 9.2.1, figure 94 and table 38: the order of the headers.
extension! {
    Deth, has_deth, |_opcode| 0;
    XrcEth, has_xrceth, |_opcode| 0;
    Feth, has_feth, |opcode| service_len(opcode);
    Reth, has_reth, |opcode| service_len(opcode) + if opcode.has_feth() { Feth::LEN } else { 0 };
    AtomicEth, has_atomic, |opcode| service_len(opcode);
    Aeth, has_aeth, |_opcode| 0;
    AtomicAckEth, has_atomic_ack, |_opcode| Aeth::LEN;
    ImmDt, has_imm, |opcode| service_len(opcode) + if opcode.has_reth() { Reth::LEN } else { 0 };
    Ieth, has_ieth, |opcode| service_len(opcode);
}

/// Length in bytes of the header that all requests of a service have.
#[inline(always)]
fn service_len(opcode: Opcode) -> usize {
    if opcode.has_deth() {
        Deth::LEN
    } else if opcode.has_xrceth() {
        XrcEth::LEN
    } else {
        0
    }
}
