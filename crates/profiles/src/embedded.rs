//! The profiles of `profiles/`, embedded.

/// Names and contents: models of adapters, MultiEdge, then the systems of T table 4.1.
pub(crate) const EMBEDDED: [(&str, &str); 18] = [
    ("ideal", include_str!("../profiles/ideal.toml")),
    ("connectx3", include_str!("../profiles/connectx3.toml")),
    ("connectx4", include_str!("../profiles/connectx4.toml")),
    ("connectx5", include_str!("../profiles/connectx5.toml")),
    ("connectx6", include_str!("../profiles/connectx6.toml")),
    ("connectx6-roce", include_str!("../profiles/connectx6-roce.toml")),
    ("connectx3-fdr", include_str!("../profiles/connectx3-fdr.toml")),
    ("connectib", include_str!("../profiles/connectib.toml")),
    ("multiedge", include_str!("../profiles/multiedge.toml")),
    ("private-a", include_str!("../profiles/systems/private-a.toml")),
    ("private-b", include_str!("../profiles/systems/private-b.toml")),
    ("reedbush-h", include_str!("../profiles/systems/reedbush-h.toml")),
    ("reedbush-l", include_str!("../profiles/systems/reedbush-l.toml")),
    ("abci", include_str!("../profiles/systems/abci.toml")),
    ("ito", include_str!("../profiles/systems/ito.toml")),
    ("azure-hcr", include_str!("../profiles/systems/azure-hcr.toml")),
    ("private-c", include_str!("../profiles/systems/private-c.toml")),
    ("azure-hbv2", include_str!("../profiles/systems/azure-hbv2.toml")),
];

/// The names of the embedded profiles.
pub fn names() -> impl Iterator<Item = &'static str> {
    EMBEDDED.iter().map(|(name, _)| *name)
}

/// The contents of an embedded profile.
pub(crate) fn embedded(name: &str) -> Option<&'static str> {
    EMBEDDED.iter().find(|(each, _)| *each == name).map(|(_, text)| *text)
}
