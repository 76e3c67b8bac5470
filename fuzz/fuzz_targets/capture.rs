//! Any bytes as a capture file: an error, or frames that are no longer than the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::io::Cursor;
use weir_capture::Reader;

fuzz_target!(|bytes: &[u8]| {
    let Ok(reader) = Reader::new(Cursor::new(bytes.to_vec())) else { return };
    let mut frames = 0;
    for frame in reader.flatten() {
        assert!(frame.data.len() <= bytes.len());
        frames += 1;
    }
    assert!(frames <= bytes.len() / 12);
});
