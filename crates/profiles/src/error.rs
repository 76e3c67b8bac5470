//! Errors in profiles.

/// Why a profile cannot be loaded. Keys are `section.key`.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum Error {
    #[error("there is no profile {name:?}; use {known}, or a file (a path with a slash, or a name that ends in .toml)")]
    Unknown { name: String, known: String },
    #[error("the profile {path} cannot be read: {reason}")]
    Unreadable { path: String, reason: String },
    #[error("the profile {origin} is not valid TOML: {reason}")]
    Syntax { origin: String, reason: String },
    #[error("the profile {origin} has an unknown key {key}; known keys are {known}")]
    UnknownKey { origin: String, key: String, known: String },
    #[error("the profile {origin} has no value of {key}")]
    Missing { origin: String, key: String },
    #[error("the profile {origin} has {key} = {got}; it must be {wanted}")]
    Value { origin: String, key: String, got: String, wanted: String },
}
