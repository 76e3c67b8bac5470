//! Files of both formats, compressed or not, cut, and from pipes.

use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::{self, Cursor, Read, Write};
use std::process::{Command, Stdio};
use weir_capture::testing::{Order, Stored, pcap, pcapng};
use weir_capture::{CaptureError, OwnedFrame, Reader};

const COUNT: usize = 40;

/// The data of the packets in the files, and their times.
fn packets() -> Vec<(u64, Vec<u8>)> {
    (0..COUNT).map(|n| (1_000_000_000 + n as u64 * 1_001_000, vec![n as u8; 60 + n * n])).collect()
}

/// The same packets in all formats and byte orders.
fn files() -> Vec<Vec<u8>> {
    let packets = packets();
    let mut stored = [Vec::new(), Vec::new()];
    for (time, data) in &packets {
        for (stored, divisor) in stored.iter_mut().zip([1, 1000]) {
            stored.push(Stored { time: time / divisor, link_type: 1, data, orig_len: data.len() });
        }
    }
    let [nanoseconds, microseconds] = stored;
    [Order::Little, Order::Big]
        .into_iter()
        .flat_map(|order| {
            [pcap(order, true, &nanoseconds), pcap(order, false, &microseconds), pcapng(order, &nanoseconds)]
        })
        .collect()
}

/// All frames, and why no more follow.
fn read(source: impl Read + Send + 'static) -> (Vec<OwnedFrame>, Option<CaptureError>) {
    let mut reader = match Reader::new(source) {
        Ok(reader) => reader,
        Err(error) => return (vec![], Some(error)),
    };
    let mut frames = Vec::new();
    for frame in reader.owned_frames() {
        match frame {
            Ok(frame) => frames.push(frame),
            Err(error) => return (frames, Some(error)),
        }
    }
    (frames, None)
}

fn assert_all(frames: &[OwnedFrame]) {
    let expected = packets();
    assert_eq!(frames.len(), expected.len());
    for ((number, frame), (time, data)) in (1..).zip(frames).zip(&expected) {
        assert_eq!((frame.number, frame.timestamp, &frame.data), (number, *time, data));
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

/// Returns a byte for each read.
struct Slow(Cursor<Vec<u8>>);

impl Read for Slow {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = buffer.len().min(1);
        self.0.read(&mut buffer[..len])
    }
}

#[test]
fn both_formats_byte_orders_and_units_compressed_or_not() {
    for file in files() {
        for bytes in [file.clone(), gzip(&file), zstd(&file)] {
            for source in
                [Box::new(Cursor::new(bytes.clone())) as Box<dyn Read + Send>, Box::new(Slow(Cursor::new(bytes)))]
            {
                let (frames, error) = read(source);
                assert!(error.is_none(), "{error:?}");
                assert_all(&frames);
            }
        }
    }
}

#[test]
fn compressed_files_of_several_members_are_read_to_their_end() {
    for file in files() {
        let (front, back) = file.split_at(file.len() / 3);
        // An empty frame without contents, as parallel compressors write it.
        let skipped = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
        for bytes in [
            [gzip(front), gzip(back)].concat(),
            [zstd(front), zstd(back)].concat(),
            [&skipped[..], &zstd(front), &skipped, &zstd(back)].concat(),
        ] {
            let (frames, error) = read(Cursor::new(bytes));
            assert!(error.is_none(), "{error:?}");
            assert_all(&frames);
        }
    }
}

#[test]
fn a_cut_file_has_all_frames_before_the_cut_and_an_error_that_says_where() {
    for file in files() {
        let (frames, _) = read(Cursor::new(file.clone()));
        for cut in (0..file.len()).step_by(7) {
            let (before, error) = read(Cursor::new(file[..cut].to_vec()));
            assert_eq!(before, frames[..before.len()]);
            match error {
                Some(CaptureError::Truncated { offset }) => assert!(offset as usize <= cut),
                Some(CaptureError::NotACapture { .. }) => assert!(cut < 4, "{cut}"),
                Some(other) => panic!("cut at {cut}: {other}"),
                // Between two records.
                None => assert_eq!(read(Cursor::new(file[..cut + 1].to_vec())).0.len(), before.len()),
            }
        }
        // All complete frames are delivered: one byte less loses the last frame only.
        let (before, error) = read(Cursor::new(file[..file.len() - 1].to_vec()));
        assert_eq!(before.len(), COUNT - 1);
        assert!(matches!(error, Some(CaptureError::Truncated { .. })));
    }
}

#[test]
fn a_cut_compressed_file_has_the_frames_before_the_cut() {
    for file in files() {
        let halves = file.split_at(file.len() / 2);
        for whole in [[gzip(halves.0), gzip(halves.1)].concat(), [zstd(halves.0), zstd(halves.1)].concat()] {
            let (frames, error) = read(Cursor::new(whole[..whole.len() * 7 / 8].to_vec()));
            assert!(frames.len() >= COUNT / 2 && frames.len() < COUNT, "{}", frames.len());
            assert!(matches!(error, Some(CaptureError::Truncated { .. })), "{error:?}");
            let mut damaged = whole.clone();
            let at = whole.len() * 3 / 4;
            damaged[at..at + 16].fill(0xff);
            let (_, error) = read(Cursor::new(damaged));
            assert!(error.is_some());
        }
    }
}

#[test]
fn a_source_that_fails_is_an_error_with_its_offset_and_its_reason() {
    struct Failing(Cursor<Vec<u8>>);
    impl Read for Failing {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.read(buffer)? {
                0 => Err(io::Error::other("the disk is gone")),
                count => Ok(count),
            }
        }
    }
    for file in files() {
        let (frames, error) = read(Failing(Cursor::new(file.clone())));
        assert_all(&frames);
        let error = error.unwrap();
        assert!(matches!(error, CaptureError::Read { offset, .. } if offset == file.len() as u64), "{error}");
        assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "the disk is gone");
    }
    let error = read(Failing(Cursor::new(vec![]))).1.unwrap();
    assert!(matches!(error, CaptureError::Read { offset: 0, .. }), "{error}");
}

#[test]
fn the_position_is_that_in_the_compressed_file() {
    for file in files() {
        for bytes in [file.clone(), gzip(&file), zstd(&file)] {
            let mut reader = Reader::new(Cursor::new(bytes.clone())).unwrap();
            assert_eq!(reader.owned_frames().count(), COUNT);
            assert_eq!(reader.position(), bytes.len() as u64);
        }
    }
}

#[test]
fn a_hostile_length_needs_no_more_memory_than_a_record_may_have() {
    let packet = [Stored { time: 0, link_type: 1, data: &[0; 60], orig_len: 60 }];
    for order in [Order::Little, Order::Big] {
        let put = |file: &mut Vec<u8>, at: usize, value: u32| {
            let bytes = if order == Order::Little { value.to_le_bytes() } else { value.to_be_bytes() };
            file[at..at + 4].copy_from_slice(&bytes);
        };
        for length in [1 << 25, u32::MAX - 3, u32::MAX] {
            let mut classic = pcap(order, true, &packet);
            put(&mut classic, 24 + 8, length);
            let mut blocks = pcapng(order, &packet);
            let block = blocks.len() - 60 - 32;
            put(&mut blocks, block + 4, length);
            for (file, at) in [(classic, 24), (blocks, block)] {
                let error = read(Cursor::new(file)).1.unwrap();
                assert!(matches!(error, CaptureError::Corrupt { offset, .. } if offset == at as u64), "{error}");
            }
        }
    }
}

#[test]
fn blocks_that_wireshark_numbers_count_as_frames() {
    let packet = [Stored { time: 0, link_type: 1, data: &[0; 60], orig_len: 60 }];
    let file = pcapng(Order::Little, &packet);
    let packet_at = file.len() - 60 - 32;
    let block = |kind: u32| [&kind.to_le_bytes()[..], &[16, 0, 0, 0], &[0; 4], &[16, 0, 0, 0]].concat();
    for (kind, number) in [(9, 2), (0xbad, 2), (0x4000_0bad, 2), (0x204, 2), (4, 1), (10, 1), (0x7777, 1)] {
        let bytes = [&file[..packet_at], &block(kind), &file[packet_at..]].concat();
        let (frames, error) = read(Cursor::new(bytes));
        assert!(error.is_none());
        assert_eq!(frames[0].number, number, "block type {kind:#x}");
    }
}

/// No test by itself: it reads the standard input that `standard_input_is_read_as_a_pipe_brings_it` gives it.
#[test]
#[ignore = "another test starts it"]
fn reader_of_standard_input() {
    let mut reader = weir_capture::open("-").unwrap();
    for frame in reader.owned_frames() {
        eprintln!("frame {}", frame.unwrap().number);
    }
}

#[test]
fn standard_input_is_read_as_a_pipe_brings_it() {
    let file = files().pop().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "reader_of_standard_input", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = io::BufRead::lines(io::BufReader::new(child.stderr.take().unwrap()));
    // The first frame comes before the file ends.
    stdin.write_all(&file[..file.len() / 2]).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "frame 1");
    stdin.write_all(&file[file.len() / 2..]).unwrap();
    drop(stdin);
    assert_eq!(lines.filter(|line| line.as_ref().is_ok_and(|line| line.starts_with("frame"))).count(), COUNT - 1);
    assert!(child.wait().unwrap().success());
}
