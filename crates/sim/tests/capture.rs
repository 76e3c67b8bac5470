//! Captures: tshark reads them, and so do we; every ICRC is right, and what was lost says so.

mod common;

use common::Two;
use weir_capture::{Direction, open, roce, tshark};
use weir_sim::{Link, Paging, QpSetup};
use weir_transport::Profile;
use weir_wire::{Packet, icrc};

#[test]
fn a_capture_is_what_an_adapter_would_have_written() {
    let dir = tempfile::tempdir().expect("a folder");
    let paths = ["client.pcapng", "server.pcapng"].map(|name| dir.path().join(name));
    let mut two = Two::new(3, Link::FDR.lossy(0.05), Profile::ideal(), [Paging::OnDemand; 2]);
    for (host, path) in two.hosts.into_iter().zip(&paths) {
        two.sim.capture(host, path).expect("a file");
    }
    let qp = two.connect(&QpSetup { timeout: 1, ..QpSetup::default() });
    for n in 0..40 {
        two.read(qp, 2 * n, n * 12_000, 12_000);
        two.write(qp, 2 * n + 1, n * 12_000, 4_097 + n as u32);
    }
    two.run();
    assert_eq!(two.notes.0.len(), 80);
    let total = two.sim.total();
    assert!(total.lost_on_links > 0);
    let frames = two.sim.finish_captures().expect("room on the disk");
    assert_eq!(frames, total.sent() + total.arrived);

    let [mut lost, mut out, mut count] = [0; 3];
    for path in &paths {
        for frame in open(path).expect("a capture") {
            let frame = frame.expect("a frame");
            let datagram = roce::find_udp(&frame.data).expect("UDP");
            let headers = &frame.data[14..14 + 28];
            let (body, crc) = datagram.payload.split_last_chunk::<4>().expect("an ICRC");
            assert_eq!(icrc::compute_framed(headers, body).to_le_bytes(), *crc);
            Packet::parse(datagram.payload).expect("a packet");
            lost += u64::from(frame.comment.is_some_and(|comment| comment.contains("lost")));
            out += u64::from(frame.direction == Some(Direction::Out));
            count += 1;
        }
        if tshark::is_available() {
            let comparison = tshark::compare(path).expect("tshark reads it");
            assert!(comparison.failures.is_empty(), "{}", comparison.failures.join("\n"));
            assert_eq!(comparison.skipped, 0);
        } else {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "tshark is missing: apt install tshark");
            eprintln!("tshark is missing: compared with our own reader only");
        }
    }
    assert_eq!((count, out, lost), (frames, total.sent(), total.lost_on_links));
}
