//! Why a work request could not bind or invalidate a window, for the log.

use std::fmt;
use weir_transport::{Access, Bind, Side};

/// A bind or an invalidation that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowRefusal {
    /// The side of the QP that executed the request.
    pub side: Side,
    /// The key of the window.
    pub key: u32,
    /// The bind. `None`: the request was to invalidate the key.
    pub bind: Option<Bind>,
    pub why: WindowWhy,
}

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowWhy {
    /// No window has the key.
    Unknown,
    /// The window has this key but for the low byte.
    OtherTag { now: u32 },
    /// The window belongs to another protection domain than the QP.
    OtherDomain,
    /// A bind of a window of type 2 that is bound.
    Bound,
    /// A bind of zero bytes of a window of type 2.
    NoBytes,
    /// An invalidation of a window of type 1.
    TypeOne,
    /// An invalidation of a window that is not bound.
    Unbound,
    /// A window that is bound to another QP.
    OtherQp { qp: u32 },
    /// No region has the lkey.
    NoRegion,
    /// The region of the bind belongs to another protection domain than the window.
    RegionInOtherDomain,
    /// The region is no memory: a null region.
    NullRegion,
    /// The region lacks this right.
    RegionLacks { missing: Access },
    /// The region has addresses from zero.
    RegionZeroBased,
    /// The range is not inside the region.
    OutsideRegion { from: u64, len: u64 },
}

impl fmt::Display for WindowRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WindowRefusal { key, bind, why, .. } = *self;
        match bind {
            Some(Bind { mr_lkey, addr, len, .. }) => {
                write!(
                    f,
                    "window {key:#010x} was to be bound to {len} bytes at {addr:#x} of lkey {mr_lkey:#010x}, but "
                )?;
            }
            None => write!(f, "rkey {key:#010x} was to be invalidated, but ")?,
        }
        match why {
            WindowWhy::Unknown => f.write_str("no window has this key (never, or not any more)"),
            WindowWhy::OtherTag { now } => write!(f, "this key is stale: the window's key is {now:#010x} now"),
            WindowWhy::OtherDomain => f.write_str("the window belongs to another protection domain than the QP"),
            WindowWhy::Bound => f.write_str("a window of type 2 must be invalidated before it is bound again"),
            WindowWhy::NoBytes => f.write_str("a bind of zero bytes does not free a window of type 2: invalidate it"),
            WindowWhy::TypeOne => f.write_str("a window of type 1 is closed by a bind of zero bytes instead"),
            WindowWhy::Unbound => f.write_str("the window is not bound: it never was, or it was invalidated before"),
            WindowWhy::OtherQp { qp } => write!(f, "the window is bound to QP {qp:#08x}, and only that QP may do so"),
            WindowWhy::NoRegion => f.write_str("no region has this lkey (never, or not any more)"),
            WindowWhy::RegionInOtherDomain => {
                f.write_str("the region belongs to another protection domain than the window")
            }
            WindowWhy::NullRegion => f.write_str("it is the lkey of a null region"),
            WindowWhy::RegionLacks { missing } => {
                f.write_str("the region lacks ")?;
                missing_rights(f, missing)
            }
            WindowWhy::RegionZeroBased => f.write_str("the region is zero-based, and windows need addresses"),
            WindowWhy::OutsideRegion { from, len } => write!(f, "the region has {len} bytes at {from:#x}"),
        }
    }
}

/// The names of rights.
pub(super) fn missing_rights(f: &mut fmt::Formatter<'_>, missing: Access) -> fmt::Result {
    for (nth, name) in missing.iter_names().map(|(name, _)| name).enumerate() {
        write!(f, "{}IBV_ACCESS_{name}", if nth > 0 { " and " } else { "" })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_the_request_and_the_reason() {
        let access = Access::REMOTE_WRITE;
        let bind = Bind { window_rkey: 0x501, new_rkey: 0x502, mr_lkey: 0x900, addr: 0x4000, len: 64, access };
        let why = WindowWhy::RegionLacks { missing: Access::MW_BIND };
        let refusal = WindowRefusal { side: Side::Requester, key: 0x501, bind: Some(bind), why };
        assert_eq!(
            refusal.to_string(),
            "window 0x00000501 was to be bound to 64 bytes at 0x4000 of lkey 0x00000900, but the region lacks \
             IBV_ACCESS_MW_BIND"
        );
        let refusal = WindowRefusal { bind: None, why: WindowWhy::OtherQp { qp: 9 }, ..refusal };
        assert_eq!(
            refusal.to_string(),
            "rkey 0x00000501 was to be invalidated, but the window is bound to QP 0x000009, and only that QP may do so"
        );
    }

    /// What causes each of them: the tests of `bind.rs`.
    #[test]
    fn each_reason_about_a_window_has_its_text() {
        for (why, text) in [
            (WindowWhy::Unknown, "no window has this key"),
            (WindowWhy::OtherTag { now: 0x502 }, "this key is stale: the window's key is 0x00000502 now"),
            (WindowWhy::OtherDomain, "the window belongs to another protection domain than the QP"),
            (WindowWhy::Bound, "a window of type 2 must be invalidated before it is bound again"),
            (WindowWhy::NoBytes, "a bind of zero bytes does not free a window of type 2"),
            (WindowWhy::TypeOne, "a window of type 1 is closed by a bind of zero bytes instead"),
            (WindowWhy::Unbound, "the window is not bound: it never was"),
            (WindowWhy::NoRegion, "no region has this lkey"),
            (WindowWhy::RegionInOtherDomain, "the region belongs to another protection domain than the window"),
            (WindowWhy::NullRegion, "it is the lkey of a null region"),
            (WindowWhy::RegionZeroBased, "the region is zero-based, and windows need addresses"),
            (WindowWhy::OutsideRegion { from: 0x4000, len: 64 }, "the region has 64 bytes at 0x4000"),
        ] {
            let refusal = WindowRefusal { side: Side::Requester, key: 0x501, bind: None, why };
            assert!(refusal.to_string().contains(text), "{refusal}");
        }
    }
}
