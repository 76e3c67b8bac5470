//! Conversion of a file's contents to a `Profile`.

use crate::described::Described;
use crate::embedded::{embedded, names};
use crate::error::Error;
use crate::table::{self, Contents, Explained};
use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;
use toml::Value;
use weir_transport::edge::{MAX_WINDOW, Parameters, Scheduler};
use weir_transport::{
    AckTimeout, Adaptive, Delay, DeviceAttributes, Flood, HostModel, Links, MAX_RD_ATOMIC, OdpCaps, OdpOps, PageFaults,
    Profile, RequesterFaults, ResponderFaults, RnrWait, Spread,
};

/// Reads a profile; keys that it does not contain are those of its base.
pub(crate) fn profile(origin: &str, text: &str) -> Result<Described, Error> {
    let Contents { about, base, mut values } = table::parse(origin, text)?;
    let own: Vec<String> = values.iter().map(|value| value.key.clone()).collect();
    inherit(origin, base.clone(), &mut values)?;
    add_what_adapters_leave_out(&mut values)?;
    explain(&mut values)?;
    let reader = Reader { origin, values: &values, known: RefCell::default() };
    let name = if embedded(origin).is_some() { origin.into() } else { stem(origin) };
    let profile = reader.profile(name)?;
    let known = reader.known.into_inner();
    if let Some(unknown) = own.iter().find(|key| !known.contains(key)) {
        let (origin, key) = (origin.into(), unknown.clone());
        return Err(Error::UnknownKey { origin, key, known: known.join(", ") });
    }
    values.sort_by_key(|value| known.iter().position(|key| *key == value.key));
    Ok(Described {
        profile,
        about: about.unwrap_or_else(|| format!("{}, changed by {origin}", base_name(base))),
        values,
    })
}

/// Adds the values of the bases: first those of the base, then those of its own base.
fn inherit(origin: &str, base: Option<String>, values: &mut Vec<Explained>) -> Result<(), Error> {
    let name = base_name(base);
    let text = embedded(&name).ok_or_else(|| Error::Value {
        origin: origin.into(),
        key: "base".into(),
        got: format!("{name:?}"),
        wanted: format!("one of {}", names().collect::<Vec<_>>().join(", ")),
    })?;
    let Contents { base, values: inherited, .. } = table::parse(&name, text)?;
    for value in inherited {
        if !values.iter().any(|known| known.key == value.key) {
            values.push(value);
        }
    }
    if base.is_some() { inherit(&name, base, values) } else { Ok(()) }
}

/// Adds the sections that the files of adapters leave out: how Weir uses several links as one, which no adapter does,
/// and the machine that the adapter is in.
fn add_what_adapters_leave_out(values: &mut Vec<Explained>) -> Result<(), Error> {
    let Some(ideal) = embedded("ideal") else { return Ok(()) };
    let left_out = |value: &Explained| ["links.", "host."].iter().any(|section| value.key.starts_with(section));
    let ideal = table::parse("ideal", ideal)?.values.into_iter().filter(left_out);
    let missing: Vec<Explained> = ideal.filter(|value| !values.iter().any(|known| known.key == value.key)).collect();
    values.extend(missing);
    Ok(())
}

/// The profile from which a file states its differences.
fn base_name(base: Option<String>) -> String {
    base.unwrap_or_else(|| "ideal".into())
}

/// Copies the meanings of the keys from the ideal profile, the only file that contains them.
fn explain(values: &mut [Explained]) -> Result<(), Error> {
    let Some(ideal) = embedded("ideal") else { return Ok(()) };
    for ideal_value in table::parse("ideal", ideal)?.values {
        values
            .iter_mut()
            .filter(|value| value.key == ideal_value.key)
            .for_each(|value| value.means.clone_from(&ideal_value.means));
    }
    Ok(())
}

/// The name of a file's profile.
fn stem(path: &str) -> String {
    Path::new(path).file_stem().map_or_else(|| path.into(), |stem| stem.to_string_lossy().into_owned())
}

/// Looks up values by their keys and records the known keys.
struct Reader<'a> {
    origin: &'a str,
    values: &'a [Explained],
    known: RefCell<Vec<String>>,
}

impl Reader<'_> {
    fn profile(&self, name: String) -> Result<Profile, Error> {
        let profile = Profile {
            name,
            seed: self.integer("adapter.seed", 0, i64::MAX)? as u64,
            on_demand: self.boolean("adapter.on_demand")?,
            repeated_read: self.delay("adapter.repeated_read_us")?,
            late_reads: self.boolean("adapter.late_reads")?,
            device: self.device()?,
            ack_timeout: AckTimeout {
                least_exponent: self.integer("ack_timeout.least_exponent", 0, 31)? as u8,
                floor: self.number("ack_timeout.floor_ms", 0.0, 100_000.0).map(millis)?,
                // IBTA 9.7.6.1.3.
                factor: self.spread("ack_timeout.factor", 1.0, 4.0)?,
                growth: self.integer("ack_timeout.growth", 1, 1024)? as u32,
                adaptive: Adaptive {
                    steps: self.steps("ack_timeout.adaptive_ms")?,
                    retries: self.integer("ack_timeout.adaptive_retries", 0, 255)? as u32,
                },
            },
            rnr_wait: RnrWait {
                // Not before the time that the NAK asks for (IBTA 9.7.5.2.8).
                factor: self.spread("rnr_wait.factor", 1.0, 100.0)?,
                powers_of_two: self.boolean("rnr_wait.powers_of_two")?,
                discards: self.boolean("rnr_wait.discards")?,
            },
            page_faults: PageFaults {
                requester: self.requester_faults()?,
                responder: self.responder_faults()?,
                resolve: self.delay("page_faults.resolve_us")?,
                serial: self.boolean("page_faults.serial")?,
            },
            damming: self.boolean("damming.on")?,
            flood: self.flood()?,
            links: self.links()?,
            host: self.host()?,
        };
        let discards = matches!(profile.page_faults.requester, RequesterFaults::Discard { .. });
        if profile.flood.is_some() && !discards {
            return Err(self.wrong("flood.on", "false if requester_faults.way is \"wait\": flood needs discarding"));
        }
        if profile.damming && profile.repeated_read.high.is_zero() {
            let wanted = "false if adapter.repeated_read_us is 0: requests are lost during replays only";
            return Err(self.wrong("damming.on", wanted));
        }
        Ok(profile)
    }

    fn device(&self) -> Result<DeviceAttributes, Error> {
        Ok(DeviceAttributes {
            max_qp_rd_atom: self.integer("device.max_qp_rd_atom", 1, MAX_RD_ATOMIC.into())? as u8,
            max_qp_init_rd_atom: self.integer("device.max_qp_init_rd_atom", 1, MAX_RD_ATOMIC.into())? as u8,
            local_ca_ack_delay: self.integer("device.ack_delay", 0, 31)? as u8,
            odp: OdpCaps {
                implicit: self.boolean("device.odp_implicit")?,
                rc: self.operations("device.odp_rc", OdpOps::all())?,
                uc: self.operations("device.odp_uc", DATAGRAMS.union(OdpOps::WRITE))?,
                ud: self.operations("device.odp_ud", DATAGRAMS)?,
                // XRC receives by SRQs only.
                xrc: self.operations("device.odp_xrc", OdpOps::all().difference(OdpOps::RECV))?,
            },
        })
    }

    fn requester_faults(&self) -> Result<RequesterFaults, Error> {
        let way = self.word("requester_faults.way", &["wait", "discard"])?;
        let retransmit = self.delay("requester_faults.retransmit_us")?;
        if way == "wait" {
            return Ok(RequesterFaults::Wait);
        }
        // Without a pause the requester would only retransmit.
        if retransmit.low < Duration::from_micros(1) {
            return Err(self.wrong("requester_faults.retransmit_us", "at least 1 µs if responses are discarded"));
        }
        Ok(RequesterFaults::Discard { retransmit })
    }

    fn responder_faults(&self) -> Result<ResponderFaults, Error> {
        let way = self.word("responder_faults.way", &["wait", "rnr_nak"])?;
        let read_after = self.number("responder_faults.read_nak_us", 0.0, LONGEST).map(micros)?;
        Ok(match way {
            "wait" => ResponderFaults::Wait,
            _ => ResponderFaults::RnrNak { read_after },
        })
    }

    fn flood(&self) -> Result<Option<Flood>, Error> {
        let on = self.boolean("flood.on")?;
        let stale = self.number("flood.stale_us", 0.0, LONGEST).map(micros)?;
        let waiting = self.integer("flood.waiting", 1, 1 << 12)? as u32;
        // Without a pause the adapter would only serve events.
        if on && stale < Duration::from_micros(1) {
            return Err(self.wrong("flood.stale_us", "at least 1 µs if flood.on is true"));
        }
        Ok(on.then_some(Flood { stale, waiting }))
    }

    fn links(&self) -> Result<Links, Error> {
        let count = |key: &str, low: u32, high: u32| Ok(self.integer(key, low.into(), high.into())? as u32);
        let parameters = Parameters {
            window: count("links.window", 1, MAX_WINDOW)?,
            ack_every: count("links.ack_every", 1, MAX_WINDOW)?,
            nack_every: count("links.nack_every", 1, MAX_WINDOW)?,
            ack_delay: self.number("links.ack_delay_us", 0.0, LONGEST).map(micros)?,
            // Without a pause the sender would only repeat its last packet.
            coarse_timeout: self.number("links.coarse_timeout_us", 100.0, LONGEST).map(micros)?,
            reordering: count("links.reordering", 0, MAX_WINDOW)?,
            silence: self.number("links.silence_us", 100.0, LONGEST).map(micros)?,
        };
        let scheduler = match self.word("links.scheduler", &["auto", "srr", "wsrr", "wd"])? {
            "srr" => Scheduler::RoundRobin,
            "wsrr" => Scheduler::WeightedRoundRobin,
            "wd" => Scheduler::Dynamic,
            _ => Scheduler::Auto,
        };
        Ok(Links { parameters, scheduler })
    }

    fn host(&self) -> Result<Option<HostModel>, Error> {
        let on = self.boolean("host.on")?;
        let nanos = |key: &str| self.number(key, 0.0, LONGEST_LINE_NS);
        let time = |key: &str| self.number(key, 0.0, LONGEST).map(micros);
        let model = HostModel {
            tlp: self.power_of_two("host.tlp_bytes", 128, 4096)?,
            line: self.power_of_two("host.line_bytes", 32, 128)?,
            line_ns: nanos("host.line_ns")?,
            cache: (self.integer("host.cache_kib", 0, 1 << 30)? as u64) << 10,
            miss_ns: nanos("host.miss_ns")?,
            partial_miss_ns: nanos("host.partial_miss_ns")?,
            remote_factor: self.number("host.remote_factor", 1.0, 100.0)?,
            completion: time("host.completion_us")?,
            event: time("host.event_us")?,
            wake: time("host.wake_us")?,
            wake_cpu: time("host.wake_cpu_us")?,
            poll: time("host.poll_us")?,
            post: time("host.post_us")?,
            remote_wake_factor: self.number("host.remote_wake_factor", 1.0, 100.0)?,
        };
        Ok(on.then_some(model))
    }

    fn get(&self, key: &str) -> Result<&Value, Error> {
        self.known.borrow_mut().push(key.into());
        let value = self.values.iter().find(|value| value.key == key);
        let missing = || Error::Missing { origin: self.origin.into(), key: key.into() };
        value.map(|value| &value.value).ok_or_else(missing)
    }

    fn boolean(&self, key: &str) -> Result<bool, Error> {
        self.get(key)?.as_bool().ok_or_else(|| self.wrong(key, "true or false"))
    }

    fn word<'w>(&self, key: &str, words: &[&'w str]) -> Result<&'w str, Error> {
        let value = self.get(key)?.as_str();
        let known = words.iter().find(|word| Some(**word) == value).copied();
        known.ok_or_else(|| self.wrong(key, &format!("one of {}", words.join(", "))))
    }

    /// A list of operations that a service has.
    fn operations(&self, key: &str, of_service: OdpOps) -> Result<OdpOps, Error> {
        let known = || OPERATIONS.iter().filter(|(_, operation)| of_service.contains(*operation));
        let operation = |word: &Value| {
            let found = known().find(|(name, _)| Some(*name) == word.as_str());
            found.map(|(_, operation)| *operation)
        };
        let value = self.get(key)?.as_array();
        let found = value.and_then(|words| words.iter().map(operation).collect::<Option<Vec<OdpOps>>>());
        let names = || known().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let wanted = || self.wrong(key, &format!("a list of any of {}", names()));
        found.map(|operations| operations.into_iter().collect()).ok_or_else(wanted)
    }

    fn integer(&self, key: &str, low: i64, high: i64) -> Result<i64, Error> {
        let number = self.get(key)?.as_integer().filter(|number| (low..=high).contains(number));
        number.ok_or_else(|| self.wrong(key, &format!("a whole number from {low} to {high}")))
    }

    fn power_of_two(&self, key: &str, low: u32, high: u32) -> Result<u32, Error> {
        let number = self.get(key)?.as_integer().and_then(|number| u32::try_from(number).ok());
        let found = number.filter(|number| number.is_power_of_two() && (low..=high).contains(number));
        found.ok_or_else(|| self.wrong(key, &format!("a power of two from {low} to {high}")))
    }

    fn number(&self, key: &str, low: f64, high: f64) -> Result<f64, Error> {
        let found = number(self.get(key)?).filter(|number| (low..=high).contains(number));
        found.ok_or_else(|| self.wrong(key, &format!("a number from {low} to {high}")))
    }

    /// A number, or a list of two bounds.
    fn spread(&self, key: &str, low: f64, high: f64) -> Result<Spread, Error> {
        let value = self.get(key)?;
        let found = match value.as_array().map(Vec::as_slice) {
            Some([a, b]) => number(a).zip(number(b)),
            Some(_) => None,
            None => number(value).map(|number| (number, number)),
        };
        let fits = found.filter(|(a, b)| low <= *a && a <= b && *b <= high);
        let wanted = || format!("a number from {low} to {high}, or a list of two, the lower first");
        fits.map(|(low, high)| Spread { low, high }).ok_or_else(|| self.wrong(key, &wanted()))
    }

    fn delay(&self, key: &str) -> Result<Delay, Error> {
        let Spread { low, high } = self.spread(key, 0.0, LONGEST)?;
        Ok(Delay { low: micros(low), high: micros(high) })
    }

    /// A list of times in ms, as many as a row of timeouts can have.
    fn steps(&self, key: &str) -> Result<Vec<Duration>, Error> {
        let wanted = || self.wrong(key, "a list of up to 16 numbers from 0.001 to 100000");
        let list = self.get(key)?.as_array().filter(|list| list.len() <= 16).ok_or_else(wanted)?;
        let step = |value| number(value).filter(|step| (0.001..=100_000.0).contains(step)).map(millis);
        list.iter().map(step).collect::<Option<_>>().ok_or_else(wanted)
    }

    fn wrong(&self, key: &str, wanted: &str) -> Error {
        let value = self.values.iter().find(|value| value.key == key);
        Error::Value {
            origin: self.origin.into(),
            key: key.into(),
            got: value.map_or_else(String::new, |value| value.value.to_string()),
            wanted: wanted.into(),
        }
    }
}

/// The names of the operations.
const OPERATIONS: [(&str, OdpOps); 8] = [
    ("send", OdpOps::SEND),
    ("recv", OdpOps::RECV),
    ("srq_recv", OdpOps::SRQ_RECV),
    ("write", OdpOps::WRITE),
    ("read", OdpOps::READ),
    ("atomic", OdpOps::ATOMIC),
    ("flush", OdpOps::FLUSH),
    ("atomic_write", OdpOps::ATOMIC_WRITE),
];

/// The operations of a service that only sends and receives.
const DATAGRAMS: OdpOps = OdpOps::SEND.union(OdpOps::RECV).union(OdpOps::SRQ_RECV);

/// The longest time of a cache line, ns: the longest packet has up to 128 lines and must not take longer than a
/// timeout.
const LONGEST_LINE_NS: f64 = 10e3;

/// The longest delay, µs.
const LONGEST: f64 = 10e6;

fn number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|integer| integer as f64))
}

fn micros(number: f64) -> Duration {
    Duration::from_nanos((number * 1e3).round() as u64)
}

fn millis(number: f64) -> Duration {
    Duration::from_nanos((number * 1e6).round() as u64)
}
