//! Figures of `weir stat` as text: three digits and a unit.

/// Bytes with a unit, to three digits.
pub fn bytes(count: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut count, mut unit) = (count, 0);
    while count >= 1000.0 && unit + 1 < units.len() {
        (count, unit) = (count / 1024.0, unit + 1);
    }
    format!("{} {}", three_digits(count, unit > 0), units[unit])
}

pub fn microseconds(count: f64) -> String {
    match count {
        c if c < 1000.0 => format!("{} µs", three_digits(c, c.fract() != 0.0)),
        c if c < 1e6 => format!("{} ms", three_digits(c / 1e3, true)),
        c => format!("{} s", three_digits(c / 1e6, true)),
    }
}

pub fn three_digits(figure: f64, fraction: bool) -> String {
    let decimals = match figure {
        _ if !fraction => 0,
        f if f < 10.0 => 2,
        f if f < 100.0 => 1,
        _ => 0,
    };
    format!("{figure:.decimals$}")
}

pub fn span(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3600.0),
        s => format!("{:.0} d", s / 86400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_a_unit() {
        assert_eq!([0.0, 999.0, 1000.0, 1536.0, 5e9].map(bytes), ["0 B", "999 B", "0.98 KiB", "1.50 KiB", "4.66 GiB"]);
        assert_eq!(
            [0.0, 1.5, 17.0, 1234.0, 2.5e6].map(microseconds),
            ["0 µs", "1.50 µs", "17 µs", "1.23 ms", "2.50 s"]
        );
        assert_eq!([3.0, 130.0, 8000.0, 200_000.0].map(span), ["3 s", "2 min", "2 h", "2 d"]);
    }
}
