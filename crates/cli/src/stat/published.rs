//! Counters that other libraries of a process publish, as text.

use super::figures::bytes;
use super::shown::Published;

/// Width of the lines.
const WIDTH: usize = 100;

/// The libfabric provider of Weir: the word after its name is its scheme of registration.
const MESSAGES: &str = "weir-odp";

/// A title, and below it the counters that are not 0.
pub fn text(group: &Published) -> String {
    let title = match group.group.split_once(' ') {
        Some((MESSAGES, scheme)) => format!("messages ({MESSAGES}, scheme {scheme})"),
        _ => format!("counters of {}", group.group),
    };
    let mut text = format!("\n{title}\n ");
    let mut width = 1;
    let items: Vec<String> = items(&group.counters);
    for (n, item) in items.iter().enumerate() {
        let comma = if n + 1 < items.len() { "," } else { "" };
        if width + 1 + item.len() + comma.len() > WIDTH {
            text += "\n ";
            width = 1;
        }
        text += &format!(" {item}{comma}");
        width += 1 + item.len() + comma.len();
    }
    if items.is_empty() {
        text += " all 0";
    }
    text + "\n"
}

/// What is not 0. `X_bytes` has a unit, and goes with its peak `X_peak`.
fn items(counters: &[(String, u64)]) -> Vec<String> {
    let of = |name: &str| counters.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
    let shown = counters.iter().filter_map(|(name, value)| {
        let words = name.replace('_', " ");
        if let Some(kind) = name.strip_suffix("_bytes") {
            let peak = of(&format!("{kind}_peak")).filter(|peak| *peak > 0);
            let now = bytes(*value as f64);
            return match peak {
                Some(peak) => Some(format!("{words} {now} (at most {})", bytes(peak as f64))),
                None => (*value > 0).then(|| format!("{words} {now}")),
            };
        }
        let beside = name.strip_suffix("_peak").is_some_and(|kind| of(&format!("{kind}_bytes")).is_some());
        (*value > 0 && !beside).then(|| format!("{words} {value}"))
    });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str, counters: &[(&str, u64)]) -> Published {
        let counters = counters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        Published { group: name.to_owned(), counters }
    }

    #[test]
    fn the_provider_has_its_messages_and_its_scheme() {
        let shown = text(&group(
            "weir-odp odp-optimal",
            &[
                ("eager", 12),
                ("rma", 0),
                ("cache_hits", 10),
                ("pinned_bytes", 1 << 20),
                ("pinned_peak", 3 << 20),
                ("unexpected_bytes", 0),
                ("unexpected_peak", 2048),
            ],
        ));
        let expected = "
messages (weir-odp, scheme odp-optimal)
  eager 12, cache hits 10, pinned bytes 1.00 MiB (at most 3.00 MiB), unexpected bytes 0 B (at most 2.00 KiB)
";
        assert_eq!(shown.replace(",\n ", ","), expected);
        assert!(shown.lines().all(|line| line.len() <= WIDTH), "{shown}");
    }

    #[test]
    fn any_other_library_has_its_name() {
        let shown = text(&group("solver 2", &[("calls", 3), ("sent_bytes", 5), ("queue_peak", 4)]));
        assert_eq!(shown, "\ncounters of solver 2\n  calls 3, sent bytes 5 B, queue peak 4\n");
        assert_eq!(text(&group("solver", &[("calls", 0)])), "\ncounters of solver\n  all 0\n");
    }
}
