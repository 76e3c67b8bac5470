//! Capture files: reading pcap, pcapng and ERF; writing pcapng, also from a data path that must not block.
//!
//! [`open`] returns the frames of a file as a [`Reader`]; [`roce`] finds the RoCEv2 packet in an Ethernet frame.
//! [`Writer`] writes pcapng blocks; [`Recorder`] passes frames to it from a thread that must not block.
#![forbid(unsafe_code)]

mod erf;
mod frame;
mod reader;
mod recorder;
pub mod roce;
mod writer;

pub use frame::{Direction, Frame, LinkType};
pub use reader::{CaptureError, Reader, Statistics, open};
pub use recorder::{DEFAULT_RING, Recorded, Recorder, RecorderOptions, flush_all};
pub use writer::{InterfaceInfo, PacketInfo, Writer};
