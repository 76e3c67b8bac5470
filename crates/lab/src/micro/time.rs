//! Times as microseconds, for serde.

use serde::{Deserialize, Deserializer, Serializer, de::Error};
use std::time::Duration;

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

fn duration<E: Error>(micros: f64) -> Result<Duration, E> {
    Duration::try_from_secs_f64(micros / 1e6).map_err(|error| E::custom(format!("{micros} µs: {error}")))
}

pub fn serialize<S: Serializer>(time: &Duration, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_f64(micros(*time))
}

pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    duration(f64::deserialize(from)?)
}

/// A time that may be missing.
pub mod option {
    use super::*;

    pub fn serialize<S: Serializer>(time: &Option<Duration>, out: S) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => out.serialize_some(&micros(*time)),
            None => out.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        Option::<f64>::deserialize(from)?.map(duration).transpose()
    }
}

/// A list of times that may be missing.
pub mod each {
    use super::*;

    pub fn serialize<S: Serializer>(times: &[Option<Duration>], out: S) -> Result<S::Ok, S::Error> {
        out.collect_seq(times.iter().map(|time| time.map(micros)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Option<Duration>>, D::Error> {
        Vec::<Option<f64>>::deserialize(from)?.into_iter().map(|each| each.map(duration).transpose()).collect()
    }
}
