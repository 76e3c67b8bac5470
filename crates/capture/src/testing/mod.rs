//! For tests and fuzzers, of this crate and of others: packets of every opcode, frames of every encapsulation, files
//! of both formats, and the bodies of fuzz targets.

mod carried;
mod files;
mod fuzz;
mod fuzz_parse;
mod links;
mod packets;

pub use carried::Carried;
pub use files::{Order, Stored, pcap, pcapng};
pub use fuzz::{find as fuzz_find, read as fuzz_read};
pub use fuzz_parse::parse as fuzz_parse;
pub use links::{SLOTS, behind, edge_header, frame_of};
pub use packets::{opcodes, transport};
