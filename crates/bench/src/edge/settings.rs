//! How the two processes of a measurement work: what `weir edge bench` can set of libweir-edge.

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use weir_edge::{Mode, Options, Parameters, Scheduler};

/// The environment of a side. Both sides of a run have the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Calls take packets, and not a thread of the node.
    pub polling: bool,
    /// Measure where CPU time goes.
    pub measure: bool,
    pub scheduler: Scheduling,
    pub weights: Weights,
    pub copies: Copies,
    pub parameters: Preset,
    /// Bytes from the beginning of a page to the place of an operation at the peer.
    pub offset: usize,
}

/// How packets are distributed over the links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheduling {
    /// One packet on each link in turn
    Srr,
    /// As many packets as its weight on each link in turn
    Wsrr,
    /// The link with the fewest bytes for its weight
    Wd,
    /// The link on which the packet is expected to arrive first, by measured rates
    #[default]
    Auto,
}

/// What else is copied, beside the one copy of what comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Copies {
    /// Nothing
    #[default]
    None,
    /// The bytes of each packet before it is sent
    Send,
    /// The bytes of each packet that comes, before they are copied to their place
    Receive,
    /// Both
    Both,
}

/// When a connection acknowledges and sends again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// As the thesis has it: a window of 512 packets, losses told after 256 packets or 5 ms
    Multiedge,
    /// The defaults of libweir-edge
    #[default]
    Tuned,
}

/// The weights of links.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Weights {
    /// Those of the interfaces, which are equal for veths.
    #[default]
    Interfaces,
    /// The rates of the links.
    Rates,
    /// These, in the order of the links.
    Given(Vec<u32>),
}

impl FromStr for Weights {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Weights> {
        if text == "rates" {
            return Ok(Weights::Rates);
        }
        let weight = |part: &str| -> Result<u32> {
            let weight = part.parse().with_context(|| format!("`{part}` is not a weight: give `rates`, or 10:1:1"))?;
            ensure!((1..=1000).contains(&weight), "the weight {weight} is not from 1 to 1000");
            Ok(weight)
        };
        Ok(Weights::Given(text.split(':').map(weight).collect::<Result<_>>()?))
    }
}

impl Settings {
    /// With the weights of links of these rates.
    pub fn for_links(&self, rates: &[u32]) -> Result<Settings> {
        let weights = match &self.weights {
            Weights::Interfaces => Weights::Interfaces,
            Weights::Rates => Weights::Given(rates.to_vec()),
            Weights::Given(weights) => {
                ensure!(weights.len() == rates.len(), "{} weights for {} links", weights.len(), rates.len());
                Weights::Given(weights.clone())
            }
        };
        Ok(Settings { weights, ..self.clone() })
    }

    /// The options of a node of libweir-edge.
    pub fn options(&self) -> Result<Options> {
        let links = match &self.weights {
            // The stage names the links in the environment.
            Weights::Interfaces | Weights::Rates => None,
            Weights::Given(weights) => {
                let named = weights.iter().enumerate().map(|(link, weight)| format!("eth{link}={weight}"));
                Some(named.collect::<Vec<_>>().join(",").parse()?)
            }
        };
        Ok(Options {
            links,
            mode: if self.polling { Mode::Polling } else { Mode::Events },
            scheduler: match self.scheduler {
                Scheduling::Srr => Scheduler::RoundRobin,
                Scheduling::Wsrr => Scheduler::WeightedRoundRobin,
                Scheduling::Wd => Scheduler::Dynamic,
                Scheduling::Auto => Scheduler::Auto,
            },
            parameters: match self.parameters {
                Preset::Multiedge => Parameters::MULTIEDGE,
                Preset::Tuned => Parameters::TUNED,
            },
            copy_sends: matches!(self.copies, Copies::Send | Copies::Both),
            copy_receives: matches!(self.copies, Copies::Receive | Copies::Both),
            measure: self.measure,
            ..Options::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_given_or_follow_from_rates() {
        assert_eq!("rates".parse::<Weights>().unwrap(), Weights::Rates);
        assert_eq!("10:1:1".parse::<Weights>().unwrap(), Weights::Given(vec![10, 1, 1]));
        for wrong in ["", "0:1", "1001", "x", "1,2"] {
            assert!(wrong.parse::<Weights>().is_err(), "{wrong}");
        }
        let of = |weights| Settings { weights, ..Settings::default() };
        let rates = of(Weights::Rates).for_links(&[10, 1]).unwrap();
        assert_eq!(rates.weights, Weights::Given(vec![10, 1]));
        assert_eq!(rates.options().unwrap().links, Some("eth0=10,eth1=1".parse().unwrap()));
        assert!(of(Weights::Given(vec![1])).for_links(&[1, 1]).is_err());
        assert_eq!(of(Weights::Interfaces).for_links(&[1, 1]).unwrap().options().unwrap().links, None);
    }

    #[test]
    fn settings_are_options_of_a_node() {
        let usual = Settings::default().options().unwrap();
        assert_eq!((usual.scheduler, usual.parameters), (Scheduler::Auto, Parameters::TUNED));
        assert!(!usual.copy_sends && !usual.copy_receives && usual.mode == Mode::Events);
        let thesis = Settings {
            polling: true,
            scheduler: Scheduling::Wd,
            copies: Copies::Receive,
            parameters: Preset::Multiedge,
            ..Settings::default()
        };
        let options = thesis.options().unwrap();
        assert_eq!((options.scheduler, options.parameters), (Scheduler::Dynamic, Parameters::MULTIEDGE));
        assert!(!options.copy_sends && options.copy_receives && options.mode == Mode::Polling);
        let text = serde_json::to_string(&thesis).unwrap();
        assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), thesis);
    }
}
