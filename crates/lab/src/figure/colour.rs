//! Colours of figures, on light and on dark ground.
//!
//! Attributes carry the colours of light ground, for viewers without CSS. A style sheet in each SVG replaces them on dark
//! ground, by class.

/// Colours that are distinct for colour-blind readers too (Okabe and Ito), and lighter ones of the same hues.
const COLOURS: [(&str, &str); 6] = [
    ("#0072b2", "#4aa3df"),
    ("#d55e00", "#ff8533"),
    ("#009e73", "#2ecc9a"),
    ("#cc79a7", "#e6a3c8"),
    ("#56b4e9", "#a5dcff"),
    ("#e69f00", "#ffcf5c"),
];

/// Text and strong lines.
pub(super) const INK: Tone = Tone { class: "ink", light: "#222", dark: "#e4e4e2" };
/// Axes and references.
pub(super) const AXIS: Tone = Tone { class: "axis", light: "#888", dark: "#8a8f96" };
/// Notes.
pub(super) const NOTE: Tone = Tone { class: "note", light: "#5c5c5c", dark: "#a3a6aa" };
/// Lines at ticks.
pub(super) const GRID: Tone = Tone { class: "grid", light: "#ddd", dark: "#3a3f46" };
/// Lines between the ticks of a logarithmic axis.
pub(super) const FAINT: Tone = Tone { class: "faint", light: "#f0f0f0", dark: "#26292e" };
/// Bands behind the lines.
pub(super) const BAND: Tone = Tone { class: "band", light: "#e4e4e4", dark: "#34383e" };
/// The background.
pub(super) const GROUND: Tone = Tone { class: "ground", light: "#fff", dark: "#16181b" };

/// A grey, on light and on dark ground.
pub(super) struct Tone {
    class: &'static str,
    light: &'static str,
    dark: &'static str,
}

impl Tone {
    /// Attributes of a line.
    pub fn stroke(&self) -> String {
        format!("class=\"s-{}\" stroke=\"{}\"", self.class, self.light)
    }

    /// Attributes of an area or of text.
    pub fn fill(&self) -> String {
        format!("class=\"f-{}\" fill=\"{}\"", self.class, self.light)
    }
}

/// Attributes of a line in the colour of a series or an operation.
pub(super) fn stroke(at: usize) -> String {
    let number = at % COLOURS.len();
    format!("class=\"s{number}\" stroke=\"{}\"", COLOURS[number].0)
}

/// Attributes of an area in the colour of a series or an operation.
pub(super) fn fill(at: usize) -> String {
    let number = at % COLOURS.len();
    format!("class=\"f{number}\" fill=\"{}\"", COLOURS[number].0)
}

/// A style sheet for dark ground. Printers get the light colours.
pub(super) fn style() -> String {
    let mut css = String::new();
    let colours = COLOURS.iter().enumerate().map(|(at, (_, dark))| (at.to_string(), *dark));
    let tones = [INK, AXIS, NOTE, GRID, FAINT, BAND, GROUND];
    for (class, dark) in colours.chain(tones.iter().map(|tone| (format!("-{}", tone.class), tone.dark))) {
        css += &format!(".figure .s{class}{{stroke:{dark}}}.figure .f{class}{{fill:{dark}}}");
    }
    format!("<style>@media screen and (prefers-color-scheme:dark){{.figure{{fill:{}}}{css}}}</style>\n", INK.dark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_has_a_colour_on_dark_ground() {
        let style = style();
        for (at, (_, dark)) in COLOURS.iter().enumerate() {
            assert!(style.contains(&format!(".s{at}{{stroke:{dark}}}")), "{style}");
        }
        assert!(style.contains(".f-ground{fill:#16181b}"), "{style}");
        assert_eq!(stroke(1), stroke(1 + COLOURS.len()));
        assert_eq!(style.matches('{').count(), style.matches('}').count());
    }
}
