//! Horizontal bars: a value for each named condition.

use super::axis::Axis;
use super::colour::{AXIS, GRID, fill};
use super::{Drawing, LETTER, escape};
use std::fmt::Write;

/// A chart of bars.
#[derive(Clone, Debug)]
pub struct Bars {
    pub title: String,
    pub x: Axis,
    /// Name and value of each bar.
    pub bars: Vec<(String, f64)>,
}

const WIDTH: f64 = 580.0;
const BAR: f64 = 26.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 46.0;
const RIGHT: f64 = 60.0;

impl Drawing for Bars {
    fn size(&self) -> (f64, f64) {
        (WIDTH, TOP + BAR * self.bars.len().max(1) as f64 + BOTTOM)
    }

    fn draw(&self) -> String {
        let longest = self.bars.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let left = (20.0 + LETTER * longest as f64).min(WIDTH * 0.7);
        let mut svg = format!("<text x=\"16\" y=\"22\" font-size=\"14\">{}</text>\n", escape(&self.title));
        if self.bars.is_empty() {
            return svg + "<text x=\"16\" y=\"48\">nothing was measured</text>\n";
        }
        let x = self.x.layout(self.bars.iter().map(|(_, value)| *value), left, WIDTH - RIGHT);
        let floor = TOP + BAR * self.bars.len() as f64;
        for (tick, name) in &x.ticks {
            let coordinate = x.at(*tick);
            let _ = writeln!(
                svg,
                "<line x1=\"{coordinate:.1}\" x2=\"{coordinate:.1}\" y1=\"{TOP}\" y2=\"{floor}\" {}/>\
                 <text x=\"{coordinate:.1}\" y=\"{}\" text-anchor=\"middle\">{name}</text>",
                GRID.stroke(),
                floor + 16.0
            );
        }
        for (at, (name, value)) in self.bars.iter().enumerate() {
            let y = TOP + BAR * at as f64;
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
                left - 8.0,
                y + BAR / 2.0 + 4.0,
                escape(name)
            );
            if self.x.can_show(*value) {
                let end = x.at(*value);
                let _ = writeln!(
                    svg,
                    "<rect x=\"{left:.1}\" y=\"{}\" width=\"{:.1}\" height=\"{}\" {}/>\
                     <text x=\"{:.1}\" y=\"{}\">{}</text>",
                    y + 4.0,
                    (end - left).max(1.0),
                    BAR - 8.0,
                    fill(0),
                    end + 6.0,
                    y + BAR / 2.0 + 4.0,
                    super::axis::plain((value * 1000.0).round() / 1000.0)
                );
            }
        }
        let _ = writeln!(
            svg,
            "<path d=\"M{left:.1} {TOP}V{floor}\" {}/>\
             <text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            AXIS.stroke(),
            (left + WIDTH - RIGHT) / 2.0,
            floor + 36.0,
            escape(&self.x.label)
        );
        svg
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_condition_with_a_value_has_a_bar() {
        let bars = vec![("a < b".to_owned(), 0.5), ("none".to_owned(), f64::NAN), ("zero".to_owned(), 0.0)];
        let svg = Bars { title: "t".into(), x: Axis::linear("share"), bars }.draw();
        assert_eq!(svg.matches("<rect").count(), 2, "{svg}");
        assert!(svg.contains("a &lt; b") && !svg.contains("NaN"));
        assert!(Bars { title: "t".into(), x: Axis::linear(""), bars: vec![] }.draw().contains("nothing was measured"));
    }
}
