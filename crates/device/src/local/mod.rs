//! Packets through shared memory, between two processes of one network namespace and user.
//!
//! A pair of rings ([`endpoint`]) is in a sealed segment ([`segment`]) that one side makes and hands over by a unix
//! socket, after both sides have shown over that socket that they are the processes that proved their QPs
//! ([`handshake`]). The engine writes and reads the rings (`engine/local`), its thread makes and ends them
//! (`adapter/local_links.rs`).

pub mod arming;
pub mod endpoint;
pub mod handshake;
pub mod listener;
pub mod ring;
pub mod segment;

#[cfg(test)]
mod testing {
    /// The seeds of a fuzz target, and inputs that fuzzing added to them.
    pub fn corpus(target: &str) -> Vec<Vec<u8>> {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
        let entries = std::fs::read_dir(folder).expect("a corpus");
        let seeds: Vec<_> =
            entries.map(|entry| std::fs::read(entry.expect("an entry").path()).expect("a seed")).collect();
        assert!(!seeds.is_empty(), "no seeds for {target}");
        seeds
    }
}
