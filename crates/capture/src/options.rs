//! Byte order, and the options of pcapng blocks.

/// The byte order of a file or section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Endian {
    #[default]
    Little,
    Big,
}

/// The options of a block, as an iterator. It ends at the first damaged one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options<'a> {
    bytes: &'a [u8],
    endian: Endian,
}

/// An option of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockOption<'a> {
    pub code: u16,
    pub value: &'a [u8],
    endian: Endian,
}

/// The comment of any block.
pub(crate) const COMMENT: u16 = 1;
const END: u16 = 0;

impl Endian {
    #[inline]
    pub(crate) fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Endian::Little => u16::from_le_bytes(bytes),
            Endian::Big => u16::from_be_bytes(bytes),
        }
    }

    #[inline]
    pub(crate) fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Endian::Little => u32::from_le_bytes(bytes),
            Endian::Big => u32::from_be_bytes(bytes),
        }
    }

    /// The word at an offset of a header.
    ///
    /// # Panics
    /// If the header ends before it.
    #[inline]
    pub(crate) fn u32_at<const N: usize>(self, bytes: &[u8; N], at: usize) -> u32 {
        self.u32([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    }

    /// The half word at an offset of a header.
    ///
    /// # Panics
    /// If the header ends before it.
    #[inline]
    pub(crate) fn u16_at<const N: usize>(self, bytes: &[u8; N], at: usize) -> u16 {
        self.u16([bytes[at], bytes[at + 1]])
    }
}

impl<'a> Options<'a> {
    #[inline]
    pub(crate) fn new(bytes: &'a [u8], endian: Endian) -> Self {
        Options { bytes, endian }
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = BlockOption<'a>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (head, rest) = self.bytes.split_first_chunk::<4>()?;
        let code = self.endian.u16_at(head, 0);
        let len = usize::from(self.endian.u16_at(head, 2));
        let value = rest.get(..len)?;
        // The last value of a block may lack its padding.
        self.bytes = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        if code == END {
            self.bytes = &[];
            return None;
        }
        Some(BlockOption { code, value, endian: self.endian })
    }
}

impl BlockOption<'_> {
    /// Its value, if it has 4 or 8 bytes.
    pub(crate) fn number(&self) -> Option<u64> {
        if let Ok(bytes) = <[u8; 4]>::try_from(self.value) {
            return Some(self.endian.u32(bytes).into());
        }
        let bytes = <[u8; 8]>::try_from(self.value).ok()?;
        Some(match self.endian {
            Endian::Little => u64::from_le_bytes(bytes),
            Endian::Big => u64::from_be_bytes(bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_end_at_the_end_mark_and_at_damage() {
        let bytes = [0, 1, 0, 3, b'a', b'b', b'c', 0, 0, 2, 0, 4, 0, 0, 1, 2, 0, 0, 0, 0, 0, 1, 0, 0];
        let all: Vec<_> = Options::new(&bytes, Endian::Big).collect();
        assert_eq!(
            all.iter().map(|option| (option.code, option.value)).collect::<Vec<_>>(),
            [(1, &b"abc"[..]), (2, &[0, 0, 1, 2]),]
        );
        assert_eq!((all[0].number(), all[1].number()), (None, Some(258)));
        assert_eq!(Options::new(&bytes, Endian::Little).count(), 0, "a length beyond the block");
        assert_eq!(Options::new(&bytes[..7], Endian::Big).count(), 1, "without padding");
        assert_eq!(Options::new(&bytes[..6], Endian::Big).count(), 0);
    }
}
