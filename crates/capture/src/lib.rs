//! Capture files: reading pcap, pcapng and ERF; writing pcapng, also from a data path that must not block.
//!
//! [`open`] returns the frames of a file as a [`Reader`]; [`roce`] finds the RoCEv2 packet in an Ethernet frame.
//! [`Writer`] writes pcapng blocks; [`Recorder`] takes frames from a thread that must not block, and writes all of
//! them, or those around a stall.
#![forbid(unsafe_code)]

mod amount;
mod block;
mod drain;
mod erf;
mod frame;
mod history;
mod reader;
mod recorder;
pub mod roce;
mod shared;
mod wake;
mod writer;

pub use amount::{AmountError, HistorySize, Snap};
pub use block::{InterfaceInfo, PacketInfo};
pub use drain::Open;
pub use frame::{Direction, Frame, LinkType};
pub use reader::{CaptureError, Reader, Statistics, open};
pub use recorder::{DEFAULT_RING, Recorded, Recorder, RecorderOptions, Spawn};
pub use shared::flush_all;
pub use writer::Writer;
