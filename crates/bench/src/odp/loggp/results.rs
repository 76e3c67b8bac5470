//! The measured parameters, and the model's predictions beside the measured times.

use super::lines::{Costs, Line};
use super::model::{Parameters, SCENARIOS, Scenario};
use crate::table::Spread;
use serde::Serialize;
use std::collections::BTreeMap;

/// All that was measured.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// m_control, bytes.
    pub control: u64,
    /// Received bytes that were compared with the sent ones.
    pub verified: u64,
    /// The ACK timeout of the QPs, µs. What takes as long has lost a packet.
    pub timeout: f64,
    pub sizes: BTreeMap<u64, Size>,
    pub eager: BTreeMap<u64, Eager>,
    /// Page faults of sender and receiver, of one message of each size; `None` if the adapter does not count them.
    pub faults: BTreeMap<Scenario, [Option<u64>; 2]>,
}

/// The rounds of a message size.
#[derive(Clone, Debug, Default)]
pub struct Size {
    pub costs: Vec<Costs>,
    pub messages: BTreeMap<Scenario, Vec<f64>>,
}

/// The rounds of an eager size.
#[derive(Clone, Debug, Default)]
pub struct Eager {
    pub copy: Vec<f64>,
    pub prefetch: Vec<f64>,
}

/// A prediction beside the measured time, µs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    pub predicted: f64,
    pub measured: Spread,
    /// Median of the measured times divided by the prediction.
    pub ratio: f64,
}

/// A parameter that depends on the size, and how it comes from the costs of a round.
pub struct Parameter {
    /// Key in JSON.
    pub key: &'static str,
    pub title: &'static str,
    pub of: fn(&Costs) -> f64,
}

/// The parameters that depend on the size, µs.
pub const BY_SIZE: [Parameter; 11] = [
    Parameter { key: "reg_pinned_absent", title: "reg, pinned, pages absent", of: |c| c.reg_absent },
    Parameter { key: "reg_pinned_present", title: "reg, pinned, pages present", of: |c| c.reg_present },
    Parameter { key: "reg_odp", title: "reg, on demand", of: |c| c.reg_odp },
    Parameter { key: "prefetch_absent", title: "o_prefetch, pages absent", of: |c| c.prefetch_absent },
    Parameter { key: "prefetch_present", title: "o_prefetch, pages filled", of: |c| c.prefetch_present },
    Parameter { key: "prefetch_again", title: "o_prefetch, adapter has them", of: |c| c.prefetch_again },
    Parameter { key: "flush_absent", title: "until present, pages absent", of: |c| c.flush_absent },
    Parameter { key: "flush_present", title: "until present, pages filled", of: |c| c.flush_present },
    Parameter { key: "flush_again", title: "until present, adapter has them", of: |c| c.flush_again },
    Parameter { key: "page_fault_s", title: "o_page_fault_s", of: Costs::fault_sender },
    Parameter { key: "page_fault_r", title: "o_page_fault_r", of: Costs::fault_receiver },
];

impl Results {
    /// The results in the output of `weir-odp`.
    pub fn of(lines: &[Line]) -> Results {
        let mut results = Results::default();
        for line in lines {
            match *line {
                Line::Parameters { bytes, costs } => results.sizes.entry(bytes).or_default().costs.push(costs),
                Line::Eager { bytes, copy, prefetch } => {
                    let eager = results.eager.entry(bytes).or_default();
                    eager.copy.push(copy);
                    eager.prefetch.push(prefetch);
                }
                Line::Message { scenario, bytes, value } => {
                    let size = results.sizes.entry(bytes).or_default();
                    size.messages.entry(scenario).or_default().push(value);
                }
                Line::Faults { scenario, sender, receiver } => {
                    let counted = [sender, receiver].map(|faults| u64::try_from(faults).ok());
                    results.faults.insert(scenario, counted);
                }
                Line::Verified { bytes, control, timeout } => {
                    (results.verified, results.control, results.timeout) = (bytes, control, timeout);
                }
            }
        }
        results
    }

    /// Of a figure over the rounds of all sizes: for parameters that do not depend on the size.
    pub fn overall(&self, of: impl Fn(&Costs) -> f64) -> Option<Spread> {
        let all: Vec<f64> = self.sizes.values().flat_map(|size| &size.costs).map(of).collect();
        Spread::of(&all)
    }

    /// L, over the rounds of all sizes, µs.
    pub fn latency(&self) -> Option<Spread> {
        self.overall(|costs| costs.latency(self.control as f64))
    }

    /// c: the time that each byte of an eager message adds to its copy, µs.
    pub fn copy_per_byte(&self) -> Option<f64> {
        let copy = |(bytes, eager): (&u64, &Eager)| Some((*bytes as f64, Spread::of(&eager.copy)?.median));
        let (small, large) = (copy(self.eager.first_key_value()?)?, copy(self.eager.last_key_value()?)?);
        Some((large.1 - small.1) / (large.0 - small.0)).filter(|slope| slope.is_finite())
    }

    /// The model's parameters for a scenario and a size: medians of the rounds of that size, in which the messages were
    /// measured too, because the machine changes over time.
    pub fn parameters(&self, scenario: Scenario, bytes: u64) -> Option<Parameters> {
        let size = self.sizes.get(&bytes)?;
        let median = |of: &dyn Fn(&Costs) -> f64| size.spread(of).map(|spread| spread.median);
        let control = self.control as f64;
        let reg = if scenario == Scenario::Pinned { median(&Costs::reg_pinned)? } else { median(&|c| c.reg_odp)? };
        Some(Parameters {
            post: median(&|c| c.post)?,
            latency: median(&|c| c.latency(control))?,
            gap: median(&|c| c.gap)?,
            byte: median(&|c| c.byte)?,
            control,
            reg,
            prefetch: median(&|c| c.prefetch_present)?,
            fault_sender: median(&Costs::fault_sender)?,
            fault_receiver: median(&Costs::fault_receiver)?,
        })
    }

    /// The prediction and the measured time; `None` if a figure is missing.
    pub fn comparison(&self, scenario: Scenario, bytes: u64) -> Option<Comparison> {
        let predicted = scenario.predict(&self.parameters(scenario, bytes)?, bytes);
        let measured = self.sizes.get(&bytes)?.measured(scenario)?;
        Some(Comparison { predicted, measured, ratio: measured.median / predicted })
    }

    /// The comparisons of a scenario, by size.
    pub fn comparisons(&self, scenario: Scenario) -> BTreeMap<u64, Comparison> {
        self.sizes.keys().filter_map(|&bytes| Some((bytes, self.comparison(scenario, bytes)?))).collect()
    }

    /// Number of messages.
    pub fn messages(&self) -> usize {
        self.sizes.values().flat_map(|size| size.messages.values()).map(Vec::len).sum()
    }

    /// Messages that took an ACK timeout or longer, by size; sizes without any are left out.
    pub fn lost(&self) -> BTreeMap<u64, usize> {
        let lost = |size: &Size| size.messages.values().flatten().filter(|&&us| us >= self.timeout).count();
        self.sizes.iter().map(|(&bytes, size)| (bytes, lost(size))).filter(|&(_, lost)| lost > 0).collect()
    }

    /// Everything as JSON.
    pub fn json(&self) -> serde_json::Value {
        let overall = serde_json::json!({
            "o_post": self.overall(|c| c.post),
            "half_round_trip": self.overall(|c| c.half),
            "l": self.latency(),
            "g": self.overall(|c| c.gap),
            "G": self.overall(|c| c.byte),
            "c": self.copy_per_byte(),
            "m_control": self.control,
        });
        let sizes: BTreeMap<u64, _> =
            self.sizes.iter().map(|(&bytes, size)| (bytes, self.size_json(bytes, size))).collect();
        let eager: BTreeMap<u64, _> = self
            .eager
            .iter()
            .map(|(&bytes, eager)| {
                (bytes, serde_json::json!({ "c": Spread::of(&eager.copy), "o_prefetch": Spread::of(&eager.prefetch) }))
            })
            .collect();
        let faults: BTreeMap<_, _> = self
            .faults
            .iter()
            .map(|(scenario, [sender, receiver])| {
                (scenario, serde_json::json!({ "sender": sender, "receiver": receiver }))
            })
            .collect();
        serde_json::json!({
            "unit": "µs; G and c: µs per byte; m_control: bytes",
            "parameters": overall, "sizes": sizes, "eager": eager, "page_faults": faults,
            "verified_bytes": self.verified, "messages": self.messages(), "waited_for_timeout": self.lost(),
        })
    }

    fn size_json(&self, bytes: u64, size: &Size) -> serde_json::Value {
        let parameters: BTreeMap<_, _> = BY_SIZE.iter().map(|p| (p.key, size.spread(p.of))).collect();
        let scenarios: BTreeMap<_, _> =
            SCENARIOS.iter().map(|&scenario| (scenario, self.comparison(scenario, bytes))).collect();
        serde_json::json!({ "parameters": parameters, "scenarios": scenarios })
    }
}

impl Size {
    /// Of a figure over the rounds.
    pub fn spread(&self, of: impl Fn(&Costs) -> f64) -> Option<Spread> {
        Spread::of(&self.costs.iter().map(of).collect::<Vec<_>>())
    }

    /// The measured times of a scenario.
    pub fn measured(&self, scenario: Scenario) -> Option<Spread> {
        Spread::of(self.messages.get(&scenario)?)
    }
}

#[cfg(test)]
pub mod testing {
    use super::*;

    /// Costs that fit the published model well.
    pub const COSTS: Costs = Costs {
        post: 1.0,
        half: 4.0,
        gap: 0.5,
        byte: 0.001,
        reg_absent: 60.0,
        reg_present: 20.0,
        reg_odp: 5.0,
        prefetch_absent: 6.0,
        prefetch_present: 5.0,
        prefetch_again: 1.0,
        flush_absent: 40.0,
        flush_present: 12.0,
        flush_again: 1.0,
        write_pinned: 100.0,
        write_sender: 150.0,
        write_receiver: 400.0,
    };

    /// Results of three rounds of two sizes. Each measured time is `factor` of what the model predicts.
    pub fn results(costs: Costs, factor: impl Fn(Scenario) -> f64) -> Results {
        let mut lines = vec![Line::Verified { bytes: 1 << 20, control: 32, timeout: 1e6 }];
        for bytes in [64, 4096] {
            lines.push(Line::Eager { bytes, copy: bytes as f64 * 1e-3, prefetch: 5.0 });
        }
        for bytes in [1 << 16, 1 << 20] {
            lines.extend([Line::Parameters { bytes, costs }; 3]);
        }
        for scenario in SCENARIOS {
            let faults = match scenario {
                Scenario::NoPrefetch | Scenario::Invalidated => 100,
                Scenario::Put => 50,
                _ => 0,
            };
            lines.push(Line::Faults { scenario, sender: faults, receiver: faults });
            let parameters = Results::of(&lines);
            for bytes in [1 << 16, 1 << 20] {
                let predicted = scenario.predict(&parameters.parameters(scenario, bytes).unwrap(), bytes);
                let value = predicted * factor(scenario);
                lines.push(Line::Message { scenario, bytes, value });
            }
        }
        Results::of(&lines)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{COSTS, results};
    use super::*;

    #[test]
    fn a_prediction_uses_the_medians_of_its_size_and_the_scenarios_registration() {
        let slow = Costs { post: 9.0, half: 99.0, ..COSTS };
        let lines = [COSTS, slow, COSTS].map(|costs| Line::Parameters { bytes: 1000, costs });
        let results = Results { control: 1000, ..Results::of(&lines) };
        let pinned = results.parameters(Scenario::Pinned, 1000).unwrap();
        assert_eq!((pinned.post, pinned.latency, pinned.reg), (1.0, 2.0, 40.0));
        let odp = results.parameters(Scenario::NoPrefetch, 1000).unwrap();
        assert_eq!((odp.reg, odp.prefetch, odp.fault_sender, odp.fault_receiver), (5.0, 5.0, 50.0, 300.0));
        assert_eq!(results.parameters(Scenario::Pinned, 2000), None);
        assert_eq!(results.overall(|c| c.post).unwrap(), Spread { median: 1.0, min: 1.0, max: 9.0 });
    }

    #[test]
    fn the_ratio_is_measured_by_predicted() {
        let results = results(COSTS, |scenario| if scenario == Scenario::Put { 3.0 } else { 0.5 });
        assert_eq!(results.comparison(Scenario::Put, 1 << 20).unwrap().ratio, 3.0);
        assert_eq!(results.comparisons(Scenario::Pinned).values().map(|c| c.ratio).collect::<Vec<_>>(), [0.5, 0.5]);
        assert_eq!(results.copy_per_byte(), Some(0.001));
        assert_eq!(Results::default().copy_per_byte(), None);
    }

    #[test]
    fn json_has_every_figure() {
        let json = results(COSTS, |_| 1.0).json();
        assert_eq!(json["parameters"]["o_post"]["median"], 1.0);
        assert_eq!(json["sizes"]["65536"]["parameters"]["page_fault_r"]["median"], 300.0);
        assert_eq!(json["sizes"]["1048576"]["scenarios"]["prefetched again"]["ratio"], 1.0);
        assert_eq!(json["page_faults"]["no prefetch"]["receiver"], 100);
        assert_eq!(json["eager"]["64"]["o_prefetch"]["max"], 5.0);
    }
}
