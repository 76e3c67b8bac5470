//! The report as text for a terminal of 80 columns.

use super::document::{Connection, Document, FindingEntry, Half, Peer};
use crate::advice::Advice;
use crate::detect::{time, times};
use std::fmt::Write;

/// How text is written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// With escape sequences for colours.
    pub colours: bool,
    /// Connections that the table has at most.
    pub connections: usize,
}

const COLUMNS: usize = 80;

/// The report as text.
pub fn text(document: &Document, style: Style) -> String {
    let mut out = String::new();
    let capture = &document.capture;
    if !document.files.is_empty() {
        let _ = writeln!(out, "{}", wrapped(&document.files.join(", "), 0));
    }
    let _ = writeln!(
        out,
        "{} frames in {}, {} RDMA packets, {}",
        capture.frames,
        time(capture.duration_ns),
        capture.packets,
        times(document.connections.len() as u64, "connection"),
    );
    if capture.missed > 0 {
        let _ = writeln!(out, "{} more packets were not read in time: programs sent them too fast", capture.missed);
    }
    if capture.copies > 0 {
        let _ = writeln!(out, "{} more packets were sent again over another link, or the same one", capture.copies);
    }
    if capture.unparsed > 0 {
        let _ = writeln!(out, "{} RDMA packets could not be parsed", capture.unparsed);
    }
    let _ = writeln!(out);
    if document.findings.is_empty() {
        let _ = writeln!(out, "Nothing found.");
    }
    for (at, entry) in document.findings.iter().enumerate() {
        finding(&mut out, at + 1, entry, document, style);
    }
    connections(&mut out, document, style);
    out
}

/// A finding without its advice, for programs that still run.
pub fn headline(document: &Document, entry: &FindingEntry, style: Style) -> String {
    let mut out = String::new();
    heading(&mut out, &capital(entry.title), entry, style);
    evidence(&mut out, entry, document);
    out
}

fn finding(out: &mut String, number: usize, entry: &FindingEntry, document: &Document, style: Style) {
    heading(out, &format!("{number}. {}", capital(entry.title)), entry, style);
    evidence(out, entry, document);
    advised(out, &entry.advice);
    let _ = writeln!(out);
}

fn heading(out: &mut String, title: &str, entry: &FindingEntry, style: Style) {
    let right = format!("cost {}  confidence {:.0} %", cost(entry), entry.confidence * 100.0);
    let gap = COLUMNS.saturating_sub(title.chars().count() + right.chars().count()).max(2);
    let title = if style.colours { format!("\x1b[1;31m{title}\x1b[0m") } else { title.to_owned() };
    let _ = writeln!(out, "{title}{}{right}", " ".repeat(gap));
}

/// The QPs, the times, the frames, and what happened.
fn evidence(out: &mut String, entry: &FindingEntry, document: &Document) {
    let others = match entry.connections.len() {
        1 => String::new(),
        more => format!(" and {}", times(more as u64 - 1, "more connection")),
    };
    let line = format!("{} -> {}{others}", peer(&entry.requester), peer(&entry.responder));
    let _ = writeln!(out, "{}", wrapped(&line, 3));
    let start = entry.from.saturating_sub(document.capture.start) as f64 / 1e9;
    let end = entry.to.saturating_sub(document.capture.start) as f64 / 1e9;
    let mut line = format!("{start:.6} s to {end:.6} s");
    if !entry.frames.is_empty() {
        let _ = write!(line, ", frames {}", frames(entry, document));
    }
    let _ = writeln!(out, "{}", wrapped(&line, 3));
    let _ = writeln!(out, "{}", wrapped(&entry.text, 3));
}

/// The settings, those of one purpose together.
fn advised(out: &mut String, advice: &[Advice]) {
    for group in advice.chunk_by(|one, next| one.purpose == next.purpose) {
        let _ = writeln!(out, "{}", wrapped_after(&format!("- {}:", group[0].purpose), 3, 5));
        let mut layer = None;
        for setting in group {
            let name = if layer == Some(setting.layer) { "" } else { setting.layer.name() };
            let remark = if setting.remark.is_empty() { String::new() } else { format!(" ({})", setting.remark) };
            let _ = writeln!(out, "{}", wrapped_after(&format!("{name:<9}  {}{remark}", setting.written()), 5, 16));
            layer = Some(setting.layer);
        }
    }
}

/// The numbers of frames; of several files with the name of each.
fn frames(entry: &FindingEntry, document: &Document) -> String {
    const SHOWN: usize = 8;
    let numbers: Vec<(u64, u16)> =
        entry.frames.iter().copied().zip(entry.frame_files.iter().copied()).take(SHOWN).collect();
    let of_one = |group: &[(u64, u16)]| {
        let list: Vec<String> = group.iter().map(|(number, _)| number.to_string()).collect();
        let name = document.files.get(usize::from(group[0].1)).filter(|_| document.files.len() > 1);
        name.map_or(list.join(", "), |name| format!("{} of {name}", list.join(", ")))
    };
    let groups: Vec<String> = numbers.chunk_by(|one, next| one.1 == next.1).map(of_one).collect();
    let more = if entry.frames.len() > SHOWN { " …" } else { "" };
    format!("{}{more}", groups.join("; "))
}

fn cost(entry: &FindingEntry) -> String {
    match (entry.cost_ns, entry.cost_packets) {
        (0, 0) => "none".to_owned(),
        (0, packets) => times(packets, "packet"),
        (nanoseconds, _) => time(nanoseconds),
    }
}

fn connections(out: &mut String, document: &Document, style: Style) {
    let rows: Vec<(&Connection, &Half)> = document
        .connections
        .iter()
        .flat_map(|connection| connection.halves.iter().map(move |half| (connection, half)))
        .collect();
    if rows.is_empty() || style.connections == 0 {
        return;
    }
    let _ = writeln!(
        out,
        "{:<37} {:>8} {:>8} {:>7} {:>7} {:>6}",
        "requester QP -> responder QP", "messages", "MB/s", "p50", "p99", "again"
    );
    for (connection, half) in rows.iter().take(style.connections) {
        let [from, to] = [half.requester, 1 - half.requester].map(|end| short(&connection.ends[end]));
        let latency = |value: Option<u64>| value.map_or("-".to_owned(), brief);
        let _ = writeln!(
            out,
            "{:<37} {:>8} {:>8.1} {:>7} {:>7} {:>5.1}%",
            fit(&format!("{from} > {to}"), 37),
            half.messages,
            half.bytes_per_second / 1e6,
            latency(half.latency_p50_ns),
            latency(half.latency_p99_ns),
            half.repeat_share * 100.0,
        );
    }
    if rows.len() > style.connections {
        let _ = writeln!(out, "and {} more: --html or --json has all", rows.len() - style.connections);
    }
}

fn peer(peer: &Peer) -> String {
    match peer.qp {
        Some(qp) => format!("{} QP {qp}", peer.address),
        None => format!("{} QP ?", peer.address),
    }
}

fn short(peer: &Peer) -> String {
    match peer.qp {
        Some(qp) => format!("{} {qp}", peer.address),
        None => format!("{} ?", peer.address),
    }
}

/// A text of this many columns at most; the middle of a longer one is left out.
fn fit(text: &str, columns: usize) -> String {
    let length = text.chars().count();
    if length <= columns {
        return text.to_owned();
    }
    let (head, tail) = (columns / 2, columns - columns / 2 - 1);
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(length - tail).collect();
    format!("{start}…{end}")
}

/// A time in seven columns at most.
fn brief(nanoseconds: u64) -> String {
    match nanoseconds {
        0..1_000_000 => format!("{:.0}us", nanoseconds as f64 / 1e3),
        1_000_000..10_000_000_000 => format!("{:.0}ms", nanoseconds as f64 / 1e6),
        _ => format!("{:.0}s", nanoseconds as f64 / 1e9),
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// Lines of 80 columns, indented.
fn wrapped(text: &str, indent: usize) -> String {
    wrapped_after(text, indent, indent)
}

/// As [`wrapped`], with another indentation from the second line on. Keeps runs of spaces at the start of the text.
fn wrapped_after(text: &str, first: usize, others: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut line = " ".repeat(first);
    let mut empty = true;
    for word in text.split(' ') {
        if !empty && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            lines.push(std::mem::replace(&mut line, " ".repeat(others)));
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    lines.push(line);
    lines.join("\n")
}
