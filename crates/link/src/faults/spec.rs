//! Fault specifications: `loss=0.01,dup=0.001,reorder=0.01,corrupt=0.001,delay=50us,jitter=10us,seed=7,dir=out`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;

/// Probabilities per datagram, delays, and the direction that they apply to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultSpec {
    /// Probability of loss.
    pub loss: f64,
    /// Probability of duplication.
    pub duplicate: f64,
    /// Probability of being overtaken by one to three later datagrams (by none if none comes within a millisecond).
    pub reorder: f64,
    /// Probability of one to three flipped bits.
    pub corrupt: f64,
    /// How long each datagram is held back.
    pub delay: Duration,
    /// Upper bound of an additional delay, evenly distributed; the order is kept.
    pub jitter: Duration,
    /// Seed of the random sequence; `None`: a random seed.
    pub seed: Option<u64>,
    /// The affected direction.
    pub direction: FaultDirection,
}

/// Which datagrams the faults apply to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultDirection {
    /// Outgoing datagrams: each side of a pair usually has its own faults.
    #[default]
    Out,
    /// Incoming datagrams.
    In,
    /// Both.
    Both,
}

/// What is wrong with a fault specification.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FaultSpecError {
    #[error("`{0}` is not a fault: use loss, dup, reorder, corrupt, delay, jitter, seed or dir, with =VALUE")]
    Unknown(String),
    #[error("{0} is given twice; give it once")]
    Twice(&'static str),
    #[error("{name}={value}: must be a probability from 0 to 1")]
    Probability { name: &'static str, value: String },
    #[error("{name}={value}: must be a time with its unit, as 50us (ns, us, ms or s), at most an hour")]
    Time { name: &'static str, value: String },
    #[error("seed={0}: must be a whole number")]
    Seed(String),
    #[error("dir={0}: must be in, out or both")]
    Direction(String),
}

const NAMES: [&str; 8] = ["loss", "dup", "reorder", "corrupt", "delay", "jitter", "seed", "dir"];
const MAX_TIME: Duration = Duration::from_secs(3600);

impl FaultDirection {
    /// Whether faults apply to outgoing datagrams.
    pub fn is_out(self) -> bool {
        self != FaultDirection::In
    }

    /// Whether faults apply to incoming datagrams.
    pub fn is_in(self) -> bool {
        self != FaultDirection::Out
    }
}

impl FromStr for FaultSpec {
    type Err = FaultSpecError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut spec = FaultSpec::default();
        let mut seen = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let unknown = || FaultSpecError::Unknown(part.to_owned());
            let (name, value) = part.split_once('=').ok_or_else(unknown)?;
            let (name, value) = (name.trim(), value.trim());
            let name = NAMES.into_iter().find(|known| *known == name).ok_or_else(unknown)?;
            if seen.contains(&name) {
                return Err(FaultSpecError::Twice(name));
            }
            seen.push(name);
            match name {
                "loss" => spec.loss = probability(name, value)?,
                "dup" => spec.duplicate = probability(name, value)?,
                "reorder" => spec.reorder = probability(name, value)?,
                "corrupt" => spec.corrupt = probability(name, value)?,
                "delay" => spec.delay = time(name, value)?,
                "jitter" => spec.jitter = time(name, value)?,
                "seed" => spec.seed = Some(value.parse().map_err(|_| FaultSpecError::Seed(value.to_owned()))?),
                _ => {
                    spec.direction = match value {
                        "out" => FaultDirection::Out,
                        "in" => FaultDirection::In,
                        "both" => FaultDirection::Both,
                        _ => return Err(FaultSpecError::Direction(value.to_owned())),
                    }
                }
            }
        }
        Ok(spec)
    }
}

/// In the form that `from_str` parses.
impl fmt::Display for FaultSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rates = [self.loss, self.duplicate, self.reorder, self.corrupt];
        for (name, rate) in NAMES.into_iter().zip(rates).filter(|(_, rate)| *rate > 0.0) {
            write!(f, "{name}={rate},")?;
        }
        for (name, time) in [("delay", self.delay), ("jitter", self.jitter)] {
            if !time.is_zero() {
                write!(f, "{name}={}ns,", time.as_nanos())?;
            }
        }
        if let Some(seed) = self.seed {
            write!(f, "seed={seed},")?;
        }
        f.write_str(match self.direction {
            FaultDirection::Out => "dir=out",
            FaultDirection::In => "dir=in",
            FaultDirection::Both => "dir=both",
        })
    }
}

fn probability(name: &'static str, value: &str) -> Result<f64, FaultSpecError> {
    let number = value.parse().ok().filter(|number| (0.0..=1.0).contains(number));
    number.ok_or_else(|| FaultSpecError::Probability { name, value: value.to_owned() })
}

fn time(name: &'static str, value: &str) -> Result<Duration, FaultSpecError> {
    let units = [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let number = units.into_iter().find_map(|(unit, seconds)| {
        let number: f64 = value.strip_suffix(unit)?.trim_end().parse().ok()?;
        Duration::try_from_secs_f64(number * seconds).ok().filter(|time| *time <= MAX_TIME)
    });
    match number {
        Some(time) => Ok(time),
        None if value == "0" => Ok(Duration::ZERO),
        None => Err(FaultSpecError::Time { name, value: value.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_faults_are_parsed() {
        let text = "loss=0.01,dup=0.001, reorder=1,corrupt=0,delay=50us,jitter=1.5ms,seed=7,dir=both";
        let spec: FaultSpec = text.parse().unwrap();
        let expected = FaultSpec {
            loss: 0.01,
            duplicate: 0.001,
            reorder: 1.0,
            corrupt: 0.0,
            delay: Duration::from_micros(50),
            jitter: Duration::from_micros(1500),
            seed: Some(7),
            direction: FaultDirection::Both,
        };
        assert_eq!(spec, expected);
        assert_eq!(spec.to_string().parse(), Ok(expected));
        assert_eq!("".parse(), Ok(FaultSpec::default()));
        assert_eq!("dir=in".parse::<FaultSpec>().unwrap().direction, FaultDirection::In);
        for (text, nanoseconds) in
            [("9ns", 9), ("2us", 2_000), ("2µs", 2_000), ("3ms", 3_000_000), ("1s", 1_000_000_000), ("0", 0)]
        {
            let spec: FaultSpec = format!("delay={text}").parse().unwrap();
            assert_eq!(spec.delay.as_nanos(), nanoseconds);
        }
    }

    #[test]
    fn errors_name_what_is_wrong() {
        for (text, message) in [
            (
                "lost=1",
                "`lost=1` is not a fault: use loss, dup, reorder, corrupt, delay, jitter, seed or dir, with =VALUE",
            ),
            ("loss", "`loss` is not a fault: use loss, dup, reorder, corrupt, delay, jitter, seed or dir, with =VALUE"),
            ("loss=1.1", "loss=1.1: must be a probability from 0 to 1"),
            ("dup=-1", "dup=-1: must be a probability from 0 to 1"),
            ("corrupt=NaN", "corrupt=NaN: must be a probability from 0 to 1"),
            ("delay=50", "delay=50: must be a time with its unit, as 50us (ns, us, ms or s), at most an hour"),
            ("jitter=-1s", "jitter=-1s: must be a time with its unit, as 50us (ns, us, ms or s), at most an hour"),
            ("delay=2e9s", "delay=2e9s: must be a time with its unit, as 50us (ns, us, ms or s), at most an hour"),
            ("seed=x", "seed=x: must be a whole number"),
            ("dir=up", "dir=up: must be in, out or both"),
            ("loss=0,loss=1", "loss is given twice; give it once"),
        ] {
            assert_eq!(text.parse::<FaultSpec>().unwrap_err().to_string(), message);
        }
    }
}
