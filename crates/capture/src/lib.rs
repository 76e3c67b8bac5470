//! Capture files: reading pcap, pcapng and ERF; writing pcapng, also from a data path that must not block.
//!
//! [`open`] reads a file, compressed or not, as a [`Reader`], which lends its frames without copying them.
//! [`packet::find`] finds the RDMA packet in a frame of any link type; [`roce`] finds the UDP datagram of RoCEv2 in an
//! Ethernet frame. [`Writer`] writes pcapng blocks; [`Recorder`] passes frames to it from a thread that must not block.
#![forbid(unsafe_code)]

mod decompress;
mod erf;
mod error;
mod frame;
mod input;
mod options;
pub mod packet;
mod pcap;
mod pcapng;
mod reader;
mod record;
mod recorder;
pub mod roce;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod ticks;
mod writer;

pub use error::CaptureError;
pub use frame::{Direction, Frame, LinkType, OwnedFrame};
pub use pcapng::Statistics;
pub use reader::{Reader, open};
pub use recorder::{DEFAULT_RING, Recorded, Recorder, RecorderOptions, flush_all};
pub use writer::{InterfaceInfo, PacketInfo, Writer};
