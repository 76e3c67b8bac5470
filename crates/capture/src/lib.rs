//! Capture files: reading pcap, pcapng and ERF; writing pcapng, also from a data path that must not block.
//!
//! [`open`] reads a file, compressed or not, as a [`Reader`], which lends its frames without copying them.
//! [`packet::find`] finds the RDMA packet in a frame of any link type; [`roce`] finds the UDP datagram of RoCEv2 in an
//! Ethernet frame. [`Writer`] writes pcapng blocks; [`Recorder`] takes frames from a thread that must not block, and
//! writes all of them, or those around a stall. [`Annotated`] copies captures and adds comments.
// `mapped` and `kept` are the exceptions.
#![deny(unsafe_code)]

mod amount;
mod annotated;
mod block;
mod decompress;
mod drain;
mod erf;
mod error;
mod frame;
mod history;
mod input;
mod kept;
mod mapped;
mod options;
pub mod packet;
mod pcap;
mod pcapng;
mod reader;
mod record;
mod recorder;
pub mod roce;
mod shared;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod ticks;
mod wake;
mod writer;

pub use amount::{AmountError, HistorySize, Snap};
pub use annotated::Annotated;
pub use block::{InterfaceInfo, PacketInfo, RecordedInterface};
pub use drain::Open;
pub use error::CaptureError;
pub use frame::{Direction, Frame, LinkType, OwnedFrame};
pub use kept::Descriptors;
pub use pcapng::Statistics;
pub use reader::{Reader, open};
pub use recorder::{DEFAULT_RING, Recorded, Recorder, RecorderOptions, Spawn};
pub use shared::flush_all;
pub use writer::Writer;
