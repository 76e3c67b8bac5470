//! Where bytes are: in the program's memory, here and at a peer.

/// Most pieces of one buffer of the program.
pub const MAX_PIECES: usize = 4;

/// Contiguous bytes of the program's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}

/// A buffer of the program: up to [`MAX_PIECES`] pieces, one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buffer {
    pieces: [Piece; MAX_PIECES],
    count: u8,
}

/// Contiguous bytes of a peer's memory, with the key that gives access to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    pub rkey: u32,
}

/// A buffer of a peer's program: up to [`MAX_PIECES`] pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteBuffer {
    pieces: [Remote; MAX_PIECES],
    count: u8,
}

impl Buffer {
    /// One piece.
    pub fn contiguous(addr: u64, len: u64) -> Buffer {
        let mut buffer = Buffer::default();
        buffer.push(Piece { addr, len });
        buffer
    }

    /// Appends a piece; one of no bytes is left out.
    ///
    /// # Panics
    /// If there are [`MAX_PIECES`] already.
    pub fn push(&mut self, piece: Piece) {
        if piece.len > 0 {
            self.pieces[usize::from(self.count)] = piece;
            self.count += 1;
        }
    }

    /// Its pieces, in order.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces[..usize::from(self.count)]
    }

    /// Bytes of all pieces.
    pub fn len(&self) -> u64 {
        self.pieces().iter().map(|piece| piece.len).sum()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// At most `len` bytes of it, from byte `offset` on.
    pub fn range(&self, mut offset: u64, mut len: u64) -> Buffer {
        let mut range = Buffer::default();
        for piece in self.pieces() {
            let skipped = offset.min(piece.len);
            let taken = (piece.len - skipped).min(len);
            range.push(Piece { addr: piece.addr + skipped, len: taken });
            offset -= skipped;
            len -= taken;
        }
        range
    }
}

impl RemoteBuffer {
    /// Appends a piece; one of no bytes is left out.
    ///
    /// # Panics
    /// If there are [`MAX_PIECES`] already.
    pub fn push(&mut self, piece: Remote) {
        if piece.len > 0 {
            self.pieces[usize::from(self.count)] = piece;
            self.count += 1;
        }
    }

    /// Its pieces, in order.
    pub fn pieces(&self) -> &[Remote] {
        &self.pieces[..usize::from(self.count)]
    }

    /// Bytes of all pieces. A peer that lies about them gets no more than `u64::MAX`.
    pub fn len(&self) -> u64 {
        self.pieces().iter().fold(0, |sum: u64, piece| sum.saturating_add(piece.len))
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// Bytes that are contiguous on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The number of the piece that they are in, on this side.
    pub piece: usize,
    pub local: Piece,
    pub remote: Remote,
}

/// The longest runs of two buffers, each of at most `longest` bytes. Ends when one side ends.
pub fn runs(local: &Buffer, remote: &RemoteBuffer, longest: u64) -> impl Iterator<Item = Run> + use<> {
    let (local, remote) = (*local, *remote);
    let (mut here, mut there) = ((0, 0), (0, 0));
    std::iter::from_fn(move || {
        let (piece, far) = (local.pieces().get(here.0)?, remote.pieces().get(there.0)?);
        let len = (piece.len - here.1).min(far.len - there.1).min(longest);
        let run = Run {
            piece: here.0,
            local: Piece { addr: piece.addr + here.1, len },
            remote: Remote { addr: far.addr.wrapping_add(there.1), len, rkey: far.rkey },
        };
        here = if here.1 + len == piece.len { (here.0 + 1, 0) } else { (here.0, here.1 + len) };
        there = if there.1 + len == far.len { (there.0 + 1, 0) } else { (there.0, there.1 + len) };
        Some(run)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(pieces: &[(u64, u64)]) -> Buffer {
        let mut buffer = Buffer::default();
        pieces.iter().for_each(|&(addr, len)| buffer.push(Piece { addr, len }));
        buffer
    }

    #[test]
    fn a_range_crosses_pieces() {
        let whole = buffer(&[(100, 10), (200, 0), (300, 5)]);
        assert_eq!(whole.len(), 15);
        assert_eq!(whole.range(8, 4), buffer(&[(108, 2), (300, 2)]));
        assert_eq!(whole.range(10, 100), buffer(&[(300, 5)]));
        assert!(whole.range(15, 1).is_empty());
    }

    #[test]
    fn runs_end_at_the_pieces_of_either_side() {
        let mut remote = RemoteBuffer::default();
        remote.push(Remote { addr: 1000, len: 4, rkey: 7 });
        remote.push(Remote { addr: 2000, len: 100, rkey: 8 });
        let found: Vec<_> = runs(&buffer(&[(0, 6), (50, 9)]), &remote, 5)
            .map(|run| (run.local.addr, run.remote.addr, run.local.len, run.remote.rkey))
            .collect();
        assert_eq!(found, [(0, 1000, 4, 7), (4, 2000, 2, 8), (50, 2002, 5, 8), (55, 2007, 4, 8)]);
    }
}
