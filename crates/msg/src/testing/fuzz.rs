//! x
/// x
pub fn fuzz(_bytes: &[u8]) {}
