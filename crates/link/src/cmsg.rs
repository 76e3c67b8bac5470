//! Control messages of a datagram, written to and read from plain bytes.

const HEADER: usize = size_of::<libc::cmsghdr>();

const fn align(len: usize) -> usize {
    len.next_multiple_of(size_of::<usize>())
}

/// Appends control messages to a buffer (aligned as `cmsghdr`).
pub struct Writer<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    /// Writes control messages to `out`, from its begin.
    pub fn new(out: &'a mut [u8]) -> Self {
        Writer { out, len: 0 }
    }

    /// # Panics
    /// If the buffer is too small.
    pub fn push<T: Copy>(&mut self, level: i32, kind: i32, data: &T) {
        let len = HEADER + size_of::<T>();
        let message = &mut self.out[self.len..self.len + align(len)];
        message[..8].copy_from_slice(&len.to_ne_bytes());
        message[8..12].copy_from_slice(&level.to_ne_bytes());
        message[12..16].copy_from_slice(&kind.to_ne_bytes());
        // SAFETY: T is plain system data without padding, read as bytes; the slice has the size of T.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const *data).cast::<u8>(), size_of::<T>()) };
        message[HEADER..len].copy_from_slice(bytes);
        self.len += align(len);
    }

    /// Bytes written, with padding: the value of `msg_controllen`.
    pub fn len(&self) -> usize {
        self.len
    }
}

/// Level, type and data of each control message.
pub fn read(mut bytes: &[u8]) -> impl Iterator<Item = (i32, i32, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from_ne_bytes(bytes.get(..8)?.try_into().ok()?);
        let level = i32::from_ne_bytes(bytes.get(8..12)?.try_into().ok()?);
        let kind = i32::from_ne_bytes(bytes.get(12..16)?.try_into().ok()?);
        let data = bytes.get(HEADER..len)?;
        bytes = &bytes[align(len).min(bytes.len())..];
        Some((level, kind, data))
    })
}
