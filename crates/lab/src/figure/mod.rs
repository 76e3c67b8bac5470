//! Figures as SVG: line charts, bars and packet ladders, arranged on a sheet.

mod axis;
mod bars;
mod chart;
mod colour;
mod ladder;
mod stacks;

pub use axis::{Axis, Scale};
pub use bars::Bars;
pub use chart::{Band, Look, Panel, Point, Series};
pub use ladder::{Ladder, Rung};
pub use stacks::Stacks;

use std::fmt::Write;

/// Approximate width of a letter of font size 12.
const LETTER: f64 = 6.5;
const COLUMNS: usize = 2;
const HEAD: f64 = 40.0;

/// A part of a sheet, drawn into its own box.
pub trait Drawing {
    /// Width and height.
    fn size(&self) -> (f64, f64);
    /// SVG elements, with the origin at the upper left.
    fn draw(&self) -> String;
}

/// Drawings in rows of two, with a title; an empty title takes no space.
pub fn sheet(title: &str, drawings: &[&dyn Drawing]) -> String {
    let head = if title.is_empty() { 0.0 } else { HEAD };
    let rows = || drawings.chunks(COLUMNS);
    let width = rows().map(|row| row.iter().map(|d| d.size().0).sum::<f64>()).fold(0.0, f64::max);
    let tall = |row: &[&dyn Drawing]| row.iter().map(|d| d.size().1).fold(0.0, f64::max);
    let height = head + rows().map(tall).sum::<f64>();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" class=\"figure\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n\
         {}<rect width=\"100%\" height=\"100%\" {}/>\n",
        colour::style(),
        colour::GROUND.fill()
    );
    if !title.is_empty() {
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"27\" font-size=\"18\" text-anchor=\"middle\">{}</text>",
            width / 2.0,
            escape(title)
        );
    }
    let mut y = head;
    for row in rows() {
        let mut x = 0.0;
        for drawing in row {
            let _ = writeln!(svg, "<g transform=\"translate({x:.0} {y:.0})\">\n{}</g>", drawing.draw());
            x += drawing.size().0;
        }
        y += tall(row);
    }
    svg + "</svg>\n"
}

/// Text for XML and HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Square(f64);

    impl Drawing for Square {
        fn size(&self) -> (f64, f64) {
            (self.0, self.0)
        }

        fn draw(&self) -> String {
            format!("<rect id=\"s{}\"/>", self.0)
        }
    }

    #[test]
    fn two_drawings_fill_a_row_and_the_third_begins_the_next() {
        let svg = sheet("a < b", &[&Square(100.0), &Square(200.0), &Square(50.0)]);
        assert!(svg.contains("a &lt; b") && svg.contains("viewBox=\"0 0 300 290\""), "{svg}");
        assert!(svg.contains("<g transform=\"translate(100 40)\">\n<rect id=\"s200\"/>"), "{svg}");
        assert!(svg.contains("<g transform=\"translate(0 240)\">\n<rect id=\"s50\"/>"), "{svg}");
        assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count());
    }

    #[test]
    fn an_empty_sheet_is_valid_svg() {
        assert!(sheet("", &[]).trim_end().ends_with("</svg>"));
    }
}
