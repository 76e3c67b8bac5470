//! A scenario in text, to see why a finding is wrong or missing.

use super::facts::Facts;
use super::log::{Entry, Event, Half};
use super::rig;
use super::scenario::Scenario;
use anyhow::{Context, Result};
use std::fmt::Write;

/// The scenario of a seed, what the simulator did in one of its halves, and the captures of client and server as
/// pcapng.
pub fn explain(seed: u64, half: usize) -> Result<(String, [Vec<u8>; 2])> {
    let scenario = Scenario::of(seed);
    let recording = rig::run(&scenario).with_context(|| format!("{scenario:?}"))?;
    let mut text = format!("{scenario:#?}\n");
    if let Some(half) = recording.log.halves.get(half) {
        let facts = Facts::of(half, &recording.log.pages);
        let _ = writeln!(text, "{:?} failed: {:?}", half.ends, half.failed);
        half.entries.iter().for_each(|entry| line(&mut text, half, entry));
        let _ = writeln!(text, "{facts:#?}");
    }
    Ok((text, recording.captures))
}

fn line(text: &mut String, half: &Half, entry: &Entry) {
    let us = entry.at as f64 / 1e3;
    let packet = |place: usize| {
        let packet = &half.packets[place];
        let again = if packet.repeated { " again" } else { "" };
        format!("{:?} {}{again}", packet.what, packet.psn)
    };
    let what = match entry.event {
        Event::Sent(place) => {
            let lost = half.packets[place].lost.map_or_else(String::new, |loss| format!(", lost: {loss:?}"));
            let arrow = if half.packets[place].what.is_request() { "->" } else { "      <-" };
            format!("{arrow} {}{lost}", packet(place))
        }
        Event::Arrived(place) => format!("            arrived: {}", packet(place)),
        Event::Lost(place) => format!("            lost: {} {:?}", packet(place), half.packets[place].lost),
        other => format!("                 {other:?}"),
    };
    let _ = writeln!(text, "{us:14.3} {what}");
}
