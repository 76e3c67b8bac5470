//! The profiles of `profiles/`, embedded.

/// Names and contents.
pub(crate) const EMBEDDED: [(&str, &str); 6] = [
    ("ideal", include_str!("../profiles/ideal.toml")),
    ("connectx3", include_str!("../profiles/connectx3.toml")),
    ("connectx4", include_str!("../profiles/connectx4.toml")),
    ("connectx5", include_str!("../profiles/connectx5.toml")),
    ("connectx6", include_str!("../profiles/connectx6.toml")),
    ("connectx6-roce", include_str!("../profiles/connectx6-roce.toml")),
];

/// The names of the embedded profiles.
pub fn names() -> impl Iterator<Item = &'static str> {
    EMBEDDED.iter().map(|(name, _)| *name)
}

/// The contents of an embedded profile.
pub(crate) fn embedded(name: &str) -> Option<&'static str> {
    EMBEDDED.iter().find(|(each, _)| *each == name).map(|(_, text)| *text)
}
