//! Axes: the mapping from values to coordinates, and the ticks.

/// An axis of a chart.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Name of the quantity, with its unit.
    pub label: String,
    pub scale: Scale,
    /// A range that the axis includes, whatever the points need.
    pub shows: Option<(f64, f64)>,
}

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    Linear,
    /// Powers of ten.
    Log,
    /// Powers of two, in bytes.
    Sizes,
}

impl Axis {
    /// An axis of equal steps.
    pub fn linear(label: &str) -> Axis {
        Axis { label: label.into(), scale: Scale::Linear, shows: None }
    }

    /// An axis of powers of ten.
    pub fn log(label: &str) -> Axis {
        Axis { label: label.into(), scale: Scale::Log, shows: None }
    }

    /// An axis of powers of two, in bytes.
    pub fn sizes(label: &str) -> Axis {
        Axis { label: label.into(), scale: Scale::Sizes, shows: None }
    }

    /// Makes the axis include `low` and `high`.
    pub fn showing(self, low: f64, high: f64) -> Axis {
        Axis { shows: Some((low, high)), ..self }
    }

    /// Whether the axis can show a value: it must be finite, and above zero on a logarithmic scale.
    pub fn can_show(&self, value: f64) -> bool {
        value.is_finite() && (self.scale == Scale::Linear || value > 0.0)
    }

    /// Lays the axis out between the coordinates `from` and `to`, for these values.
    pub(super) fn layout(&self, values: impl Iterator<Item = f64>, from: f64, to: f64) -> AxisLayout {
        let all =
            values.chain(self.shows.into_iter().flat_map(|(low, high)| [low, high])).filter(|v| self.can_show(*v));
        let (low, high) = all.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        let (low, high) = if low <= high { (low, high) } else { (1.0, 10.0) };
        let log = self.scale != Scale::Linear;
        let mut ticks = match self.scale {
            Scale::Linear => steps(low, high),
            Scale::Log => decades(low, high),
            Scale::Sizes => powers(low, high),
        };
        // A range that is given ends the axis, unless values lie beyond it.
        let ends = self.shows.is_some_and(|(_, most)| most >= high && most > low);
        ticks.retain(|(tick, _)| !ends || *tick <= high);
        let low = ticks.first().map_or(low, |(tick, _)| low.min(*tick));
        let high = ticks.last().map_or(high, |(tick, _)| high.max(*tick));
        let high = if high > low { high } else { low + low.abs().max(1.0) };
        let between = if self.scale == Scale::Log { between(low, high) } else { vec![] };
        AxisLayout { low, high, log, from, to, ticks, between }
    }
}

/// An axis with its ends and ticks.
pub(super) struct AxisLayout {
    low: f64,
    high: f64,
    log: bool,
    from: f64,
    to: f64,
    /// Value and text of each tick.
    pub ticks: Vec<(f64, String)>,
    /// Values between the ticks of a logarithmic axis: 2 to 9 times the powers of ten.
    pub between: Vec<f64>,
}

impl AxisLayout {
    /// The coordinate of a value.
    pub fn at(&self, value: f64) -> f64 {
        let map = |v: f64| if self.log { v.max(f64::MIN_POSITIVE).ln() } else { v };
        let share = (map(value) - map(self.low)) / (map(self.high) - map(self.low));
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }
}

/// Ticks at powers of ten around the values, and if these are few also at 2 and 5 times them.
fn decades(low: f64, high: f64) -> Vec<(f64, String)> {
    let (first, last) = (low.log10().floor() as i32, high.max(low * 1.01).log10().ceil() as i32);
    let near = |within: &'static [f64]| -> Vec<f64> {
        let all = (first..=last).flat_map(|power| within.iter().map(move |w| w * 10f64.powi(power)));
        all.filter(|tick| *tick >= low / 2.01 && *tick <= high * 2.01).collect()
    };
    let powers = near(&[1.0]);
    let wanted = if powers.len() < 3 { near(&[1.0, 2.0, 5.0]) } else { powers };
    let ticks = if wanted.len() < 2 { vec![10f64.powi(first), 10f64.powi(last)] } else { wanted };
    // Beside powers such as 10⁶, 10000 is a power, too.
    let large = ticks.last().is_some_and(|tick| *tick > 9e4);
    let name = |tick: f64| if large && tick > 9e3 { raised(tick) } else { plain(tick) };
    ticks.into_iter().map(|tick| (tick, name(tick))).collect()
}

/// 2 to 9 times the powers of ten, between two values.
fn between(low: f64, high: f64) -> Vec<f64> {
    let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let all = powers.flat_map(|power| (2..=9).map(move |n| f64::from(n) * 10f64.powi(power)));
    all.filter(|value| *value > low && *value < high).collect()
}

/// Ticks in round steps around the values; they include zero if all values are positive.
fn steps(low: f64, high: f64) -> Vec<(f64, String)> {
    let low = low.min(0.0);
    let high = if high > low { high } else { low + 1.0 };
    let rough = (high - low) / 6.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough * 0.999).unwrap_or(rough);
    let (first, last) = ((low / step).floor() as i64, (high / step - 1e-9).ceil() as i64);
    (first..=last).map(|n| (n as f64 * step, plain(n as f64 * step))).collect()
}

/// Ticks at every fourth power of two.
fn powers(low: f64, high: f64) -> Vec<(f64, String)> {
    let (first, last) = (low.log2().round() as i32, high.log2().round() as i32);
    (first..=last).filter(|power| power % 4 == 0).map(|power| (2f64.powi(power), size(power))).collect()
}

fn size(power: i32) -> String {
    match power {
        ..10 => format!("{} B", 2f64.powi(power)),
        10..20 => format!("{} KiB", 1u64 << (power - 10)),
        _ => format!("{} MiB", 1u64 << (power - 20).min(40)),
    }
}

/// A figure without trailing zeros; large figures as multiples of powers of ten.
pub(super) fn plain(figure: f64) -> String {
    if figure.abs() >= 2e4 {
        return raised(figure);
    }
    let text = if figure.abs() < 0.01 { format!("{figure:.5}") } else { format!("{figure:.3}") };
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() || text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// A multiple of a power of ten.
fn raised(figure: f64) -> String {
    let power = (figure.abs().log10() + 1e-9).floor() as i32;
    let lead = figure / 10f64.powi(power);
    let exponent: String = power.to_string().chars().map(superscript).collect();
    if (lead - 1.0).abs() < 1e-9 { format!("10{exponent}") } else { format!("{lead:.0}·10{exponent}") }
}

fn superscript(digit: char) -> char {
    match digit {
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        _ => digit.to_digit(10).and_then(|d| char::from_u32(0x2070 + d)).unwrap_or(digit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(ticks: Vec<(f64, String)>) -> Vec<f64> {
        ticks.into_iter().map(|(tick, _)| tick).collect()
    }

    #[test]
    fn ticks_are_round_and_cover_the_values() {
        assert_eq!(values(steps(0.3, 4.7)), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(values(steps(0.0, 6000.0)), [0.0, 1000.0, 2000.0, 3000.0, 4000.0, 5000.0, 6000.0]);
        assert_eq!(values(decades(3.0, 4000.0)), [10.0, 100.0, 1000.0]);
        assert_eq!(values(decades(3.0, 90.0)), [2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!(values(decades(6.0, 350.0)), [5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0]);
        assert_eq!(decades(1e4, 9e5).iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>(), ["10⁴", "10⁵", "10⁶"]);
        assert_eq!(powers(1.0, 1048576.0).last().unwrap().1, "1 MiB");
        assert_eq!([0.0, 0.5, 10.0, 1000.0, 1e6, 2e7].map(plain), ["0", "0.5", "10", "1000", "10⁶", "2·10⁷"]);
    }

    #[test]
    fn a_logarithmic_axis_takes_no_zero_and_no_axis_takes_nan() {
        assert!(!Axis::log("").can_show(0.0) && Axis::linear("").can_show(0.0) && !Axis::linear("").can_show(f64::NAN));
        let layout = Axis::log("").layout([f64::NAN, 0.0].into_iter(), 0.0, 100.0);
        assert!(layout.at(3.0).is_finite());
    }

    #[test]
    fn a_logarithmic_axis_has_values_between_its_powers() {
        assert_eq!(between(5.0, 40.0), [6.0, 7.0, 8.0, 9.0, 20.0, 30.0]);
        assert!(Axis::linear("").layout([1.0, 9.0].into_iter(), 0.0, 1.0).between.is_empty());
    }

    #[test]
    fn a_given_range_ends_the_axis() {
        let axis = Axis::linear("").showing(0.0, 128.0);
        let ticks = |most: f64| axis.layout([most].into_iter(), 0.0, 100.0);
        assert_eq!((ticks(128.0).at(128.0), values(ticks(128.0).ticks)), (100.0, vec![0.0, 50.0, 100.0]));
        assert_eq!(values(ticks(140.0).ticks), [0.0, 50.0, 100.0, 150.0]);
    }

    #[test]
    fn equal_values_make_a_valid_axis() {
        for axis in [Axis::linear(""), Axis::log(""), Axis::sizes("")] {
            let layout = axis.layout([7.0].into_iter(), 0.0, 100.0);
            assert!((0.0..=100.0).contains(&layout.at(7.0)), "{axis:?}");
        }
    }
}
