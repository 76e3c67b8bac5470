//! Packet ladders, as in the papers: two vertical lines, time from top to bottom, an arrow for each packet.

use super::colour::{GROUND, INK, NOTE, fill, stroke};
use super::{Drawing, escape};
use crate::micro::Step;
use std::fmt::Write;
use std::time::Duration;

/// The packets between two hosts.
#[derive(Clone, Debug)]
pub struct Ladder {
    pub title: String,
    /// The packets, in the order of their times.
    pub rungs: Vec<Rung>,
}

/// A packet.
#[derive(Clone, Debug)]
pub struct Rung {
    /// When it was sent, since the first post.
    pub time: Duration,
    pub from_client: bool,
    pub label: String,
    /// The packet's operation, which gives its colour.
    pub operation: Option<u32>,
    /// The packet did not arrive: its arrow ends early.
    pub lost: bool,
}

const WIDTH: f64 = 520.0;
const CLIENT: f64 = 96.0;
const SERVER: f64 = WIDTH - 96.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 26.0;
/// Vertical extent of an arrow.
const SLOPE: f64 = 14.0;
/// Distances between two packets: the least, at which labels are readable, and the greatest.
const NEAR: f64 = 30.0;
const FAR: f64 = 84.0;
/// Silences longer than this break the axis.
const SILENCE: Duration = Duration::from_millis(20);
/// Distance for each power of ten of a gap above a microsecond.
const DECADE: f64 = 14.0;
/// Packets that are drawn at most.
const MOST: usize = 60;

impl Ladder {
    /// The ladder of a run's packets. With several operations, each label has the operation's number.
    pub fn of(title: impl Into<String>, steps: &[Step]) -> Ladder {
        let several = steps.iter().any(|step| step.operation.is_some_and(|at| at > 0));
        let rungs = steps.iter().map(|step| Rung {
            time: step.time,
            from_client: step.from_client,
            label: match step.operation {
                Some(at) if several => format!("{} ({})", step.what, ordinal(at + 1)),
                _ => step.what.clone(),
            },
            operation: step.operation,
            lost: step.lost,
        });
        Ladder { title: title.into(), rungs: rungs.collect() }
    }

    /// The y at which each packet leaves, and the gap before it if that breaks the axis.
    fn positions(&self) -> Vec<(f64, Option<Duration>)> {
        let mut y = TOP + 6.0;
        let mut last: Option<Duration> = None;
        let mut positions = vec![];
        for rung in self.rungs.iter().take(MOST) {
            let gap = last.map(|last| rung.time.saturating_sub(last));
            let broken = gap.filter(|gap| *gap >= SILENCE);
            y += match gap {
                None => 0.0,
                Some(_) if broken.is_some() => FAR,
                Some(gap) => {
                    let decades = (gap.as_secs_f64() * 1e6).max(1.0).log10();
                    (NEAR + DECADE * (decades - 1.0).max(0.0)).min(FAR)
                }
            };
            positions.push((y, broken));
            last = Some(rung.time);
        }
        positions
    }
}

impl Drawing for Ladder {
    fn size(&self) -> (f64, f64) {
        let last = self.positions().last().map_or(TOP + 30.0, |(y, _)| *y);
        (WIDTH, last + SLOPE + 16.0 + BOTTOM)
    }

    fn draw(&self) -> String {
        let (positions, floor) = (self.positions(), self.size().1 - BOTTOM);
        let mut svg = format!("<text x=\"16\" y=\"22\" font-size=\"14\">{}</text>\n", escape(&self.title));
        for (x, name) in [(CLIENT, "client"), (SERVER, "server")] {
            let _ = writeln!(
                svg,
                "<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\" font-weight=\"bold\">{name}</text>\
                 <line x1=\"{x}\" x2=\"{x}\" y1=\"{}\" y2=\"{floor}\" {} stroke-width=\"1.5\"/>",
                TOP - 16.0,
                TOP - 8.0,
                INK.stroke()
            );
        }
        for (rung, (y, broken)) in self.rungs.iter().zip(&positions) {
            if let Some(silence) = broken {
                svg += &silent(y - FAR / 2.0 + SLOPE / 2.0, *silence);
            }
            svg += &arrow(rung, *y);
        }
        let left_out = self.rungs.len().saturating_sub(MOST);
        let note = match (left_out, positions.is_empty()) {
            (_, true) => "no packets were seen".to_owned(),
            (0, _) => "time goes down, not to scale; in ms".to_owned(),
            (more, _) => format!("and {more} more packets"),
        };
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" font-size=\"11\" {}>{note}</text>",
            WIDTH / 2.0,
            floor + 18.0,
            NOTE.fill()
        );
        svg
    }
}

fn arrow(rung: &Rung, y: f64) -> String {
    let (from, to) = if rung.from_client { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
    let way = (to - from).signum();
    // The arrow of a lost packet ends before the other line.
    let share = if rung.lost { 0.84 } else { 1.0 };
    let (end, low) = (from + (to - from) * share, y + SLOPE * share);
    let colour = rung.operation.unwrap_or(0) as usize;
    let mut svg = String::new();
    let _ = write!(
        svg,
        "<path d=\"M{from} {y:.1}L{end:.1} {low:.1}\" {} stroke-width=\"1.6\" fill=\"none\"/>",
        stroke(colour)
    );
    let _ = if rung.lost {
        write!(
            svg,
            "<g class=\"lost\"><path d=\"M{0:.1} {1:.1}l10 10m0 -10l-10 10\" {2} stroke-width=\"2\"/></g>",
            end - 5.0,
            low - 5.0,
            INK.stroke()
        )
    } else {
        // The head lies along the arrow.
        let (back, half) = (-9.0 * way, 3.6);
        let sink = SLOPE / (SERVER - CLIENT) * 9.0;
        write!(
            svg,
            "<path d=\"M{end:.1} {low:.1}l{back:.1} {:.1}v{:.1}z\" {}/>",
            -half - sink,
            2.0 * half,
            fill(colour)
        )
    };
    let (x, anchor) = if rung.from_client { (CLIENT - 8.0, "end") } else { (SERVER + 8.0, "start") };
    // The label lies on the arrow's middle.
    let middle = (from + end) / 2.0;
    let tilt = way * SLOPE.atan2(SERVER - CLIENT).to_degrees();
    let label = if rung.lost { format!("{}, lost", rung.label) } else { rung.label.clone() };
    let _ = writeln!(
        svg,
        "<text x=\"{x}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>\
         <text transform=\"translate({middle} {:.1}) rotate({tilt:.2})\" text-anchor=\"middle\">{}</text>",
        y + 4.0,
        milliseconds(rung.time),
        (y + low) / 2.0 - 4.0,
        escape(&label)
    );
    svg
}

/// A break of both lines, with the length of the silence.
fn silent(y: f64, silence: Duration) -> String {
    let mut svg = String::new();
    for x in [CLIENT, SERVER] {
        let _ = write!(
            svg,
            "<g class=\"break\"><path d=\"M{0} {1:.1}h20v8h-20z\" {5}/>\
             <path d=\"M{2} {3:.1}l16 -6M{2} {4:.1}l16 -6\" {6} stroke-width=\"1.5\"/></g>",
            x - 10.0,
            y - 4.0,
            x - 8.0,
            y - 1.0,
            y + 7.0,
            GROUND.fill(),
            INK.stroke()
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"middle\" {}>{:.1} ms of silence</text>",
        (CLIENT + SERVER) / 2.0,
        y + 4.0,
        NOTE.fill(),
        silence.as_secs_f64() * 1e3
    );
    svg
}

/// In ms, to the microsecond, as in the papers' captures.
fn milliseconds(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64() * 1e3)
}

fn ordinal(number: u32) -> String {
    let ending = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(micros: u64, from_client: bool, operation: u32, lost: bool) -> Step {
        let what = if from_client { "Read <Request>" } else { "Response" };
        let time = Duration::from_micros(micros);
        Step { time, from_client, what: what.into(), operation: Some(operation), lost }
    }

    #[test]
    fn a_lost_packet_ends_in_a_cross_and_a_long_silence_breaks_both_lines() {
        let steps =
            [step(0, true, 0, false), step(5, false, 0, false), step(10, true, 1, true), step(500_000, true, 1, false)];
        let ladder = Ladder::of("t", &steps);
        let svg = ladder.draw();
        assert_eq!(svg.matches("class=\"lost\"").count(), 1);
        assert_eq!(svg.matches("class=\"break\"").count(), 2);
        assert!(svg.contains("500.0 ms of silence") && svg.contains("Read &lt;Request&gt; (2nd), lost"), "{svg}");
        let positions: Vec<f64> = ladder.positions().iter().map(|(y, _)| *y).collect();
        assert!(positions.windows(2).all(|pair| pair[1] - pair[0] >= NEAR), "{positions:?}");
        assert!(positions.last().unwrap() + SLOPE < ladder.size().1);
    }

    #[test]
    fn a_single_operation_has_no_number_and_an_empty_ladder_says_so() {
        assert!(!Ladder::of("t", &[step(0, true, 0, false)]).draw().contains("1st"));
        assert!(Ladder::of("t", &[]).draw().contains("no packets were seen"));
        assert_eq!([1, 2, 3, 4, 11, 22].map(ordinal), ["1st", "2nd", "3rd", "4th", "11th", "22nd"]);
    }

    #[test]
    fn packets_beyond_the_limit_are_only_counted() {
        let steps: Vec<Step> = (0..500).map(|n| step(n, true, 0, false)).collect();
        assert!(Ladder::of("t", &steps).draw().contains("and 440 more packets"));
    }
}
