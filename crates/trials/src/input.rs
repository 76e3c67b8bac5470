//! The bytes of a fuzzer's input as the choices of a body.

/// Input bytes, consumed one by one; zeros after their end.
#[derive(Clone, Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub fn word(&mut self) -> u32 {
        u32::from_be_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    pub fn long(&mut self) -> u64 {
        u64::from(self.word()) << 32 | u64::from(self.word())
    }

    /// A number below `end`, which is at least 1 and at most 256.
    pub fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    /// So many of the next bytes, or fewer at the end of the input.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// The bytes that are left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_follow_the_end() {
        let mut input = Input(&[1, 2, 3, 4, 5, 6]);
        assert_eq!((input.byte(), input.bytes(2), input.word()), (1, &[2, 3][..], 0x0405_0600));
        assert_eq!((input.is_empty(), input.long(), input.rest()), (true, 0, &[][..]));
    }
}
