//! Writes seeds for the fuzz target `parse`: the first packet of each opcode in the given captures.
//! `fuzz_seeds FOLDER CAPTURE…`

use std::collections::BTreeSet;
use std::path::PathBuf;
use weir_capture::roce;
use weir_wire::Packet;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1);
    let folder = PathBuf::from(args.next().ok_or("usage: fuzz_seeds FOLDER CAPTURE…")?);
    std::fs::create_dir_all(&folder)?;
    let mut seen = BTreeSet::new();
    for path in args {
        for frame in weir_capture::open(path)?.owned_frames() {
            let frame = frame?;
            let Some(datagram) = roce::find(&frame.data) else { continue };
            let Ok(packet) = Packet::parse(datagram.payload) else { continue };
            if seen.insert(packet.headers.bth.opcode.0) {
                let name = format!("opcode-{:02x}", packet.headers.bth.opcode.0);
                std::fs::write(folder.join(name), datagram.payload)?;
            }
        }
    }
    println!("{} seeds", seen.len());
    Ok(())
}
