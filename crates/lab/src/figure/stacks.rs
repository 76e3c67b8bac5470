//! Horizontal bars that consist of parts.

use super::axis::Axis;
use super::colour::{AXIS, GRID, fill};
use super::{Drawing, LETTER, escape};
use std::fmt::Write;

/// A chart of bars with the same parts.
#[derive(Clone, Debug)]
pub struct Stacks {
    pub title: String,
    pub x: Axis,
    /// Names of the parts, from the axis outwards.
    pub parts: Vec<String>,
    /// Name of each bar, and its parts.
    pub bars: Vec<(String, Vec<f64>)>,
}

const WIDTH: f64 = 540.0;
const BAR: f64 = 22.0;
/// Y of the first line of the key.
const KEY: f64 = 44.0;
const LINE: f64 = 18.0;
const LEFT: f64 = 16.0;
const RIGHT: f64 = 20.0;
const BOTTOM: f64 = 46.0;

impl Drawing for Stacks {
    fn size(&self) -> (f64, f64) {
        (WIDTH, self.key().1 + BAR * self.bars.len().max(1) as f64 + BOTTOM)
    }

    fn draw(&self) -> String {
        let mut svg = format!("<text x=\"{LEFT}\" y=\"22\" font-size=\"14\">{}</text>\n", escape(&self.title));
        if self.bars.is_empty() {
            return svg + "<text x=\"16\" y=\"48\">nothing was measured</text>\n";
        }
        let (key, top) = self.key();
        let longest = self.bars.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let left = (26.0 + LETTER * longest as f64).min(WIDTH * 0.6);
        let floor = top + BAR * self.bars.len() as f64;
        let x = self.x.layout(self.bars.iter().map(|(_, parts)| parts.iter().sum()), left, WIDTH - RIGHT);
        svg += &key;
        for (tick, name) in &x.ticks {
            let coordinate = x.at(*tick);
            let _ = writeln!(
                svg,
                "<line x1=\"{coordinate:.1}\" x2=\"{coordinate:.1}\" y1=\"{top}\" y2=\"{floor}\" {}/>\
                 <text x=\"{coordinate:.1}\" y=\"{}\" text-anchor=\"middle\">{name}</text>",
                GRID.stroke(),
                floor + 16.0
            );
        }
        for (at, (name, parts)) in self.bars.iter().enumerate() {
            let y = top + BAR * at as f64;
            let middle = y + BAR / 2.0 + 4.0;
            let _ =
                writeln!(svg, "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{}</text>", left - 8.0, escape(name));
            let mut sum = 0.0;
            for (part, value) in parts.iter().enumerate().filter(|(_, value)| value.is_finite() && **value > 0.0) {
                let (from, to) = (x.at(sum), x.at(sum + value));
                sum += value;
                let _ = writeln!(
                    svg,
                    "<rect x=\"{from:.1}\" y=\"{}\" width=\"{:.1}\" height=\"{}\" {}/>",
                    y + 3.0,
                    to - from,
                    BAR - 6.0,
                    fill(part)
                );
            }
        }
        let _ = writeln!(
            svg,
            "<path d=\"M{left:.1} {top}V{floor}\" {}/>\
             <text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            AXIS.stroke(),
            (left + WIDTH - RIGHT) / 2.0,
            floor + 36.0,
            escape(&self.x.label)
        );
        svg
    }
}

impl Stacks {
    /// The key of the parts that a bar has, and the y at which the bars begin.
    fn key(&self) -> (String, f64) {
        let mut svg = String::new();
        let (mut x, mut y) = (LEFT, KEY);
        for (at, name) in self.parts.iter().enumerate() {
            if self.bars.iter().all(|(_, parts)| parts.get(at).is_none_or(|value| *value <= 0.0)) {
                continue;
            }
            let wide = 18.0 + LETTER * name.chars().count() as f64 + 14.0;
            if x + wide > WIDTH && x > LEFT {
                (x, y) = (LEFT, y + LINE);
            }
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"10\" {}/><text x=\"{}\" y=\"{y}\">{}</text>",
                y - 9.0,
                fill(at),
                x + 18.0,
                escape(name)
            );
            x += wide;
        }
        (svg, y + 14.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_and_parts_of_no_bar_have_no_key() {
        let parts = ["a", "b < c", "none"].map(str::to_owned).to_vec();
        let bars = vec![("one".to_owned(), vec![1.0, 2.0, 0.0]), ("two".to_owned(), vec![0.0, f64::NAN, 0.0])];
        let svg = Stacks { title: "t".into(), x: Axis::linear("%"), parts: parts.clone(), bars }.draw();
        assert_eq!(svg.matches("<rect").count(), 4, "two parts, two keys: {svg}");
        assert!(svg.contains("b &lt; c") && !svg.contains("none") && !svg.contains("NaN"), "{svg}");
        let empty = Stacks { title: "t".into(), x: Axis::linear("%"), parts, bars: vec![] };
        assert!(empty.draw().contains("nothing was measured"));
    }
}
