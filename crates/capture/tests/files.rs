//! Files that `open` reads from memory: as streams, growing, and cut while they are read.

use std::fs::{self, OpenOptions};
use std::io::{Cursor, Write};
use std::path::Path;
use weir_capture::testing::{Order, Stored, pcap, pcapng};
use weir_capture::{CaptureError, OwnedFrame, Reader, open};

/// A file with so many packets of so many bytes.
fn files(count: usize, len: usize) -> [Vec<u8>; 2] {
    let data: Vec<Vec<u8>> = (0..count).map(|n| vec![n as u8 | 1; len]).collect();
    let time = |n: usize| 1_000_000_000 + n as u64;
    let stored: Vec<_> = data
        .iter()
        .enumerate()
        .map(|(n, data)| Stored { time: time(n), link_type: 1, data, orig_len: data.len() })
        .collect();
    [pcap(Order::Little, true, &stored), pcapng(Order::Big, &stored)]
}

fn all(mut reader: Reader) -> (Vec<OwnedFrame>, Option<CaptureError>) {
    let mut error = None;
    let frames = reader.owned_frames().map_while(|frame| frame.map_err(|why| error = Some(why)).ok()).collect();
    (frames, error)
}

fn write(folder: &Path, bytes: &[u8]) -> std::path::PathBuf {
    let path = folder.join("x.pcap");
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn a_file_has_the_frames_and_the_errors_of_a_stream() {
    let folder = tempfile::tempdir().unwrap();
    for file in files(30, 333) {
        for cut in (0..=file.len()).rev().step_by(11) {
            let path = write(folder.path(), &file[..cut]);
            let read = open(&path).map(all);
            let streamed = Reader::new(Cursor::new(file[..cut].to_vec())).map(all);
            assert_eq!(format!("{read:?}"), format!("{streamed:?}"), "cut at {cut}");
        }
    }
}

#[test]
fn what_is_added_while_a_file_is_read_is_read_too() {
    let folder = tempfile::tempdir().unwrap();
    for file in files(30, 333) {
        let path = write(folder.path(), &file[..file.len() / 2]);
        let mut reader = open(&path).unwrap();
        let first = reader.next_frame().unwrap().unwrap().to_owned();
        OpenOptions::new().append(true).open(&path).unwrap().write_all(&file[file.len() / 2..]).unwrap();
        let (rest, error) = all(reader);
        assert_eq!((first.number, rest.len(), rest[28].number), (1, 29, 30), "{error:?}");
    }
}

#[test]
fn a_file_that_becomes_shorter_ends_with_an_error_and_not_with_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    for (file, cut) in
        files(4000, 3000).into_iter().flat_map(|file| [1 << 20, (1 << 20) + 100].map(|cut| (file.clone(), cut)))
    {
        let path = write(folder.path(), &file);
        let mut reader = open(&path).unwrap();
        reader.next_frame().unwrap().unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(cut).unwrap();
        let (frames, error) = all(reader);
        let Some(CaptureError::Read { offset, source }) = error else { panic!("{error:?}") };
        assert!(offset.abs_diff(cut) < 8192, "{offset}");
        assert!(source.to_string().contains("became shorter"), "{source}");
        // The last ones may be zeros behind the cut.
        assert!(frames.len() > 340 && frames[..340].iter().all(|frame| frame.data.iter().all(|byte| *byte != 0)));
    }
}

#[test]
fn a_file_that_is_cut_in_its_last_page_ends_with_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for file in files(3, 500) {
        let path = write(folder.path(), &file);
        let reader = open(&path).unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(file.len() as u64 - 600).unwrap();
        let (_, error) = all(reader);
        assert!(error.is_some());
    }
}

#[test]
fn a_long_file_needs_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &files(32_000, 4096)[0]);
    let mut reader = open(&path).unwrap();
    let mut most = 0;
    let mut sum = 0;
    let mut at_start = None;
    while let Some(frame) = reader.next_frame().unwrap() {
        sum += frame.data.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        if frame.number % 1000 == 0 {
            let now = mapped_memory();
            most = most.max(now - *at_start.get_or_insert(now));
        }
    }
    assert!(sum > 0 && reader.position() > 120 << 20);
    // Other tests of this program map files of 12 MiB.
    assert!(most < 48 << 20, "{most} of 128 MiB");
}

/// Bytes of files in this process's memory.
fn mapped_memory() -> i64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let number = |line: &str| line.trim().trim_end_matches(" kB").parse::<i64>().unwrap() * 1024;
    ["RssFile:", "RssShmem:"]
        .iter()
        .filter_map(|name| status.lines().find_map(|l| l.strip_prefix(name)).map(number))
        .sum()
}
