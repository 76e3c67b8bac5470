//! Descriptors in a process in which a program may close any number, and use it for a file of its own.

use std::io;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, RawFd};

/// What the process knows of the descriptors of a recorder.
#[derive(Clone, Copy, Debug)]
pub struct Descriptors {
    /// Called after a descriptor was opened.
    pub opened: fn(RawFd),
    /// Called before it is closed. False: the number stands for another file, and must not be closed.
    pub closes: fn(RawFd) -> bool,
    /// Whether the number still stands for the same file. Called from signal handlers too.
    pub is_own: fn(RawFd) -> bool,
}

impl Default for Descriptors {
    /// For programs that close only what they have opened.
    fn default() -> Self {
        Descriptors { opened: |_| (), closes: |_| true, is_own: |_| true }
    }
}

/// A file or a socket that is used and closed only if the number still stands for it.
pub struct Kept<T: AsRawFd> {
    file: ManuallyDrop<T>,
    descriptors: Descriptors,
}

impl<T: AsRawFd> Kept<T> {
    pub fn new(file: T, descriptors: Descriptors) -> Kept<T> {
        (descriptors.opened)(file.as_raw_fd());
        Kept { file: ManuallyDrop::new(file), descriptors }
    }

    /// False if the program has closed the descriptor. Allocates nothing: a signal handler may ask.
    pub fn is_own(&self) -> bool {
        (self.descriptors.is_own)(self.file.as_raw_fd())
    }

    /// [`is_own`](Self::is_own) with an error for the log, which allocates.
    pub fn check(&self) -> io::Result<()> {
        match self.is_own() {
            true => Ok(()),
            false => Err(io::Error::other("the program has closed the descriptor")),
        }
    }
}

impl<T: AsRawFd> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.file
    }
}

impl<T: AsRawFd> DerefMut for Kept<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.file
    }
}

impl<T: AsRawFd> Drop for Kept<T> {
    #[allow(unsafe_code)] // It may not be dropped where the number stands for another file.
    fn drop(&mut self) {
        if (self.descriptors.closes)(self.file.as_raw_fd()) {
            // SAFETY: dropped once, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_number_of_another_file_is_neither_used_nor_closed() {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        let lost = Descriptors { opened: |_| (), closes: |_| false, is_own: |_| false };
        let kept = Kept::new(writer, lost);
        assert!(!kept.is_own() && kept.check().is_err());
        let number = kept.as_raw_fd();
        drop(kept);
        reader.set_nonblocking(true).unwrap();
        assert_eq!(reader.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock, "the other end is open");
        #[allow(unsafe_code)] // The drop has left the descriptor open, and only its number is known.
        // SAFETY: the descriptor is open, and nothing else owns it now.
        let again: OwnedFd = unsafe { std::os::fd::FromRawFd::from_raw_fd(number) };
        let kept = Kept::new(again, Descriptors::default());
        assert!(kept.is_own() && kept.check().is_ok());
        drop(kept);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "closed");
    }
}
