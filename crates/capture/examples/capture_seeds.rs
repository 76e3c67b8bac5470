//! Writes seeds for the fuzz targets `capture` and `rdma_packet`: files of all formats, frames of all encapsulations.
//! `capture_seeds CORPUS`

use std::io::Write;
use std::path::PathBuf;
use weir_capture::testing::{Carried, Order, Stored, pcap, pcapng, transport};
use weir_wire::Opcode;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let corpus = PathBuf::from(std::env::args_os().nth(1).ok_or("usage: capture_seeds CORPUS")?);
    let [files, packets] = ["capture", "rdma_packet"].map(|name| corpus.join(name));
    std::fs::create_dir_all(&files)?;
    std::fs::create_dir_all(&packets)?;
    let frames = Carried::ALL.map(|carried| (carried, carried.frame(&transport(Opcode(0x0b), 5))));
    for (carried, frame) in &frames {
        std::fs::write(packets.join(format!("{carried:?}").to_lowercase()), frame)?;
    }
    let mut all = Vec::new();
    for (carried, data) in &frames {
        all.push(Stored { time: 7_000_000_008, link_type: carried.link_type(), data, orig_len: data.len() });
    }
    for order in [Order::Little, Order::Big] {
        let name = |kind: &str| files.join(format!("{kind}-{order:?}").to_lowercase());
        std::fs::write(name("blocks"), pcapng(order, &all))?;
        std::fs::write(name("cooked"), pcap(order, true, &all[10..13]))?;
        std::fs::write(name("erf"), pcap(order, false, &all[15..18]))?;
    }
    let file = pcapng(Order::Little, &all);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(&file)?;
    std::fs::write(files.join("gzip"), gzip.finish()?)?;
    let zstd = ruzstd::encoding::compress_to_vec(&file[..], ruzstd::encoding::CompressionLevel::Fastest);
    std::fs::write(files.join("zstd"), zstd)?;
    Ok(())
}
