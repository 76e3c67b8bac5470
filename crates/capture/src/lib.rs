//! Capture files: reading pcap, pcapng and ERF; writing pcapng, from a data path too.
//!
//! [`open`] gives the frames of a file as a [`Reader`]; [`roce`] finds the RoCEv2 packet in an Ethernet frame.
//! [`Writer`] writes pcapng blocks; [`Recorder`] feeds it from a thread that must never wait.
//! [`tshark`] compares our reading of a file with tshark's, for tests.
#![forbid(unsafe_code)]

mod erf;
mod frame;
mod reader;
mod recorder;
pub mod roce;
pub mod tshark;
mod writer;

pub use frame::{Direction, Frame, LinkType};
pub use reader::{CaptureError, Reader, Statistics, open};
pub use recorder::{DEFAULT_RING, Recorded, Recorder, RecorderOptions};
pub use writer::{InterfaceInfo, PacketInfo, Writer};
