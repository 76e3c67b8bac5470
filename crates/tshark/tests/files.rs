//! tshark and Weir parse every packet of the fixtures, and of the files that Weir writes, alike.

use std::path::{Path, PathBuf};
use weir_capture::{Direction, PacketInfo, RecordedInterface, Recorder, RecorderOptions, open};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/captures").join(name)
}

fn assert_all_pass(path: &Path, frames: usize) {
    let comparison = weir_tshark::compare(path).unwrap();
    assert!(comparison.failures.is_empty(), "{}", comparison.failures.join("\n"));
    assert_eq!((comparison.passed, comparison.skipped), (frames, 0));
}

#[test]
#[ignore = "needs tshark"]
fn tshark_agrees_about_the_fixtures() {
    for name in ["rxe-verbs-1024.pcap", "rxe-verbs-gid0-ipv6.pcap", "rxe-hostpeer.pcap"] {
        assert_all_pass(&fixture(name), open(fixture(name)).unwrap().owned_frames().count());
    }
}

#[test]
#[ignore = "needs tshark"]
fn tshark_agrees_about_recorded_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("copy.pcapng");
    let interfaces = &[RecordedInterface { name: "eth0", mac: None }];
    let mut recorder = Recorder::create(&path, &RecorderOptions { interfaces, ..Default::default() }).unwrap();
    let mut count = 0;
    for frame in open(fixture("rxe-verbs-1024.pcap")).unwrap().owned_frames() {
        let frame = frame.unwrap();
        let info =
            PacketInfo { interface: 0, timestamp: frame.timestamp, direction: Direction::Out, comment: "a remark" };
        assert!(recorder.record(&info, &[&frame.data]));
        count += 1;
    }
    recorder.finish().unwrap();
    assert_all_pass(&path, count);
}

#[test]
#[ignore = "needs tshark"]
fn a_difference_is_reported() {
    // An opcode that does not exist, with a good ICRC: a packet to tshark, but not to Weir.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("odd.pcapng");
    let mut recorder = Recorder::create(&path, &RecorderOptions::default()).unwrap();
    let mut data = open(fixture("rxe-verbs-1024.pcap")).unwrap().owned_frames().nth(1).unwrap().unwrap().data;
    data[14 + 28] = 0x35;
    let (head, icrc) = data.split_last_chunk_mut::<4>().unwrap();
    *icrc = weir_wire::icrc::compute_framed(&head[14..14 + 28], &head[14 + 28..]).to_le_bytes();
    let info = PacketInfo { interface: 0, timestamp: 0, direction: Direction::In, comment: "" };
    recorder.record(&info, &[&data]);
    // The same with a wrong ICRC is skipped.
    data[14 + 28] = 0x38;
    recorder.record(&info, &[&data]);
    recorder.finish().unwrap();
    let comparison = weir_tshark::compare(&path).unwrap();
    assert_eq!((comparison.passed, comparison.skipped), (0, 1));
    assert_eq!(comparison.failures, ["frame 1: no wrong ICRC, but unknown opcode 0x35"]);
}
