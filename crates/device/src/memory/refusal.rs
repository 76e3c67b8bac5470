//! Why an access to memory, or a request about a window, was refused, for the log.

use crate::memory::window_refusal::{WindowRefusal, missing_rights};
use std::fmt;
use weir_transport::{Access, Side};

/// What was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Access(AccessRefusal),
    Window(WindowRefusal),
}

/// An access that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessRefusal {
    /// The side of the QP that needed the memory.
    pub side: Side,
    /// The key is an rkey that the peer gave.
    pub remote: bool,
    pub key: u32,
    /// First byte, in the key's own addressing, and bytes.
    pub va: u64,
    pub len: u64,
    pub why: Why,
}

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// No region and no window has the key.
    Unknown,
    /// A window that is not bound: it never was, or it was invalidated.
    Unbound,
    /// A region or window has this key but for the low byte: a window was bound again since.
    OtherTag { now: u32 },
    /// The region or window belongs to another protection domain than the QP.
    OtherDomain,
    /// A window of type 2 that another QP has bound.
    OtherQp { qp: u32 },
    /// The key of a window is not for work requests.
    WindowAsLkey,
    /// A peer may not use a null region.
    Null,
    /// The range is not inside this one.
    Outside { from: u64, len: u64 },
    /// These rights are missing.
    Rights { missing: Access },
    /// The region allows it now: it has changed in the meantime.
    Changed,
}

impl Refusal {
    /// The side of the QP that made the request.
    pub fn side(&self) -> Side {
        match self {
            Refusal::Access(refusal) => refusal.side,
            Refusal::Window(refusal) => refusal.side,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Access(refusal) => refusal.fmt(f),
            Refusal::Window(refusal) => refusal.fmt(f),
        }
    }
}

impl fmt::Display for AccessRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AccessRefusal { key, va, len, .. } = self;
        let name = if self.remote { "rkey" } else { "lkey" };
        write!(f, "{name} {key:#010x} was used for {len} bytes at {va:#x}, but ")?;
        match self.why {
            Why::Unknown => f.write_str("no region or window has this key (never, or not any more)"),
            Why::Unbound => f.write_str("the window is not bound: it was never bound, or it was invalidated"),
            Why::OtherTag { now } => write!(f, "this key is stale: it is {now:#010x} since the window was bound again"),
            Why::OtherDomain => f.write_str("it belongs to another protection domain than the QP"),
            Why::OtherQp { qp } => write!(f, "the window of type 2 is bound to QP {qp:#08x}, and no other may use it"),
            Why::WindowAsLkey => f.write_str("it is the key of a window, which is no lkey"),
            Why::Null => f.write_str("it is the key of a null region, which a peer may not use"),
            Why::Outside { from, len } => write!(f, "it grants {len} bytes at {from:#x}"),
            Why::Rights { missing } => {
                f.write_str("it lacks ")?;
                missing_rights(f, missing)
            }
            Why::Changed => f.write_str("it has changed since"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_the_key_the_range_and_the_missing_rights() {
        let refusal = |why| AccessRefusal { side: Side::Responder, remote: true, key: 0x1234, va: 0x5000, len: 8, why };
        let missing = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        assert_eq!(
            refusal(Why::Rights { missing }).to_string(),
            "rkey 0x00001234 was used for 8 bytes at 0x5000, but it lacks IBV_ACCESS_REMOTE_WRITE and \
             IBV_ACCESS_REMOTE_ATOMIC"
        );
        let outside = AccessRefusal { remote: false, ..refusal(Why::Outside { from: 0x4000, len: 4096 }) };
        assert_eq!(
            outside.to_string(),
            "lkey 0x00001234 was used for 8 bytes at 0x5000, but it grants 4096 bytes at 0x4000"
        );
    }

    #[test]
    fn each_reason_about_a_key_has_its_text() {
        for (why, text) in [
            (Why::Unknown, "no region or window has this key"),
            (Why::Unbound, "the window is not bound: it was never bound"),
            (Why::OtherTag { now: 0x1235 }, "this key is stale: it is 0x00001235 since"),
            (Why::OtherDomain, "it belongs to another protection domain than the QP"),
            (Why::OtherQp { qp: 9 }, "the window of type 2 is bound to QP 0x000009, and no other may use it"),
            (Why::WindowAsLkey, "it is the key of a window, which is no lkey"),
            (Why::Null, "it is the key of a null region, which a peer may not use"),
            (Why::Changed, "it has changed since"),
        ] {
            let refusal = AccessRefusal { side: Side::Responder, remote: true, key: 0x1234, va: 0x5000, len: 8, why };
            assert!(refusal.to_string().contains(text), "{refusal}");
        }
    }
}
