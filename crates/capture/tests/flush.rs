//! What recorders hold can be written although no call ends them: the process is about to die. (A file of its own: it is
//! about all recorders of the process.)

use std::time::Duration;
use weir_capture::{Direction, PacketInfo, Recorder, RecorderOptions, flush_all, open};

#[test]
fn what_was_recorded_can_be_written_without_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["a.pcapng", "b.pcapng"].map(|name| dir.path().join(name));
    let mut recorders = paths.each_ref().map(|path| Recorder::create(path, &RecorderOptions::default()).unwrap());
    for round in 1..=20 {
        for recorder in &mut recorders {
            for i in 0..50 {
                assert!(recorder.record(
                    &PacketInfo { interface: 0, timestamp: i, direction: Direction::Out, comment: "" },
                    &[&[7; 100]]
                ));
            }
        }
        flush_all(|| std::thread::sleep(Duration::from_micros(20)));
        for path in &paths {
            assert_eq!(open(path).unwrap().owned_frames().filter(|frame| frame.is_ok()).count(), 50 * round);
        }
    }
    drop(recorders);
    // Nothing is left to wait for.
    flush_all(|| panic!("a recorder that has ended is waited for"));
}
