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
//! InfiniBand". `profiles/connectib.toml` says what "M" is, `profiles/connectx6-roce.toml` what "R" and "NV" are,
//! and `profiles/connectx3-fdr.toml` what "F" is.
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
use std::fmt::Write;
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

/// The text of a profile file with the same adapter, but with a seed that is `more` above its own, so that runs which
/// should differ do: two runs with one seed draw the same times of page faults.
pub fn reseeded(name_or_path: &str, more: u64) -> Result<String, Error> {
    let Described { profile, about, values } = describe(name_or_path)?;
    let seed = profile.seed.wrapping_add(more) & i64::MAX as u64;
    let mut text = format!("about = {}\n", toml::Value::String(about));
    for Explained { key, value, .. } in &values {
        let value = if key == "adapter.seed" { &toml::Value::Integer(seed as i64) } else { value };
        let _ = writeln!(text, "{key} = {value}");
    }
    Ok(text)
}

/// All embedded profiles.
pub fn all() -> Result<Vec<Described>, Error> {
    EMBEDDED.iter().map(|(name, text)| read::profile(name, text)).collect()
}
