//! The adapter of a run: an embedded profile, or one with changed values.

use anyhow::{Context, Result, ensure};
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;
use weir_transport::{Delay, RequesterFaults};

/// Stands between the base and the changes in the name of a changed adapter.
pub const CHANGED: &str = " with ";

/// An embedded profile with changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// The embedded profile.
    pub base: &'static str,
    /// Section, key and TOML value of each change.
    changes: Vec<(&'static str, &'static str, String)>,
}

impl Adapter {
    /// The embedded profile as it is.
    pub fn named(base: &'static str) -> Adapter {
        Adapter { base, changes: vec![] }
    }

    /// With another value of a key.
    pub fn with(mut self, section: &'static str, key: &'static str, value: impl ToString) -> Adapter {
        self.changes.retain(|(s, k, _)| (*s, *k) != (section, key));
        self.changes.push((section, key, value.to_string()));
        self
    }

    /// Without packet damming, so that the other flaws show alone.
    pub fn undammed(self) -> Adapter {
        self.with("damming", "on", false)
    }

    /// With times of page faults, stale events, dropped responses and replays that are `factor` times those of the base.
    pub fn slowed(self, factor: u32) -> Adapter {
        let profile = weir_profiles::load(self.base).expect("the base is an embedded profile");
        let micros = |delay: Delay| {
            let long = |time: Duration| (time * factor).as_nanos() as f64 / 1e3;
            format!("[{}, {}]", long(delay.low), long(delay.high))
        };
        let mut slow = self.with("page_faults", "resolve_us", micros(profile.page_faults.resolve)).with(
            "adapter",
            "repeated_read_us",
            micros(profile.repeated_read),
        );
        if let RequesterFaults::Discard { retransmit } = profile.page_faults.requester {
            slow = slow.with("requester_faults", "retransmit_us", micros(retransmit));
        }
        if let Some(flood) = profile.flood {
            slow = slow.with("flood", "stale_us", (flood.stale * factor).as_nanos() as f64 / 1e3);
        }
        slow
    }

    /// Its name in reports: "connectx4", "connectx4 with damming.on = false".
    pub fn name(&self) -> String {
        let changes: Vec<String> =
            self.changes.iter().map(|(section, key, value)| format!("{section}.{key} = {value}")).collect();
        match changes.is_empty() {
            true => self.base.to_owned(),
            false => format!("{}{CHANGED}{}", self.base, changes.join(", ")),
        }
    }

    /// What `weir_profiles::load` loads it by: a name, or the path of a file that this function writes to a folder.
    /// `instead`: the embedded profile that takes the place of the base.
    pub fn profile(&self, instead: Option<&str>, folder: &Path, number: usize) -> Result<String> {
        let base = instead.unwrap_or(self.base);
        if self.changes.is_empty() {
            return Ok(base.to_owned());
        }
        let embedded = weir_profiles::names().any(|name| name == base);
        ensure!(embedded, "{base} is no embedded profile: {} cannot be changed in it", self.name());
        let mut text = format!("base = {base:?}\n");
        for (section, key, value) in &self.changes {
            let _ = writeln!(text, "{section}.{key} = {value}");
        }
        let path = folder.join(format!("{base}-{number}.toml"));
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        Ok(path.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slowed_adapter_has_longer_times() {
        let folder = tempfile::tempdir().unwrap();
        for base in ["connectx4", "connectx6"] {
            let slow = Adapter::named(base).slowed(10);
            let slow = weir_profiles::load(&slow.profile(None, folder.path(), 0).unwrap()).unwrap();
            let real = weir_profiles::load(base).unwrap();
            let longer = |delay: Delay| Delay { low: delay.low * 10, high: delay.high * 10 };
            assert_eq!(slow.page_faults.resolve, longer(real.page_faults.resolve));
            assert_eq!(slow.repeated_read, longer(real.repeated_read));
            assert_eq!(slow.flood.unwrap().stale, real.flood.unwrap().stale * 10);
            let (RequesterFaults::Discard { retransmit: slow }, RequesterFaults::Discard { retransmit: real }) =
                (slow.page_faults.requester, real.page_faults.requester)
            else {
                panic!("{base} drops responses")
            };
            assert_eq!(slow, longer(real));
        }
    }

    #[test]
    fn a_changed_adapter_is_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let plain = Adapter::named("connectx4");
        assert_eq!(
            (plain.name(), plain.profile(None, folder.path(), 0).unwrap()),
            ("connectx4".into(), "connectx4".into())
        );
        let changed = plain.with("damming", "on", false).with("page_faults", "resolve_us", 7180);
        assert_eq!(changed.name(), "connectx4 with damming.on = false, page_faults.resolve_us = 7180");
        let profile = weir_profiles::load(&changed.profile(None, folder.path(), 0).unwrap()).unwrap();
        assert!(!profile.damming && profile.flood.is_some());
        assert_eq!(profile.page_faults.resolve.low.as_micros(), 7180);
        let other = weir_profiles::load(&changed.profile(Some("connectx6"), folder.path(), 1).unwrap()).unwrap();
        assert_ne!(other.page_faults, weir_profiles::load("connectx6").unwrap().page_faults);
        let error = changed.profile(Some("mine.toml"), folder.path(), 2).unwrap_err();
        assert!(error.to_string().contains("mine.toml is no embedded profile"), "{error}");
    }
}
