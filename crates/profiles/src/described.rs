//! A profile with the explanations of its values.

use crate::table::Explained;
use serde::Serialize;
use weir_transport::Profile;

/// A profile and the sources of its values.
#[derive(Clone, Debug)]
pub struct Described {
    pub profile: Profile,
    /// Description in a line.
    pub about: String,
    /// In the order of the keys of the ideal profile.
    pub values: Vec<Explained>,
}

/// A profile's name and description, for lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    pub name: String,
    pub about: String,
}

impl Described {
    /// Its entry in a list.
    pub fn entry(&self) -> Entry {
        Entry { name: self.profile.name.clone(), about: self.about.clone() }
    }
}
