//! The nine systems that the authors used, and what the text says of each (T table 4.1).
//!
//! Their profiles are those of their adapters (`profiles/systems/`): the thesis gives no other values of a system. Rates
//! of links are not modelled apart.

use super::common::*;
use super::flood_pages::{last, many, times};
use super::pace::Pace;
use crate::adapter::Adapter;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated, Kind::Shaped};
use crate::data::Data;
use crate::experiment::{Experiment, Input, PaperFigure, Report};
use crate::figure::{Axis, Bars};
use crate::micro::Micro;
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "systems",
    title: "The nine systems",
    source: "T table 4.1",
    not_simulated: None,
    not_live: |_| None,
    paper: "Clusters, private servers and virtual machines with four generations of adapters. All but the one with \
            ConnectX-5 have timeouts of half a second. Damming occurs on the five with ConnectX-4, and not with \
            ConnectX-6. Packets could be captured on private servers only. Systems with the same adapter have the \
            same values here, so their claims hold or fail together.",
    figures: &[
        PaperFigure::none("T 5.1.3: damming occurs on various systems with ConnectX-4, and not with ConnectX-6.", 1),
        PaperFigure {
            name: "T table 4.1",
            axes: "A table: system, PSID, model of the adapter, versions of driver and firmware.",
            shows: "Private servers with ConnectX-3, -4 and -6, four clusters with ConnectX-4, virtual machines with \
                    ConnectX-5 and -6.",
            here: "Not drawn; each system is a profile, and the claims name it.",
            drawings: 0,
        },
    ],
    fixed_adapters: true,
    one_seed: false,
    run,
};

/// What the text says of a system.
struct System {
    profile: &'static str,
    /// T_o at the floor, ms, and its bounds.
    floor: (f64, (f64, f64)),
    /// Whether two READs are dammed, and where the text says so; `None`: the text does not say.
    dammed: Option<(bool, &'static str)>,
    /// 512 READs flood, and where the text says so.
    floods: Option<&'static str>,
}

const HALF: (f64, (f64, f64)) = (500.0, (430.0, 545.0));
const SYSTEMS: [System; 9] = [
    System { profile: "private-a", floor: HALF, dammed: None, floods: None },
    System { profile: "private-b", floor: HALF, dammed: Some((true, "T 5.1")), floods: Some("T 5.2.2") },
    System { profile: "reedbush-h", floor: HALF, dammed: Some((true, "T 5.1.3")), floods: None },
    System { profile: "reedbush-l", floor: HALF, dammed: Some((true, "T 5.1.3")), floods: None },
    System { profile: "abci", floor: HALF, dammed: Some((true, "T 5.1.3")), floods: None },
    System { profile: "ito", floor: HALF, dammed: Some((true, "T 5.1.3")), floods: None },
    System { profile: "azure-hcr", floor: (30.0, (24.0, 36.0)), dammed: None, floods: None },
    System { profile: "private-c", floor: HALF, dammed: Some((false, "T app. A")), floods: Some("T app. A") },
    System { profile: "azure-hbv2", floor: HALF, dammed: None, floods: None },
];

/// What the text says beyond that. Other experiments run the programs, on this machine.
const SAID: [Input; 4] = [
    Input {
        name: "private-a",
        paper: "ConnectX-3 has no on-demand paging",
        profile: "adapter.on_demand is false",
        source: "T 2.3",
    },
    Input {
        name: "private-b, reedbush-h: ArgoDSM's start and end",
        paper: "two groups of run times; the slower has a timeout on private-b, and is supposed to on reedbush-h",
        profile: "the experiment damming-argo has its packets",
        source: "T fig. 6.1",
    },
    Input {
        name: "abci: ArgoDSM's start and end",
        paper: "no timeout, which the text explains by the intervals between the operations",
        profile: "not modelled: the intervals are the program's",
        source: "T 6.1.1",
    },
    Input {
        name: "private-b, reedbush-h, abci: SparkUCX",
        paper: "1.30 to 1.56, 2.38 to 6.46, and 1.01 to 2.37 times as slow with on-demand paging",
        profile: "not modelled: the experiment spark runs the programs",
        source: "T fig. 6.5",
    },
];

fn run(bench: &Bench<'_>) -> Result<Report> {
    let all: Vec<usize> = (0..SYSTEMS.len()).collect();
    let with_odp: Vec<usize> = all.iter().copied().filter(|at| SYSTEMS[*at].profile != "private-a").collect();
    let trials = bench.trials(if bench.live { 1 } else { 10 });
    let alone = |at: &usize| Micro { wrong_peer: true, ..Micro::default() }.on(SYSTEMS[*at].profile);
    let floors = bench.measure(trials, &all, alone, |_, o| unanswered(o))?;
    let two =
        |at: &usize| Micro { num_ops: 2, interval: us(1000), odp: BOTH, ..Micro::default() }.on(SYSTEMS[*at].profile);
    let timeouts = bench.measure(trials, &with_odp, two, |_, o| f64::from(u8::from(o.timeouts > 0)))?;
    let pace = Pace::of(bench);
    let flood = |at: &usize| many(512).on_changed(pace.adapter(Adapter::named(SYSTEMS[*at].profile).undammed()));
    let floods = bench.measure(trials, &with_odp, flood, |_, o| last(&times(pace, o)))?;
    let of = |found: &[Vec<f64>], at: usize| {
        let found = with_odp.iter().position(|each| *each == at).map(|index| &found[index]);
        found.map_or(f64::NAN, |trials| middle(trials, |value| *value))
    };
    let mut claims = vec![];
    let mut data = Data::new(["system", "T_o ms", "share with a timeout, two READs", "512 READs ms"]);
    for (at, system) in SYSTEMS.iter().enumerate() {
        let profile = system.profile;
        let t_o = middle(&floors[at], |time| *time);
        data.push([profile.into(), t_o.into(), of(&timeouts, at).into(), of(&floods, at).into()]);
        let (floor, bounds) = system.floor;
        claims.push(
            Claim::within(Calibrated, format!("{profile}: T_o with C_ACK 1"), floor, bounds, t_o, "ms")
                .from("T fig. 4.5"),
        );
        let dammed = |name: &str| format!("{profile}: two READs, {name}");
        match system.dammed {
            Some((true, source)) => claims.push(
                Claim::at_least(Shaped, dammed("share with a timeout"), "it occurs", 0.5, of(&timeouts, at), "")
                    .from(source),
            ),
            Some((false, source)) => claims.push(
                Claim::at_most(Calibrated, dammed("share with a timeout"), "not observed", 0.0, of(&timeouts, at), "")
                    .from(source),
            ),
            None => {}
        }
        if let Some(source) = system.floods {
            let name = format!("{profile}: 512 READs over 128 QPs, client-side ODP, without damming");
            claims.push(
                Claim::at_least(Shaped, name, "far longer than a page fault", 50.0, of(&floods, at), "ms").from(source),
            );
        }
    }
    let bars = Bars {
        title: "Two READs with both-side ODP, 1000 µs between them".into(),
        x: Axis::linear("share of trials with a timeout").showing(0.0, 1.0),
        bars: with_odp.iter().map(|at| (SYSTEMS[*at].profile.to_owned(), of(&timeouts, *at))).collect(),
    };
    let inputs = [SAID.to_vec(), pace.inputs()].concat();
    Ok(Report { claims, inputs, bars: vec![bars], data, ..Report::default() })
}
