//! Writes a copy of captures, with comments added to frames.

use crate::block;
use crate::frame::{Frame, LinkType};
use std::io::{self, Write};

/// A pcapng file with the frames of other captures: an interface for each interface and link type of each file.
pub struct Annotated<W> {
    out: W,
    buffer: Vec<u8>,
    interfaces: Vec<(u16, u32, LinkType)>,
}

/// Buffered bytes above which they are written.
const BUFFER: usize = 1 << 18;

impl<W: Write> Annotated<W> {
    /// Starts a file, as written by a program of this name.
    pub fn new(out: W, application: &str) -> Self {
        let mut buffer = Vec::with_capacity(2 * BUFFER);
        block::section_header(&mut buffer, application, "");
        Annotated { out, buffer, interfaces: Vec::new() }
    }

    /// Adds a frame of file number `file`, called `name`: with its own comments and then these.
    pub fn frame(&mut self, file: u16, name: &str, frame: &Frame<'_>, comments: &[String]) -> io::Result<()> {
        let own = (file, frame.interface, frame.link_type);
        let interface = self.interfaces.iter().position(|known| *known == own).unwrap_or_else(|| {
            block::interface(&mut self.buffer, frame.link_type.number(), name, "", 0);
            self.interfaces.push(own);
            self.interfaces.len() - 1
        });
        let all: Vec<String> = frame.comments().map(|own| own.into_owned()).chain(comments.iter().cloned()).collect();
        block::copied_packet(&mut self.buffer, interface as u32, frame, &all);
        if self.buffer.len() >= BUFFER { self.flush() } else { Ok(()) }
    }

    /// Writes what is buffered.
    pub fn flush(&mut self) -> io::Result<()> {
        let outcome = self.out.write_all(&self.buffer).and_then(|()| self.out.flush());
        self.buffer.clear();
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Direction, Reader};
    use std::io::Cursor;

    #[test]
    fn frames_keep_everything_and_get_comments() {
        let mut copy = Annotated::new(Vec::new(), "test");
        let data = [7; 61];
        let mut frame = Frame::new(1, 1_700_000_000_123_456_789, LinkType::Ethernet, &data);
        (frame.orig_len, frame.direction) = (900, Some(Direction::In));
        copy.frame(0, "a.pcap", &frame, &["one".into(), "two".into()]).unwrap();
        let other = Frame::new(1, 5, LinkType::Infiniband, &data[..8]);
        copy.frame(1, "b.pcap", &other, &[]).unwrap();
        copy.frame(0, "a.pcap", &frame, &[]).unwrap();
        copy.flush().unwrap();
        let mut reader = Reader::new(Cursor::new(copy.out)).unwrap();
        let frames: Vec<_> = reader.owned_frames().collect::<Result<_, _>>().unwrap();
        assert_eq!(frames.len(), 3);
        let first = crate::OwnedFrame { comment: Some("one; two".into()), ..frame.to_owned() };
        assert_eq!(frames[0], first);
        assert_eq!(frames[1], crate::OwnedFrame { number: 2, interface: 1, ..other.to_owned() });
        assert_eq!(frames[2], crate::OwnedFrame { number: 3, ..frame.to_owned() });
        // A copy of a copy keeps the comments.
        let mut again = Annotated::new(Vec::new(), "test");
        let mut copied = Annotated::new(Vec::new(), "test");
        copied.frame(0, "a", &frame, &["one".into()]).unwrap();
        copied.flush().unwrap();
        let mut reader = Reader::new(Cursor::new(copied.out)).unwrap();
        again.frame(0, "b", &reader.next_frame().unwrap().unwrap(), &["two".into()]).unwrap();
        again.flush().unwrap();
        let mut reader = Reader::new(Cursor::new(again.out)).unwrap();
        assert_eq!(reader.owned_frames().next().unwrap().unwrap().comment.as_deref(), Some("one; two"));
    }
}
