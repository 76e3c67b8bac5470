//! Line charts.

use super::axis::{Axis, AxisLayout};
use super::colour::{AXIS, BAND, FAINT, GRID, fill, stroke};
use super::{Drawing, LETTER, escape};
use std::fmt::Write;

/// A chart of lines over a common axis.
#[derive(Clone, Debug)]
pub struct Panel {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub series: Vec<Series>,
    /// Grey bands behind the lines.
    pub bands: Vec<Band>,
}

/// A line.
#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    pub points: Vec<Point>,
    pub look: Look,
}

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// A line and its points.
    Line,
    /// Horizontal, then vertical: a count that grows.
    Steps,
    /// Grey and thin: a reference that was not measured.
    Guide,
}

/// A point, with the range of its measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    /// Smallest and largest measurement.
    pub range: Option<(f64, f64)>,
}

/// A grey band across the chart.
#[derive(Clone, Debug)]
pub struct Band {
    pub name: String,
    pub low: f64,
    pub high: f64,
}

const WIDTH: f64 = 540.0;
const HEIGHT: f64 = 350.0;
/// Margins of the plot.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const BOTTOM: f64 = 48.0;
/// Y of the first line of the key.
const KEY: f64 = 44.0;
const LINE: f64 = 18.0;
const DASHES: [&str; 4] = ["", "7 3", "2 3", "9 3 2 3"];
/// Series with more points than this have no marks.
const MARKED: usize = 80;
const DENSE: usize = 30;

impl From<(f64, f64)> for Point {
    fn from((x, y): (f64, f64)) -> Point {
        Point { x, y, range: None }
    }
}

impl Series {
    /// Measured points, joined by a line.
    pub fn line(name: impl Into<String>, points: impl IntoIterator<Item = impl Into<Point>>) -> Series {
        Series { name: name.into(), points: points.into_iter().map(Into::into).collect(), look: Look::Line }
    }

    /// A count that grows in steps.
    pub fn steps(name: impl Into<String>, points: impl IntoIterator<Item = impl Into<Point>>) -> Series {
        Series { look: Look::Steps, ..Series::line(name, points) }
    }

    /// A reference that was not measured, in grey.
    pub fn guide(name: impl Into<String>, points: impl IntoIterator<Item = impl Into<Point>>) -> Series {
        Series { look: Look::Guide, ..Series::line(name, points) }
    }
}

impl Panel {
    /// A chart without bands.
    pub fn new(title: impl Into<String>, x: Axis, y: Axis, series: Vec<Series>) -> Panel {
        Panel { title: title.into(), x, y, series, bands: vec![] }
    }

    /// The points that both axes can show.
    fn points<'a>(&'a self, series: &'a Series) -> impl Iterator<Item = &'a Point> {
        series.points.iter().filter(|p| self.x.can_show(p.x) && self.y.can_show(p.y))
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        let ranges = |p: &Point| p.range.map_or([p.y, p.y], |(low, high)| [low, high]);
        let points = self
            .series
            .iter()
            .flat_map(|series| self.points(series))
            .flat_map(move |p| ranges(p).into_iter().chain([p.y]));
        points.chain(self.bands.iter().flat_map(|band| [band.low, band.high]))
    }
}

impl Drawing for Panel {
    fn size(&self) -> (f64, f64) {
        (WIDTH, HEIGHT)
    }

    fn draw(&self) -> String {
        let mut svg = format!("<text x=\"{LEFT}\" y=\"22\" font-size=\"14\">{}</text>\n", escape(&self.title));
        if self.series.iter().all(|series| self.points(series).next().is_none()) {
            let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{}\">nothing was measured</text>", HEIGHT / 2.0);
            return svg;
        }
        let (key, top) = self.key();
        let xs = self.series.iter().flat_map(|series| self.points(series)).map(|p| p.x);
        let x = self.x.layout(xs, LEFT, WIDTH - RIGHT);
        let y = self.y.layout(self.values(), HEIGHT - BOTTOM, top);
        for band in &self.bands {
            let (high, low) = (y.at(band.high), y.at(band.low));
            let _ = writeln!(
                svg,
                "<rect x=\"{LEFT}\" width=\"{}\" y=\"{high:.1}\" height=\"{:.1}\" {}/>",
                WIDTH - RIGHT - LEFT,
                (low - high).max(1.0),
                BAND.fill()
            );
        }
        svg += &self.axes(&x, &y, top);
        for (at, series) in self.series.iter().enumerate() {
            svg += &self.line(series, at, &x, &y);
        }
        svg + &key
    }
}

impl Panel {
    fn axes(&self, x: &AxisLayout, y: &AxisLayout, top: f64) -> String {
        let mut svg = String::new();
        let floor = HEIGHT - BOTTOM;
        for coordinate in y.between.iter().map(|value| y.at(*value)) {
            let _ = writeln!(svg, "<path d=\"M{LEFT} {coordinate:.1}H{}\" {}/>", WIDTH - RIGHT, FAINT.stroke());
        }
        for coordinate in x.between.iter().map(|value| x.at(*value)) {
            let _ = writeln!(svg, "<path d=\"M{coordinate:.1} {floor}v3\" {}/>", AXIS.stroke());
        }
        for (tick, name) in &y.ticks {
            let coordinate = y.at(*tick);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{coordinate:.1}\" y2=\"{coordinate:.1}\" {}/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
                WIDTH - RIGHT,
                GRID.stroke(),
                LEFT - 6.0,
                coordinate + 4.0
            );
        }
        for (tick, name) in &x.ticks {
            let _ = writeln!(
                svg,
                "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{floor}\" y2=\"{1}\" {2}/>\
                 <text x=\"{0:.1}\" y=\"{3}\" text-anchor=\"middle\">{name}</text>",
                x.at(*tick),
                floor + 5.0,
                AXIS.stroke(),
                floor + 18.0
            );
        }
        let middle = (top + floor) / 2.0;
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {top}V{floor}H{}\" fill=\"none\" {}/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
             <text transform=\"translate(16 {middle}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            WIDTH - RIGHT,
            AXIS.stroke(),
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 10.0,
            escape(&self.x.label),
            escape(&self.y.label)
        );
        svg
    }

    fn line(&self, series: &Series, at: usize, x: &AxisLayout, y: &AxisLayout) -> String {
        let mut svg = String::new();
        let positions: Vec<(f64, f64)> = self.points(series).map(|p| (x.at(p.x), y.at(p.y))).collect();
        if positions.is_empty() {
            return svg;
        }
        let style = style(series.look, at);
        let mut line = String::new();
        let mut last = None;
        for (px, py) in &positions {
            if let (Look::Steps, Some(before)) = (series.look, last) {
                let _ = write!(line, "{px:.1},{before:.1} ");
            }
            let _ = write!(line, "{px:.1},{py:.1} ");
            last = Some(*py);
        }
        let _ = writeln!(svg, "<polyline points=\"{}\" {style}/>", line.trim_end());
        // Where points are dense, the ranges have no ends.
        let dense = positions.len() > DENSE;
        for point in self.points(series) {
            let Some((low, high)) = point.range.filter(|(low, high)| self.y.can_show(*low) && low < high) else {
                continue;
            };
            let (px, low, high) = (x.at(point.x), y.at(low), y.at(high));
            let shape = match dense {
                true => format!("M{px:.1} {low:.1}V{high:.1}"),
                false => format!("M{:.1} {low:.1}h6m-3 0V{high:.1}m-3 0h6", px - 3.0),
            };
            let opacity = if dense { 0.4 } else { 0.6 };
            let _ = writeln!(svg, "<path d=\"{shape}\" fill=\"none\" {} stroke-opacity=\"{opacity}\"/>", stroke(at));
        }
        if series.look == Look::Line && positions.len() <= MARKED {
            for (px, py) in positions {
                svg += &mark(at, px, py);
            }
        }
        svg
    }

    /// The key of lines and bands, and the y at which the plot begins.
    fn key(&self) -> (String, f64) {
        let mut svg = String::new();
        let (mut x, mut y) = (LEFT, KEY);
        let lines =
            self.series.iter().enumerate().filter(|(_, series)| !series.name.is_empty() && !series.points.is_empty());
        let lines = lines.map(|(at, series)| (series.name.as_str(), Some((at, series.look))));
        for (name, line) in lines.chain(self.bands.iter().map(|band| (band.name.as_str(), None))) {
            let wide = 30.0 + LETTER * name.chars().count() as f64 + 14.0;
            if x + wide > WIDTH && x > LEFT {
                (x, y) = (LEFT, y + LINE);
            }
            let middle = y - 4.0;
            let _ = match line {
                Some((at, look)) => {
                    let mark = if look == Look::Line { mark(at, x + 12.0, middle) } else { String::new() };
                    writeln!(svg, "<path d=\"M{x} {middle}h24\" {}/>{mark}", style(look, at))
                }
                None => {
                    writeln!(svg, "<rect x=\"{x}\" y=\"{}\" width=\"24\" height=\"10\" {}/>", y - 9.0, BAND.fill())
                }
            };
            let _ = writeln!(svg, "<text x=\"{}\" y=\"{y}\">{}</text>", x + 30.0, escape(name));
            x += wide;
        }
        (svg, y + 14.0)
    }
}

fn style(look: Look, at: usize) -> String {
    match look {
        Look::Guide => format!("fill=\"none\" {} stroke-dasharray=\"3 3\"", AXIS.stroke()),
        _ => format!(
            "fill=\"none\" {} stroke-width=\"2\" stroke-dasharray=\"{}\"",
            stroke(at),
            DASHES[at % DASHES.len()]
        ),
    }
}

/// The mark of a series, with its shape and colour.
fn mark(at: usize, x: f64, y: f64) -> String {
    let shape = match at % 4 {
        0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.2\""),
        1 => format!("<path d=\"M{:.1} {:.1}h6v6h-6z\"", x - 3.0, y - 3.0),
        2 => format!("<path d=\"M{x:.1} {:.1}l3.8 6.6h-7.6z\"", y - 4.0),
        _ => format!("<path d=\"M{x:.1} {:.1}l4 4-4 4-4-4z\"", y - 4.0),
    };
    format!("{shape} {}/>\n", fill(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(points: Vec<Point>) -> Panel {
        Panel::new("a & b", Axis::log("x"), Axis::log("y"), vec![Series::line("<one>", points)])
    }

    #[test]
    fn points_outside_of_the_axes_are_left_out() {
        let svg = panel(vec![(0.0, 1.0).into(), (1.0, f64::NAN).into(), (2.0, 3.0).into(), (4.0, 5.0).into()]).draw();
        assert!(svg.contains("a &amp; b") && svg.contains("&lt;one&gt;"));
        assert_eq!(svg.matches("<circle").count(), 3, "two points and the key: {svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn a_panel_without_points_says_so() {
        for points in [vec![], vec![(f64::NAN, 1.0).into()]] {
            assert!(panel(points).draw().contains("nothing was measured"));
        }
    }

    #[test]
    fn ranges_have_error_bars_and_a_long_key_takes_more_lines() {
        let mut panel = panel(vec![Point { x: 1.0, y: 2.0, range: Some((1.0, 3.0)) }, (2.0, 2.0).into()]);
        assert_eq!(panel.draw().matches("stroke-opacity").count(), 1);
        let before = panel.key().1;
        panel.series = (0..6).map(|n| Series::line(format!("a rather long name, number {n}"), [(1.0, 1.0)])).collect();
        assert!(panel.key().1 > before + LINE);
    }

    #[test]
    fn a_count_grows_in_steps() {
        let series = Series::steps("n", [(1.0, 1.0), (10.0, 10.0)]);
        let svg = Panel::new("", Axis::log(""), Axis::log(""), vec![series]).draw();
        let points = svg.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!(points.split(' ').count(), 3);
    }
}
