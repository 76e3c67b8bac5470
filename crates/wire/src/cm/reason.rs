//! Why a message is rejected.

use super::bits::{Bits, Value};
use std::fmt;

/// `reason` of a REJ (IBTA 12.6.7.2). Any number can come from the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RejectReason(pub u16);

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        impl RejectReason {
            $($(#[$doc])* pub const $name: RejectReason = RejectReason($number);)*

            /// What the number means, if IBTA defines it.
            pub fn text(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

reasons! {
    NO_QP = 1, "no QP available";
    NO_EEC = 2, "no EE context available";
    NO_RESOURCES = 3, "no resources available";
    /// The sender waited in vain for a message. `ari` is the sender's node GUID.
    TIMEOUT = 4, "timeout";
    UNSUPPORTED = 5, "unsupported request";
    INVALID_COMM_ID = 6, "invalid communication ID";
    INVALID_COMM_INSTANCE = 7, "invalid communication instance";
    /// No listener.
    INVALID_SERVICE_ID = 8, "invalid service ID";
    INVALID_TRANSPORT = 9, "invalid transport service type";
    /// The QP belongs to a connection already, as far as the sender knows.
    STALE_CONNECTION = 10, "stale connection";
    RDC_NOT_EXIST = 11, "RDC does not exist";
    INVALID_GID = 12, "primary remote port GID rejected";
    INVALID_LID = 13, "primary remote port LID rejected";
    INVALID_SL = 14, "invalid primary SL";
    INVALID_TRAFFIC_CLASS = 15, "invalid primary traffic class";
    INVALID_HOP_LIMIT = 16, "invalid primary hop limit";
    INVALID_PACKET_RATE = 17, "invalid primary packet rate";
    INVALID_ALTERNATE_GID = 18, "alternate remote port GID rejected";
    INVALID_ALTERNATE_LID = 19, "alternate remote port LID rejected";
    INVALID_ALTERNATE_SL = 20, "invalid alternate SL";
    INVALID_ALTERNATE_TRAFFIC_CLASS = 21, "invalid alternate traffic class";
    INVALID_ALTERNATE_HOP_LIMIT = 22, "invalid alternate hop limit";
    INVALID_ALTERNATE_PACKET_RATE = 23, "invalid alternate packet rate";
    PORT_AND_CM_REDIRECT = 24, "port and CM redirection";
    PORT_REDIRECT = 25, "port redirection";
    INVALID_MTU = 26, "invalid path MTU";
    INSUFFICIENT_RESPONDER_RESOURCES = 27, "insufficient responder resources";
    /// The program rejected; `private` is its own.
    CONSUMER = 28, "consumer reject";
    INVALID_RNR_RETRY = 29, "RNR retry count rejected";
    DUPLICATE_COMM_ID = 30, "duplicate local communication ID";
    INVALID_CLASS_VERSION = 31, "unsupported class version";
    INVALID_FLOW_LABEL = 32, "invalid primary flow label";
    INVALID_ALTERNATE_FLOW_LABEL = 33, "invalid alternate flow label";
    /// (IBTA annex A11).
    VENDOR_OPTION_UNSUPPORTED = 35, "vendor option is not supported";
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => write!(f, "{text} ({})", self.0),
            None => write!(f, "reason {}", self.0),
        }
    }
}

impl fmt::Debug for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RejectReason({self})")
    }
}

impl Value for RejectReason {
    fn get(bytes: &[u8], at: Bits) -> Self {
        RejectReason(u16::get(bytes, at))
    }

    fn put(&self, bytes: &mut [u8], at: Bits) {
        self.0.put(bytes, at);
    }
}
