//! A recorder with a history writes nothing until a mark, and then what came before it and soon after it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weir_capture::{Direction, HistorySize, OwnedFrame, PacketInfo, Recorder, RecorderOptions, flush_all, open};

const SIZE: u64 = 128 << 10;
const FRAME: usize = 1000;

fn size() -> HistorySize {
    SIZE.to_string().parse().unwrap()
}

fn remember(path: &Path) -> Recorder {
    let path = path.to_owned();
    Recorder::remember(Box::new(move || File::create(&path)), size(), &RecorderOptions::default()).unwrap()
}

fn record(recorder: &mut Recorder, frames: std::ops::Range<u64>) {
    for n in frames {
        let info = PacketInfo { interface: 0, timestamp: n, direction: Direction::In, comment: "" };
        assert!(recorder.record(&info, &[&[n as u8; FRAME]]));
    }
}

fn read(path: &Path) -> Vec<OwnedFrame> {
    open(path).unwrap().owned_frames().collect::<Result<_, _>>().unwrap()
}

/// Waits until a file holds what `is_there` looks for.
fn wait_for(path: &Path, is_there: impl Fn(&[OwnedFrame]) -> bool) -> Vec<OwnedFrame> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let frames = if path.exists() {
            open(path).map_or(vec![], |mut file| file.owned_frames().map_while(Result::ok).collect())
        } else {
            vec![]
        };
        if is_there(&frames) {
            return frames;
        }
        assert!(Instant::now() < deadline, "{} frames after 10 s", frames.len());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn file(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("a.pcapng")
}

#[test]
fn without_a_mark_there_is_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut recorder = remember(&file(&folder));
    record(&mut recorder, 0..5000);
    flush_all(|| std::thread::sleep(Duration::from_micros(20)));
    let recorded = recorder.finish().unwrap();
    assert_eq!((recorded.written, recorded.dropped), (0, 0));
    assert!(!file(&folder).exists());
}

#[test]
fn a_mark_writes_what_the_ring_holds_and_what_follows() {
    let folder = tempfile::tempdir().unwrap();
    let mut recorder = remember(&file(&folder));
    record(&mut recorder, 0..5000);
    recorder.mark(&format_args!("QP {:#x} stalls", 7));
    record(&mut recorder, 5000..5050);
    // What the process has at its end is written, too.
    flush_all(|| std::thread::sleep(Duration::from_micros(20)));
    let frames = read(&file(&folder));
    let times: Vec<u64> = frames.iter().map(|frame| frame.timestamp).collect();
    let first = times[0];
    assert_eq!(times, (first..5050).collect::<Vec<_>>(), "all from the oldest to the newest");
    // A block has 44 bytes around the frame.
    let kept = SIZE / (FRAME as u64 + 44);
    assert!((kept - 1..=kept).contains(&(5000 - first)), "{} before the mark", 5000 - first);
    for frame in &frames {
        assert_eq!(frame.data, [frame.timestamp as u8; FRAME]);
        let comment = (frame.timestamp == 5000).then_some("QP 0x7 stalls");
        assert_eq!(frame.comment.as_deref(), comment, "frame {}", frame.timestamp);
    }
    let bytes = std::fs::read(file(&folder)).unwrap();
    let text = b" UTC: QP 0x7 stalls";
    let at = bytes.windows(text.len()).position(|part| part == text);
    assert!(at.is_some_and(|at| at < 100), "the section's header says it");
    let recorded = recorder.finish().unwrap();
    assert_eq!((recorded.written, recorded.dropped), (frames.len() as u64, 0));
}

#[test]
fn an_excerpt_ends_after_a_second_and_the_next_mark_begins_another() {
    let folder = tempfile::tempdir().unwrap();
    let mut recorder = remember(&file(&folder));
    record(&mut recorder, 0..10);
    recorder.mark(&"first");
    record(&mut recorder, 10..20);
    wait_for(&file(&folder), |frames| frames.len() == 20);
    std::thread::sleep(Duration::from_millis(1300));
    record(&mut recorder, 20..2000);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(read(&file(&folder)).len(), 20, "frames after the excerpt stay in memory");
    recorder.mark(&"second");
    record(&mut recorder, 2000..2001);
    let last = |frames: &[OwnedFrame]| frames.last().is_some_and(|frame| frame.timestamp == 2000);
    let frames = wait_for(&file(&folder), last);
    let second: Vec<u64> = frames[20..].iter().map(|frame| frame.timestamp).collect();
    assert_eq!(second, (second[0]..2001).collect::<Vec<_>>());
    assert!((100..=130).contains(&second.len()), "{} frames of the second excerpt", second.len());
    assert_eq!(frames.last().unwrap().comment.as_deref(), Some("second"));
}

#[test]
fn an_excerpt_has_as_many_bytes_after_the_mark_as_before_and_a_file_eight_excerpts() {
    let folder = tempfile::tempdir().unwrap();
    let mut recorder = remember(&file(&folder));
    let (mut n, mut written) = (0, 0);
    for excerpt in 1..=10 {
        let wanted = n + 4000;
        recorder.mark(&format_args!("mark {excerpt}"));
        while n < wanted {
            let info = PacketInfo { interface: 0, timestamp: n, direction: Direction::In, comment: "" };
            recorder.record(&info, &[&[0; FRAME]]);
            n += 1;
            std::thread::sleep(Duration::from_micros(20));
        }
        let now = recorder.recorded().written;
        let most = 2 * SIZE / (FRAME as u64 + 44) + 2;
        let grew = now - written;
        assert!(
            if excerpt <= 8 { (100..=most).contains(&grew) } else { grew == 0 },
            "excerpt {excerpt}: {grew} frames"
        );
        written = now;
    }
    assert_eq!(recorder.finish().unwrap().written, written);
    let marks: Vec<String> = read(&file(&folder)).into_iter().filter_map(|frame| frame.comment).collect();
    assert_eq!(marks, (1..=8).map(|n| format!("mark {n}")).collect::<Vec<_>>());
}

#[test]
fn a_file_that_cannot_be_opened_ends_the_history() {
    let mut recorder =
        Recorder::remember(Box::new(|| Err(io::ErrorKind::NotFound.into())), size(), &RecorderOptions::default())
            .unwrap();
    record(&mut recorder, 0..100);
    recorder.mark(&"lost");
    assert_eq!(recorder.finish().unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(recorder.recorded().written, 0);
}
