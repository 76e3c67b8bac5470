//! Asynchronous events of the device.

/// An asynchronous event and the cookie of what it concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// An event of a QP.
    Qp { cookie: u64, event: weir_transport::QpEvent },
    /// A CQ has overflowed.
    CqError { cookie: u64 },
    /// An SRQ has fewer work requests than its limit.
    SrqLimit { cookie: u64 },
    /// An event of the port.
    Port(PortEvent),
    /// The interface behind the device is gone, or the adapter has failed because of a bug in Weir.
    DeviceFatal,
}

/// How the port changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// The interface is up and has an address.
    Active,
    /// The interface is down or has no address.
    Error,
    /// The GID table changed.
    GidChange,
}
