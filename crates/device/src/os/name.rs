//! Names of sockets in the abstract namespace.

use std::fmt::{Arguments, Write};
use std::ops::Deref;

/// A short name. It is on the stack, because the holder of port 4791 connects to names in its turns.
pub struct Name {
    bytes: [u8; ROOM],
    len: usize,
}

const ROOM: usize = 32;

impl Name {
    /// A name of ASCII.
    ///
    /// # Panics
    /// If it is longer than 32 bytes.
    pub fn new(text: Arguments<'_>) -> Name {
        let mut name = Name { bytes: [0; ROOM], len: 0 };
        name.write_fmt(text).expect("there is room for every name");
        name
    }
}

impl Write for Name {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = self.bytes.get_mut(self.len..self.len + text.len()).ok_or(std::fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

impl Deref for Name {
    type Target = str;
    fn deref(&self) -> &str {
        str::from_utf8(&self.bytes[..self.len]).expect("ASCII was written")
    }
}
