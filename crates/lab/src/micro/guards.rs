//! Lists of guards as text, for serde. The text of the empty list is `none`.

use serde::{Deserialize, Deserializer, Serializer, de::Error};
use weir_guard::Guards;

const NONE: &str = "none";

pub fn serialize<S: Serializer>(guards: &Guards, out: S) -> Result<S::Ok, S::Error> {
    if guards.any() { out.collect_str(guards) } else { out.serialize_str(NONE) }
}

pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Guards, D::Error> {
    let text = String::deserialize(from)?;
    if text == NONE { Ok(Guards::default()) } else { text.parse().map_err(D::Error::custom) }
}
