//! Captures: tshark and Weir's reader agree on them, every ICRC is correct, and lost packets have a comment.

mod common;

use common::Two;
use std::path::{Path, PathBuf};
use weir_capture::{Direction, open, roce};
use weir_sim::{Counts, Link, Paging, QpSetup};
use weir_transport::Profile;
use weir_wire::{Packet, icrc};

/// Captures of both hosts, the number of frames in them, and the simulator's counts.
fn captured(folder: &Path) -> ([PathBuf; 2], u64, Counts) {
    let paths = ["client.pcapng", "server.pcapng"].map(|name| folder.join(name));
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
    (paths, frames, total)
}

#[test]
fn a_capture_has_all_frames_and_correct_icrcs() {
    let dir = tempfile::tempdir().expect("a folder");
    let (paths, frames, total) = captured(dir.path());
    let [mut lost, mut out, mut count] = [0; 3];
    for path in &paths {
        for frame in open(path).expect("a capture").owned_frames() {
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
    }
    assert_eq!((count, out, lost), (frames, total.sent(), total.lost_on_links));
}

#[test]
#[ignore = "needs tshark"]
fn tshark_agrees_with_weirs_reader() {
    let dir = tempfile::tempdir().expect("a folder");
    let (paths, frames, _) = captured(dir.path());
    let mut passed = 0;
    for path in &paths {
        let comparison = weir_tshark::compare(path).expect("tshark reads it");
        assert!(comparison.failures.is_empty(), "{}", comparison.failures.join("\n"));
        assert_eq!(comparison.skipped, 0);
        passed += comparison.passed as u64;
    }
    assert_eq!(passed, frames);
}
