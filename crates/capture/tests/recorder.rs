//! The recorder does not block, counts all dropped frames, and a killed process leaves a readable file.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use weir_capture::{Direction, OwnedFrame, PacketInfo, RecordedInterface, Recorder, RecorderOptions, Statistics, open};

const FILE_OF_THE_VICTIM: &str = "WEIR_TEST_RECORD_UNTIL_KILLED";

fn info(timestamp: u64, comment: &str) -> PacketInfo<'_> {
    PacketInfo { interface: 0, timestamp, direction: Direction::Out, comment }
}

fn read(path: &Path) -> (Vec<OwnedFrame>, Statistics) {
    let mut reader = open(path).unwrap();
    let frames = reader.owned_frames().collect::<Result<_, _>>().unwrap();
    (frames, reader.statistics())
}

#[test]
fn all_that_fits_is_written_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pcapng");
    // Frames of many sizes wrap around the small ring at many offsets.
    let interfaces = &[RecordedInterface { name: "lo", mac: None }];
    let options = RecorderOptions { ring: 20_000, interfaces, ..Default::default() };
    let mut recorder = Recorder::create(&path, &options).unwrap();
    let bytes: Vec<u8> = (0..5000).map(|n| n as u8).collect();
    let mut expected = Vec::new();
    for i in 0..3000u64 {
        let (front, back) = (&bytes[..(i * 37 % 300) as usize], &bytes[..(i * 91 % 5000) as usize]);
        let comment = if i % 5 == 0 { "fifth" } else { "" };
        while !recorder.record(&info(i, comment), &[front, back]) {
            std::thread::sleep(Duration::from_micros(100));
        }
        expected.push((i, [front, back].concat(), comment));
    }
    let recorded = recorder.finish().unwrap();
    assert_eq!(recorded.written, 3000);
    let (frames, statistics) = read(&path);
    assert_eq!(frames.len(), expected.len());
    for (frame, (timestamp, data, comment)) in frames.iter().zip(&expected) {
        assert_eq!((frame.timestamp, &frame.data), (*timestamp, data));
        assert_eq!(frame.comment.as_deref().unwrap_or_default(), *comment);
    }
    assert_eq!(statistics.received, Some(recorded.written + recorded.dropped));
    assert_eq!(statistics.dropped, Some(recorded.dropped));
}

#[test]
fn frames_beyond_the_ring_are_counted_without_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pcapng");
    let mut recorder = Recorder::create(&path, &RecorderOptions { ring: 1 << 16, ..Default::default() }).unwrap();
    let frame = [7; 9000];
    let mut taken = 0;
    for i in 0..20_000 {
        taken += u64::from(recorder.record(&info(i, ""), &[&frame]));
    }
    // This frame is larger than the ring.
    assert!(!recorder.record(&info(0, ""), &[&[0; 1 << 16]]));
    let recorded = recorder.finish().unwrap();
    assert_eq!(recorded.written, taken);
    assert_eq!(recorded.dropped, 20_001 - taken);
    assert!(recorded.dropped > 1, "a ring of seven frames cannot hold all");
    let (frames, statistics) = read(&path);
    assert_eq!(frames.len() as u64, taken);
    assert_eq!(statistics.dropped, Some(recorded.dropped));
}

#[test]
fn frames_reach_the_file_within_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pcapng");
    let mut recorder = Recorder::create(&path, &RecorderOptions::default()).unwrap();
    for i in 1..=3 {
        // Frames 1 and 3 come after a pause, frame 2 directly after frame 1.
        std::thread::sleep(Duration::from_millis(if i == 2 { 0 } else { 150 }));
        recorder.record(&info(i, ""), &[b"frame"]);
        let deadline = Instant::now() + Duration::from_secs(5);
        while read(&path).0.len() < i as usize {
            assert!(Instant::now() < deadline, "frame {i} is not in the file");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_file_that_cannot_be_created_is_an_error() {
    assert!(Recorder::create(Path::new("/nonexistent/a.pcapng"), &RecorderOptions::default()).is_err());
    if Path::new("/dev/full").exists() {
        assert!(Recorder::create(Path::new("/dev/full"), &RecorderOptions::default()).is_err());
    }
}

/// Unmounts when dropped.
struct Mount<'a>(&'a Path);

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
#[ignore = "needs root"]
fn a_full_disk_leaves_a_readable_file_and_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(dir.path()).output().unwrap();
    assert!(mount.status.success(), "{}", String::from_utf8_lossy(&mount.stderr));
    let _mount = Mount(dir.path());
    let path = dir.path().join("a.pcapng");
    let mut recorder = Recorder::create(&path, &RecorderOptions::default()).unwrap();
    for i in 0..1000 {
        assert!(recorder.record(&info(i, ""), &[&[i as u8; 3000]]));
    }
    assert_eq!(recorder.finish().unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    let recorded = recorder.recorded();
    assert_eq!(recorded.written + recorded.dropped, 1000);
    let (frames, _) = read(&path);
    assert!(frames.len() as u64 == recorded.written && frames.len() > 100);
    assert!((0..).zip(&frames).all(|(i, frame)| frame.timestamp == i));
}

/// No test by itself: the process that `a_killed_process_leaves_a_readable_file` kills.
#[test]
#[ignore = "another test starts it"]
fn victim() {
    let path = std::env::var_os(FILE_OF_THE_VICTIM).expect("another test starts this one, with this variable");
    let mut recorder = Recorder::create(Path::new(&path), &RecorderOptions::default()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut i = 0;
    while Instant::now() < deadline {
        recorder.record(&info(i, ""), &[&[i as u8; 1500]]);
        i += 1;
        std::thread::sleep(Duration::from_micros(20));
    }
}

#[test]
fn a_killed_process_leaves_a_readable_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pcapng");
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "victim", "--nocapture"])
        .env(FILE_OF_THE_VICTIM, &path)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(15);
    while std::fs::metadata(&path).map_or(0, |file| file.len()) < 600_000 {
        assert!(Instant::now() < deadline, "nothing is written");
        std::thread::sleep(Duration::from_millis(20));
    }
    victim.kill().unwrap();
    victim.wait().unwrap();
    let (frames, _) = read(&path);
    assert!(frames.len() > 100);
    for (i, frame) in frames.iter().enumerate() {
        assert_eq!(frame.data, [frame.timestamp as u8; 1500], "frame {i}");
    }
}
