//! Settings from the environment: the `WEIR_*` variables that `weir run` sets.

use crate::os::process::gains_privileges;
use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use weir_link::capture::{HistorySize, Snap};
use weir_link::faults::FaultSpec;
use weir_link::{Allowed, DisabledFeatures};
use weir_links::LinksSpec;
use weir_transport::{DeviceAttributes, Profile};

/// Settings of this process.
#[derive(Clone, Debug)]
pub struct Config {
    /// `WEIR_ALLOW`: the addresses of other hosts that this process exchanges packets with.
    pub allowed: Allowed,
    /// `WEIR_PROFILE`: how the adapter behaves.
    pub profile: Profile,
    /// `WEIR_ICRC`: `always`, or `auto`: Weir peers on one machine agree to omit it.
    pub icrc: Icrc,
    /// `WEIR_FRAMING`: how payload travels to Weir peers.
    pub framing: Framing,
    /// `WEIR_LOCAL`: whether packets between processes of one network namespace and user go through shared memory.
    pub local: Local,
    /// `WEIR_FAULTS`: the faults that the carrier injects.
    pub faults: Option<FaultSpec>,
    /// `WEIR_CAPTURE`: the file that every packet is recorded in.
    pub capture: Option<PathBuf>,
    /// `WEIR_CAPTURE_SNAP`: how much of each packet it keeps.
    pub capture_snap: Snap,
    /// `WEIR_CAPTURE_RING`: so much is kept in memory, and the file is written at a stall or an error only.
    pub capture_ring: Option<HistorySize>,
    /// `WEIR_MEMLOCK`: whether registration fails beyond RLIMIT_MEMLOCK.
    pub memlock: Memlock,
    /// `WEIR_USERFAULTFD`: whether userfaultfd events report the unmapping of ODP memory.
    pub userfaultfd: Userfaultfd,
    /// `WEIR_WITHOUT`: features of the kernel that must not be used.
    pub disabled: DisabledFeatures,
    /// `WEIR_PATIENCE`: how long peers keep retrying while this process does not respond.
    pub patience: Duration,
}

/// When packets carry an ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icrc {
    Auto,
    Always,
}

/// How payload of connected QPs travels to Weir peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// In frames, unless packets are captured or faults are injected.
    Auto,
    /// In RoCE packets.
    Roce,
    /// In frames.
    Weir,
}

/// Whether packets go through shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// Where the peer is in the same network namespace and of the same user.
    Auto,
    /// Never.
    Off,
}

/// What happens to memory beyond RLIMIT_MEMLOCK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memlock {
    /// It is not locked.
    Lax,
    /// Registration fails with ENOMEM.
    Strict,
}

/// Whether userfaultfd catches changes of ODP memory that the interposed functions miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Userfaultfd {
    /// Where the kernel allows it.
    Auto,
    /// Never.
    Off,
}

impl Config {
    /// Reads the environment. The error names the variable, its value and the valid values.
    pub fn from_env() -> Result<Config, String> {
        // Checked here; `shown_from_env` has the value.
        links()?;
        Ok(Config {
            allowed: allowed()?,
            profile: match variable("WEIR_PROFILE") {
                None => Profile::ideal(),
                Some(name) => weir_profiles::load(&name).map_err(|error| format!("WEIR_PROFILE={name}: {error}"))?,
            },
            icrc: choice("WEIR_ICRC", &[("auto", Icrc::Auto), ("always", Icrc::Always)])?,
            framing: choice(
                "WEIR_FRAMING",
                &[("auto", Framing::Auto), ("roce", Framing::Roce), ("weir", Framing::Weir)],
            )?,
            local: choice("WEIR_LOCAL", &[("auto", Local::Auto), ("off", Local::Off)])?,
            faults: match variable("WEIR_FAULTS") {
                None => None,
                Some(text) => Some(text.parse().map_err(|error| format!("WEIR_FAULTS={text}: {error}"))?),
            },
            capture: raw_variable("WEIR_CAPTURE").map(PathBuf::from),
            capture_snap: with_capture("WEIR_CAPTURE_SNAP")?.unwrap_or_default(),
            capture_ring: with_capture("WEIR_CAPTURE_RING")?,
            memlock: choice("WEIR_MEMLOCK", &[("lax", Memlock::Lax), ("strict", Memlock::Strict)])?,
            userfaultfd: choice("WEIR_USERFAULTFD", &[("auto", Userfaultfd::Auto), ("off", Userfaultfd::Off)])?,
            disabled: disabled_features()?,
            patience: match variable("WEIR_PATIENCE") {
                None => Duration::ZERO,
                Some(text) => text
                    .parse()
                    .ok()
                    .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
                    .ok_or_else(|| format!("WEIR_PATIENCE={text}: must be a number of seconds"))?,
            },
        })
    }

    /// Which interface is shown, and whether several are used as one: a wrong value of another variable does not change the
    /// list of devices. Opening one says what is wrong.
    pub fn shown_from_env() -> (Option<String>, bool) {
        (variable("WEIR_INTERFACE"), links().is_ok_and(|links| links.is_some()))
    }

    /// Whether each packet to and from this process needs an ICRC: for whole packets in a capture, and for injected
    /// faults.
    pub fn needs_icrc(&self) -> bool {
        let captures_whole = self.capture.is_some() && self.capture_snap == Snap::Whole;
        self.icrc == Icrc::Always || self.faults.is_some() || captures_whole
    }
}

/// What programs read of the adapters of this process, by `WEIR_PROFILE`. If that is invalid no device opens, and these are
/// the attributes of the ideal profile.
pub fn device_attributes() -> DeviceAttributes {
    Config::from_env().map_or_else(|_| Profile::ideal().device, |config| config.profile.device)
}

/// Reads only `WEIR_ALLOW`. The error describes what is wrong with its value.
pub fn allowed() -> Result<Allowed, String> {
    let Some(text) = variable("WEIR_ALLOW") else { return Ok(Allowed::default()) };
    text.parse().map_err(|error| format!("WEIR_ALLOW={text}: {error}"))
}

/// Reads only `WEIR_LINKS`. The error describes what is wrong with its value.
pub fn links() -> Result<Option<LinksSpec>, String> {
    let Some(text) = variable("WEIR_LINKS") else { return Ok(None) };
    text.parse().map(Some).map_err(|error| format!("WEIR_LINKS={text}: {error}"))
}

/// Reads only `WEIR_WITHOUT`. The error describes what is wrong with its value.
pub fn disabled_features() -> Result<DisabledFeatures, String> {
    match variable("WEIR_WITHOUT") {
        None => Ok(DisabledFeatures::empty()),
        Some(text) => text.parse().map_err(|error| format!("WEIR_WITHOUT={text}: {error}")),
    }
}

/// A value that is no Unicode is wrong, not unset: a list of `WEIR_ALLOW` must not be forgotten.
fn variable(name: &str) -> Option<String> {
    Some(raw_variable(name)?.to_string_lossy().into_owned())
}

fn raw_variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty() && !gains_privileges())
}

/// The value of a variable that changes what `WEIR_CAPTURE` does.
fn with_capture<T: FromStr<Err: Display>>(name: &str) -> Result<Option<T>, String> {
    let Some(text) = variable(name) else { return Ok(None) };
    let value = text.parse().map_err(|error| format!("{name}={text}: {error}"))?;
    if variable("WEIR_CAPTURE").is_none() {
        return Err(format!("{name}={text}: there is no capture; set WEIR_CAPTURE to a file, or unset {name}"));
    }
    Ok(Some(value))
}

/// One of several words; the first word if the variable is not set.
fn choice<T: Copy>(name: &str, choices: &[(&str, T)]) -> Result<T, String> {
    let Some(value) = variable(name) else { return Ok(choices[0].1) };
    choices.iter().find(|(word, _)| *word == value).map(|(_, choice)| *choice).ok_or_else(|| {
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        format!("{name}={value}: must be one of {}", words.join(", "))
    })
}
