//! Sizes and times, as the command reads and prints them.

use std::time::Duration;

pub use weir_lab::data::size_name as size;

/// A size such as `4096`, `32K` or `1M`.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let factor = match text[digits.len()..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "ki" | "kib" => 1 << 10,
        "m" | "mi" | "mib" => 1 << 20,
        "g" | "gi" | "gib" => 1u64 << 30,
        _ => return Err(format!("`{text}` is not a size: use bytes, such as 4096, 32K or 1M")),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(factor)).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| format!("`{text}` is not a size: use bytes from 1, such as 4096, 32K or 1M"))
}

/// A time such as `90`, `90s` or `10m`.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let (digits, factor) = match text.trim() {
        t if t.ends_with("min") => (&t[..t.len() - 3], 60.0),
        t if t.ends_with('m') => (&t[..t.len() - 1], 60.0),
        t if t.ends_with('s') => (&t[..t.len() - 1], 1.0),
        t => (t, 1.0),
    };
    let seconds = digits.trim().parse::<f64>().ok().map(|n| n * factor).filter(|s| (1.0..=86_400.0).contains(s));
    let wrong = || format!("`{text}` is not a time: use seconds or minutes, such as 90s or 10m, a day at most");
    seconds.map(Duration::from_secs_f64).ok_or_else(wrong)
}

/// "1:05": minutes and seconds.
pub fn clock(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round() as u64;
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

/// A figure with three significant digits or all before the point.
pub fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 || v == 0.0 => 2,
        v if v >= 0.1 => 3,
        _ => 4,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_read_and_printed() {
        assert_eq!(["4096", "32K", "8MiB", "1 g"].map(|t| parse_size(t).unwrap()), [4096, 32 << 10, 8 << 20, 1 << 30]);
        assert!(["", "K", "0", "1x", "-1", "99999999999G"].iter().all(|text| parse_size(text).is_err()));
        assert_eq!([100, 1 << 15, 3 << 20].map(size), ["100 B", "32 KiB", "3 MiB"]);
        assert_eq!(["90", "90s", "1.5m", "2min"].map(|t| parse_time(t).unwrap().as_secs()), [90, 90, 90, 120]);
        assert!(["", "s", "0", "2h", "NaN"].iter().all(|text| parse_time(text).is_err()));
        assert_eq!((clock(65.2), clock(-1.0)), ("1:05".into(), "0:00".into()));
    }
}
