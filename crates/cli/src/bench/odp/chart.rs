//! Line charts as SVG.

use std::fmt::Write;

/// Lines over a common axis.
pub struct Panel {
    pub title: &'static str,
    pub x: &'static str,
    pub y: &'static str,
    pub scale: Scale,
    pub series: Vec<Series>,
}

/// A line.
pub struct Series {
    pub name: &'static str,
    pub points: Vec<(f64, f64)>,
}

/// How the axes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    Linear,
    /// Powers of two along x, which are sizes.
    LogLinear,
    /// And powers of ten along y.
    LogLog,
}

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 330.0;
const COLUMNS: usize = 2;
/// Around the plot of a panel: left, right, top, bottom.
const MARGIN: [f64; 4] = [62.0, 16.0, 66.0, 46.0];
const HEAD: f64 = 40.0;
/// Told apart by those who do not see all colours, too (Okabe and Ito).
const COLOURS: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];
const DASHES: [&str; 4] = ["", "", "6 3", "2 3"];

/// Panels side by side on a sheet with a title.
pub fn sheet(title: &str, panels: &[Panel]) -> String {
    let rows = panels.len().div_ceil(COLUMNS);
    let (width, height) = (WIDTH * COLUMNS as f64, HEAD + HEIGHT * rows as f64);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{}\" y=\"27\" font-size=\"18\" text-anchor=\"middle\">{title}</text>\n",
        width / 2.0
    );
    for (at, panel) in panels.iter().enumerate() {
        let (x, y) = ((at % COLUMNS) as f64 * WIDTH, HEAD + (at / COLUMNS) as f64 * HEIGHT);
        let _ = writeln!(svg, "<g transform=\"translate({x} {y})\">\n{}</g>", draw(panel));
    }
    svg + "</svg>\n"
}

/// One axis: values to places.
struct Axis {
    low: f64,
    high: f64,
    log: bool,
    from: f64,
    to: f64,
}

impl Axis {
    fn at(&self, value: f64) -> f64 {
        let map = |v: f64| if self.log { v.max(f64::MIN_POSITIVE).ln() } else { v };
        let share = (map(value) - map(self.low)) / (map(self.high) - map(self.low));
        self.from + share * (self.to - self.from)
    }
}

fn draw(panel: &Panel) -> String {
    let [left, right, top, bottom] = MARGIN;
    let points = || panel.series.iter().flat_map(|series| series.points.iter().copied());
    let mut svg = format!("<text x=\"{left}\" y=\"22\" font-size=\"14\">{}</text>\n", panel.title);
    if points().next().is_none() {
        let _ = writeln!(svg, "<text x=\"{left}\" y=\"{}\">nothing was measured</text>", HEIGHT / 2.0);
        return svg;
    }
    let (log_x, log_y) = (panel.scale != Scale::Linear, panel.scale == Scale::LogLog);
    let (low, high) = range(points().map(|(x, _)| x));
    let x = Axis { low, high: if high > low { high } else { low + 1.0 }, log: log_x, from: left, to: WIDTH - right };
    let (low, high) = range(points().map(|(_, y)| y));
    let ticks = if log_y { decades(low, high) } else { steps(high) };
    let (low, high) = (ticks[0].min(if log_y { low } else { 0.0 }), ticks[ticks.len() - 1].max(high));
    let y = Axis { low, high, log: log_y, from: HEIGHT - bottom, to: top };
    for tick in ticks {
        let place = y.at(tick);
        let _ = writeln!(
            svg,
            "<line x1=\"{left}\" x2=\"{}\" y1=\"{place:.1}\" y2=\"{place:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - right,
            left - 6.0,
            place + 4.0,
            plain(tick)
        );
    }
    for (tick, name) in if log_x { powers(x.low, x.high) } else { numbers(x.low, x.high) } {
        let _ = writeln!(
            svg,
            "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#888\"/>\
             <text x=\"{0:.1}\" y=\"{3}\" text-anchor=\"middle\">{name}</text>",
            x.at(tick),
            HEIGHT - bottom,
            HEIGHT - bottom + 4.0,
            HEIGHT - bottom + 18.0
        );
    }
    let _ = writeln!(
        svg,
        "<path d=\"M{left} {top}V{0}H{1}\" fill=\"none\" stroke=\"#888\"/>\
         <text x=\"{2}\" y=\"{3}\" text-anchor=\"middle\">{4}</text><text x=\"{5}\" y=\"{6}\" text-anchor=\"end\">{7}</text>",
        HEIGHT - bottom,
        WIDTH - right,
        (left + WIDTH - right) / 2.0,
        HEIGHT - 8.0,
        panel.x,
        left - 6.0,
        top - 10.0,
        panel.y
    );
    let mut key = left;
    for (at, series) in panel.series.iter().filter(|series| !series.points.is_empty()).enumerate() {
        let style = format!(
            "fill=\"none\" stroke=\"{}\" stroke-width=\"2\" stroke-dasharray=\"{}\"",
            COLOURS[at % COLOURS.len()],
            DASHES[at % DASHES.len()]
        );
        let line: Vec<String> =
            series.points.iter().map(|(px, py)| format!("{:.1},{:.1}", x.at(*px), y.at(*py))).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" {style}/>\n<path d=\"M{key} 40h22\" {style}/><text x=\"{}\" y=\"44\">{}</text>",
            line.join(" "),
            key + 27.0,
            series.name
        );
        // Letters are about this wide.
        key += 27.0 + 6.6 * series.name.len() as f64 + 12.0;
    }
    svg
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
}

/// Powers of ten around the values, and their halves and fifths where these are few.
fn decades(low: f64, high: f64) -> Vec<f64> {
    let low = low.max(1e-3);
    let (first, last) = (low.log10().floor() as i32, high.max(low * 1.01).log10().ceil() as i32);
    let within: &[f64] = if last - first <= 3 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let all = (first..=last).flat_map(|power| within.iter().map(move |w| w * 10f64.powi(power)));
    let wanted: Vec<f64> = all.filter(|tick| *tick >= low / 2.01 && *tick <= high * 2.01).collect();
    if wanted.len() < 2 { vec![10f64.powi(first), 10f64.powi(last)] } else { wanted }
}

/// Round steps from zero to the highest value.
fn steps(high: f64) -> Vec<f64> {
    let high = if high > 0.0 { high } else { 1.0 };
    let rough = high / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough).unwrap_or(rough);
    (0..=(high / step).ceil() as u32).map(|n| f64::from(n) * step).collect()
}

/// Sizes, a few of them.
fn powers(low: f64, high: f64) -> Vec<(f64, String)> {
    let (first, last) = (low.log2().round() as i32, high.log2().round() as i32);
    (first..=last).filter(|power| power % 4 == 0).map(|power| (2f64.powi(power), size(power as u32))).collect()
}

fn size(power: u32) -> String {
    match power {
        0..10 => format!("{} B", 1 << power),
        10..20 => format!("{} KiB", 1 << (power - 10)),
        _ => format!("{} MiB", 1u64 << (power - 20)),
    }
}

fn numbers(low: f64, high: f64) -> Vec<(f64, String)> {
    let step = ((high - low) / 10.0).ceil().max(1.0);
    let first = (low / step).ceil() as i64;
    let last = (high / step).floor() as i64;
    (first..=last).map(|n| (n as f64 * step, plain(n as f64 * step))).collect()
}

fn plain(figure: f64) -> String {
    let text = format!("{figure:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_the_values() {
        assert_eq!(steps(4.7), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(decades(3.0, 4000.0), [10.0, 100.0, 1000.0]);
        assert_eq!(decades(3.0, 90.0), [2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!(powers(1.0, 1048576.0).last().unwrap().1, "1 MiB");
        assert_eq!([0.5, 10.0, 1000.0].map(plain), ["0.5", "10", "1000"]);
    }
}
