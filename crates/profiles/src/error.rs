//! What can be wrong with a profile.

/// Why there is no such profile. Keys are `section.key`.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum Error {
    #[error(
        "there is no profile {name:?}: there are {known}, and files (with a slash, or by a name that ends in .toml)"
    )]
    Unknown { name: String, known: String },
    #[error("the profile {path} cannot be read: {reason}")]
    Unreadable { path: String, reason: String },
    #[error("the profile {origin} is no TOML: {reason}")]
    Syntax { origin: String, reason: String },
    #[error("the profile {origin} says {key}, which no profile has: there are {known}")]
    UnknownKey { origin: String, key: String, known: String },
    #[error("the profile {origin} says nothing of {key}")]
    Missing { origin: String, key: String },
    #[error("the profile {origin} has {key} = {got}, which should be {wanted}")]
    Value { origin: String, key: String, got: String, wanted: String },
}
