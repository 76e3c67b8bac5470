//! The messages of connection management (IBTA 12.6, 12.11), and what librdmacm puts into their private data.
//!
//! [`Message`] is any of them, without the header of the MAD. Parsing takes any 256 bytes: fields without a meaning are
//! zero after that, and other values stay as they are. LAP and APR, which change the alternate path, are no messages
//! here: RoCE has no alternate paths.

mod bits;
mod connect;
mod ip;
mod message;
mod reason;
mod refusal;
mod service;

pub use connect::{Drep, Dreq, Mra, Path, Rej, Rep, Req, Rtu};
pub use ip::IpHeader;
pub use message::{Message, MessageError};
pub use reason::RejectReason;
pub use service::{PortSpace, ServiceId, SidrRep, SidrReq, SidrStatus};
