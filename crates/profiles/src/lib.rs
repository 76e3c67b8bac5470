//! Profiles of adapters as data, each value with its source.
//!
//! The files in `profiles/` are embedded. A profile of the user's own is a file with the differences from another
//! profile:
//!
//! ```toml
//! about = "As ConnectX-4, with a longer ACK timeout"
//! base = "connectx4"              # default: ideal
//!
//! [ack_timeout]
//! factor = [3, 4]                 # or { value = [3, 4], source = "measured", note = "…" }
//! ```
//!
//! "T" in sources is T. Fukuoka's master's thesis, "Finding and Analyzing Performance Pitfalls of On-Demand Paging of
//! InfiniBand". `profiles/connectx6-roce.toml` says what "R" and "NV" are.
#![forbid(unsafe_code)]

mod described;
mod embedded;
mod error;
mod read;
mod table;

pub use described::{Described, Entry};
pub use embedded::names;
pub use error::Error;
pub use table::Explained;

use embedded::{EMBEDDED, embedded};
use std::path::Path;
use weir_transport::Profile;

/// Loads an embedded profile by name, or a profile file by path.
pub fn load(name_or_path: &str) -> Result<Profile, Error> {
    Ok(describe(name_or_path)?.profile)
}

/// Loads a profile with the explanations of its values.
pub fn describe(name_or_path: &str) -> Result<Described, Error> {
    if let Some(text) = embedded(name_or_path) {
        return read::profile(name_or_path, text);
    }
    let path = Path::new(name_or_path);
    let is_path = path.components().count() > 1 || path.extension().is_some() || path.exists();
    if !is_path {
        return Err(Error::Unknown { name: name_or_path.into(), known: names().collect::<Vec<_>>().join(", ") });
    }
    let text = std::fs::read_to_string(path)
        .map_err(|source| Error::Unreadable { path: name_or_path.into(), reason: source.to_string() })?;
    read::profile(name_or_path, &text)
}

/// All embedded profiles.
pub fn all() -> Result<Vec<Described>, Error> {
    EMBEDDED.iter().map(|(name, text)| read::profile(name, text)).collect()
}
