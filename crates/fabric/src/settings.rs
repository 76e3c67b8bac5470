//! Settings from the environment.
//!
//! | variable | value |
//! | --- | --- |
//! | `WEIR_ODP_SCHEME` | `pin-down`, `odp-native`, `odp-enhanced`, `odp-optimal` (default) |
//! | `WEIR_ODP_RENDEZVOUS` | `write` (default), `read` |
//! | `WEIR_ODP_EAGER` | largest message through bounce buffers, bytes; `K` and `M` are understood |
//! | `WEIR_ODP_SLOT` | size of a bounce buffer, bytes |
//! | `WEIR_ODP_RECEIVES` | most bounce buffers for each peer's messages |
//! | `WEIR_ODP_SENDS` | bounce buffers for messages of this process |
//! | `WEIR_ODP_UNEXPECTED` | bytes of one peer's messages that may wait for a receive |
//! | `WEIR_ODP_CACHE` | bytes of registrations that are kept although no operation uses them |
//! | `WEIR_ODP_SUMMARY` | `1`: a summary on standard error when an endpoint closes; the path of a folder: a file there |

use crate::summary::Summary;
use std::env;
use std::sync::OnceLock;
use weir_msg::Settings;

/// Everything that the environment sets.
#[derive(Clone, Debug)]
pub struct Environment {
    pub protocol: Settings,
    pub summary: Option<Summary>,
}

/// The environment's settings, or what is wrong with them.
pub fn get() -> &'static Result<Environment, String> {
    static SETTINGS: OnceLock<Result<Environment, String>> = OnceLock::new();
    SETTINGS.get_or_init(|| read(|name| env::var(name).ok().filter(|value| !value.is_empty())))
}

fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Environment, String> {
    let mut protocol = Settings::default();
    let bytes = |name: &str, range: std::ops::RangeInclusive<u64>| match variable(name) {
        None => Ok(None),
        Some(text) => match parse_bytes(&text).filter(|value| range.contains(value)) {
            Some(value) => Ok(Some(value)),
            None => Err(format!("{name}={text}: a number from {} to {} is expected", range.start(), range.end())),
        },
    };
    if let Some(name) = variable("WEIR_ODP_SCHEME") {
        protocol.scheme = name.parse().map_err(|error| format!("WEIR_ODP_SCHEME: {error}"))?;
    }
    if let Some(name) = variable("WEIR_ODP_RENDEZVOUS") {
        protocol.rendezvous = name.parse().map_err(|error| format!("WEIR_ODP_RENDEZVOUS: {error}"))?;
    }
    let smallest = weir_msg::SMALLEST_SLOT as u64;
    protocol.eager_limit = bytes("WEIR_ODP_EAGER", 0..=1 << 20)?.unwrap_or(protocol.eager_limit);
    protocol.slot = bytes("WEIR_ODP_SLOT", smallest..=1 << 20)?.map_or(protocol.slot, |value| value as u32);
    protocol.receive_slots = bytes("WEIR_ODP_RECEIVES", 4..=4096)?.map_or(protocol.receive_slots, |value| value as u16);
    protocol.send_slots = bytes("WEIR_ODP_SENDS", 1..=1 << 16)?.map_or(protocol.send_slots, |value| value as u32);
    protocol.unexpected = bytes("WEIR_ODP_UNEXPECTED", 1 << 12..=1 << 30)?.map_or(protocol.unexpected, |v| v as u32);
    protocol.cache_bytes = bytes("WEIR_ODP_CACHE", 0..=1 << 50)?.unwrap_or(protocol.cache_bytes);
    // A message that goes through bounce buffers must fit into what may be unexpected, and a small READ or WRITE into one.
    protocol.unexpected = protocol.unexpected.max(2 * protocol.eager_limit as u32);
    protocol.rma_bounce = protocol.rma_bounce.min(protocol.slot);
    let summary = variable("WEIR_ODP_SUMMARY").and_then(|value| Summary::parse(&value));
    Ok(Environment { protocol, summary })
}

fn parse_bytes(text: &str) -> Option<u64> {
    let (digits, unit) = match text.trim().char_indices().last()? {
        (at, 'k' | 'K') => (&text.trim()[..at], 1 << 10),
        (at, 'm' | 'M') => (&text.trim()[..at], 1 << 20),
        (at, 'g' | 'G') => (&text.trim()[..at], 1 << 30),
        _ => (text.trim(), 1u64),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_msg::{Rendezvous, Scheme};

    fn of(pairs: &[(&str, &str)]) -> Result<Environment, String> {
        read(|name| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn variables_are_read_and_errors_name_them() {
        let read = of(&[
            ("WEIR_ODP_SCHEME", "pin-down"),
            ("WEIR_ODP_RENDEZVOUS", "read"),
            ("WEIR_ODP_EAGER", "64K"),
            ("WEIR_ODP_SUMMARY", "1"),
        ]);
        let Environment { protocol, summary } = read.unwrap();
        assert_eq!((protocol.scheme, protocol.rendezvous), (Scheme::PinDown, Rendezvous::Read));
        assert_eq!((protocol.eager_limit, summary), (65536, Some(Summary::Shown)));
        assert!(of(&[("WEIR_ODP_SCHEME", "pinned")]).unwrap_err().contains("WEIR_ODP_SCHEME"));
        assert!(of(&[("WEIR_ODP_SLOT", "10")]).unwrap_err().contains("from 256"));
        assert!(of(&[("WEIR_ODP_CACHE", "1T")]).is_err());
    }
}
