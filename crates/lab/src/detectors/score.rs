//! Compares what the analysis finds with the truth.

use super::draw::Draw;
use super::facts::Facts;
use super::imperfect::Flaw;
use super::log::{Half, Log};
use super::rig::{self, Recording, SIDES};
use super::scenario::Scenario;
use super::truth::{self, Truth, View};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::io::Cursor;
use std::net::Ipv4Addr;
use weir_analyze::{Analysis, Finding, FindingKind, Options, Report};
use weir_capture::packet::Address;
use weir_capture::{Frame, Reader};
use weir_sim::HostId;

/// The comparison of a scenario.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub tallies: BTreeMap<FindingKind, Tally>,
    /// The same, of captures with a flaw.
    pub flawed: BTreeMap<FindingKind, Tally>,
    pub errors: Vec<Wrong>,
    pub flawed_errors: Vec<Wrong>,
}

/// A finding that is wrong or missing.
#[derive(Clone, Debug)]
pub struct Wrong {
    pub seed: u64,
    pub kind: FindingKind,
    /// It was found; otherwise it is missing.
    pub found: bool,
    /// Which captures were analyzed.
    pub view: &'static str,
    /// The scenario, and the half.
    pub about: String,
}

/// Counts of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub right: u64,
    pub wrong: u64,
    pub missed: u64,
    /// Not there and not found.
    pub absent: u64,
    /// Left out: borderline cases, and what the capture does not show.
    pub either: u64,
    pub hidden: u64,
}

/// Connections of a scenario that count, at most: scenarios with many must not outweigh the others.
const COUNTED: usize = 8;

/// Captures that are analyzed.
const VIEWS: [(&str, &[usize]); 3] = [("client", &[0]), ("server", &[1]), ("both", &[0, 1])];

impl Tally {
    pub fn add(&mut self, other: Tally) {
        self.right += other.right;
        self.wrong += other.wrong;
        self.missed += other.missed;
        self.absent += other.absent;
        self.either += other.either;
        self.hidden += other.hidden;
    }

    pub fn precision(&self) -> f64 {
        self.right as f64 / (self.right + self.wrong) as f64
    }

    pub fn recall(&self) -> f64 {
        self.right as f64 / (self.right + self.missed) as f64
    }
}

impl Outcome {
    /// Adds the comparison of another scenario.
    pub fn add(&mut self, other: Outcome) {
        for (kind, tally) in other.tallies {
            self.tallies.entry(kind).or_default().add(tally);
        }
        for (kind, tally) in other.flawed {
            self.flawed.entry(kind).or_default().add(tally);
        }
        self.errors.extend(other.errors);
        self.flawed_errors.extend(other.flawed_errors);
    }
}

/// Runs the scenario of a seed, analyzes its captures and compares.
pub fn score(seed: u64) -> Result<Outcome> {
    let scenario = Scenario::of(seed);
    let recording = rig::run(&scenario).with_context(|| format!("{scenario:?}"))?;
    let facts: Vec<Facts> = recording.log.halves.iter().map(|half| Facts::of(half, &recording.log.pages)).collect();
    let counted = counted(&recording.log, seed);
    let mut outcome = Outcome::default();
    for (name, sides) in VIEWS {
        let files: Vec<Vec<u8>> = sides.iter().map(|side| recording.captures[*side].clone()).collect();
        let mut analysis = analyze(files)?;
        let report = analysis.finish();
        let case = Case { scenario: &scenario, recording: &recording, facts: &facts, report: &report, name };
        case.compare(&view(&recording, sides, report.totals.last), &counted, &mut outcome);
    }
    let mut flawed = Outcome::default();
    flawed_capture(&scenario, &recording, &facts, &counted, &mut flawed)?;
    (outcome.flawed, outcome.flawed_errors) = (flawed.tallies, flawed.errors);
    Ok(outcome)
}

/// Compares for a capture of one side that has a flaw.
fn flawed_capture(
    scenario: &Scenario,
    recording: &Recording,
    facts: &[Facts],
    counted: &[usize],
    outcome: &mut Outcome,
) -> Result<()> {
    let mut draw = Draw::new(scenario.seed ^ 0xf1);
    let side = draw.between(0, 1) as usize;
    let flaw = Flaw::draw(&mut draw);
    let mut reader = Reader::new(Cursor::new(recording.captures[side].clone()))?;
    let frames = reader.owned_frames().collect::<Result<Vec<_>, _>>()?;
    let frames = flaw.apply(frames, &mut draw);
    let mut analysis = Analysis::new(Options::default());
    let mut view = View::default();
    let ids = recording.log.frames.get(&SIDES[side]).map(Vec::as_slice).unwrap_or_default();
    for (number, owned) in frames.iter().enumerate() {
        let mut frame = Frame::new(number as u64 + 1, owned.timestamp, owned.link_type, &owned.data);
        (frame.orig_len, frame.direction) = (owned.orig_len, owned.direction);
        analysis.frame(0, &frame);
        *view.seen[side].entry(ids[owned.number as usize - 1]).or_default() += 1;
    }
    let report = analysis.finish();
    view.last = report.totals.last;
    view.cut = matches!(flaw, Flaw::Snapped(_));
    let name = ["client, flawed", "server, flawed"][side];
    Case { scenario, recording, facts, report: &report, name }.compare(&view, counted, outcome);
    Ok(())
}

/// The halves that count.
fn counted(log: &Log, seed: u64) -> Vec<usize> {
    let mut all: Vec<usize> = (0..log.halves.len()).collect();
    let mut draw = Draw::new(seed ^ 0xc0);
    while all.len() > COUNTED {
        all.swap_remove(draw.between(0, all.len() as u64 - 1) as usize);
    }
    all
}

fn analyze(files: Vec<Vec<u8>>) -> Result<Analysis> {
    let mut analysis = Analysis::new(Options::default());
    for (number, bytes) in files.into_iter().enumerate() {
        let mut reader = Reader::new(Cursor::new(bytes))?;
        while let Some(frame) = reader.next_frame()? {
            analysis.frame(number as u16, &frame);
        }
    }
    Ok(analysis)
}

fn view(recording: &Recording, sides: &[usize], last: u64) -> View {
    let mut view = View { last, ..View::default() };
    for side in sides {
        for packet in recording.log.frames.get(&SIDES[*side]).into_iter().flatten() {
            *view.seen[*side].entry(*packet).or_default() += 1;
        }
    }
    view
}

struct Case<'a> {
    scenario: &'a Scenario,
    recording: &'a Recording,
    facts: &'a [Facts],
    report: &'a Report<'a>,
    name: &'static str,
}

impl Case<'_> {
    fn compare(&self, view: &View, counted: &[usize], outcome: &mut Outcome) {
        let log = &self.recording.log;
        for at in counted {
            let half = &log.halves[*at];
            // Of two captures the first that has a connection counts, except for marks and ICRCs.
            let has = |side: &usize| half.packets.iter().any(|packet| view.seen[*side].contains_key(&packet.id));
            let Some(side) = [0, 1].into_iter().find(has) else { continue };
            let one = view.of(side);
            let found = self.findings(half);
            for kind in FindingKind::ALL {
                if matches!(kind, FindingKind::Flood | FindingKind::PeerStopped) {
                    continue;
                }
                let both = matches!(kind, FindingKind::BadIcrc | FindingKind::Congestion);
                let truth = truth::of_half(kind, half, &self.facts[*at], if both { view } else { &one });
                self.enter(kind, truth, found.iter().find(|finding| finding.kind == kind).copied(), outcome, *at);
            }
        }
        let of_client = |kind| {
            let from = address(SIDES[0]);
            let is = |finding: &&Finding| {
                finding.kind == kind
                    && finding.flows.iter().any(|flow| self.report.flows[flow.0 as usize].key.from == from)
            };
            self.report.findings.iter().find(is)
        };
        let flood = truth::flood(log, self.facts, view);
        self.enter(FindingKind::Flood, flood, of_client(FindingKind::Flood), outcome, usize::MAX);
        let stopped = truth::peer_stopped(self.scenario, log, self.facts, view);
        self.enter(FindingKind::PeerStopped, stopped, of_client(FindingKind::PeerStopped), outcome, usize::MAX);
    }

    /// The findings about a half.
    fn findings(&self, half: &Half) -> Vec<&Finding> {
        let (from, to) = (address(half.ends.requester.host), address(half.ends.responder.host));
        let is = |finding: &&Finding| {
            finding.flows.iter().any(|flow| {
                let key = self.report.flows[flow.0 as usize].key;
                key.from == from && key.to == to && key.qpn == half.ends.responder.num
            })
        };
        self.report.findings.iter().filter(is).collect()
    }

    fn enter(&self, kind: FindingKind, truth: Truth, finding: Option<&Finding>, outcome: &mut Outcome, half: usize) {
        let tally = outcome.tallies.entry(kind).or_default();
        let found = finding.is_some();
        match (truth, found) {
            (Truth::Yes, true) => tally.right += 1,
            (Truth::Yes, false) => tally.missed += 1,
            (Truth::No, true) => tally.wrong += 1,
            (Truth::No, false) => tally.absent += 1,
            (Truth::Either, _) => tally.either += 1,
            (Truth::Hidden, _) => tally.hidden += 1,
        }
        if matches!((truth, found), (Truth::Yes, false) | (Truth::No, true)) {
            let Scenario { seed, family, profile, .. } = self.scenario;
            let said = finding.map_or_else(String::new, |finding| format!("; {}", finding.text));
            outcome.errors.push(Wrong {
                seed: *seed,
                kind,
                found,
                view: self.name,
                about: format!("{family:?} on {profile}, half {half}{said}"),
            });
        }
    }
}

/// The address of a host in the simulator's captures.
fn address(host: HostId) -> Address {
    let [_, a, b, c] = (host.0 + 1).to_be_bytes();
    Address::Ipv4(Ipv4Addr::new(10, a, b, c))
}
