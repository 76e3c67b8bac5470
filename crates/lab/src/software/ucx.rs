//! Releases of UCX: how each registers memory on demand, and which of them cannot be used for that.

use super::setting::{Memory, Setting};
use crate::adapter::Adapter;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// An installation of UCX.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ucx {
    /// `None`: the system's.
    prefix: Option<PathBuf>,
    /// Major and minor number of the release.
    release: (u32, u32),
    /// The whole version, as `ucx_info` prints it.
    pub version: String,
}

/// Releases of which a process can crash when it ends, if its memory is on demand.
const CRASHES: std::ops::RangeInclusive<(u32, u32)> = (1, 11)..=(1, 14);
/// From this release on UCX_REG_NONBLOCK_MEM_TYPES decides, before it UCX_IB_REG_METHODS.
const NON_BLOCKING: (u32, u32) = (1, 15);
/// From this release on it decides where there is no mlx5dv, too.
const OVER_VERBS: (u32, u32) = (1, 18);

/// What to do about a release that is not fit.
const OTHERS: &str = "Give another with --ucx PREFIX: up to 1.10, or from 1.18 on. To build one: git clone -b v1.10.1 \
                      https://github.com/openucx/ucx; ./autogen.sh; contrib/configure-release --enable-mt --with-verbs \
                      --prefix=PREFIX; make install";

impl Ucx {
    /// Asks the `ucx_info` of an installation for its version.
    pub fn find(prefix: Option<&Path>) -> Result<Ucx> {
        let program = match prefix {
            Some(prefix) => prefix.join("bin/ucx_info"),
            None => weir_stage::locate("ucx_info")?,
        };
        let mut command = Command::new(&program);
        command.arg("-v");
        if let Some(prefix) = prefix {
            command.env("LD_LIBRARY_PATH", prefix.join("lib"));
        }
        let output = command.output().with_context(|| format!("--ucx: {} -v", program.display()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = version(&text).with_context(|| format!("{} -v prints no version: {text}", program.display()))?;
        let mut numbers = version.split('.').map(|part| part.parse::<u32>());
        let release = match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
            _ => anyhow::bail!("{} -v prints the version {version}", program.display()),
        };
        Ok(Ucx { prefix: prefix.map(Path::to_owned), release, version })
    }

    /// An error if processes of this release may crash with memory on demand, or have none over plain verbs.
    pub fn check(&self) -> Result<()> {
        ensure!(
            !(NON_BLOCKING..OVER_VERBS).contains(&self.release),
            "UCX {} registers memory on demand by mlx5dv only, which Weir has not. {}",
            self.version,
            OTHERS
        );
        ensure!(
            !CRASHES.contains(&self.release),
            "UCX {} is not fit for memory on demand: releases 1.11 to 1.14 pass their on-demand region where the function that \
             ends it expects a list of parameters (uct_ib_md_close), so that a process may crash at its end. {}",
            self.version,
            OTHERS
        );
        Ok(())
    }

    /// What makes this release register memory so.
    pub fn registration(&self, memory: Memory) -> Option<(&'static str, &'static str)> {
        match (self.prefers_on_demand(), memory) {
            (_, Memory::Untold) => None,
            (true, Memory::OnDemand) => Some(("UCX_IB_REG_METHODS", "odp")),
            (true, Memory::Pinned) => Some(("UCX_IB_REG_METHODS", "rcache,direct")),
            (false, Memory::OnDemand) => Some(("UCX_REG_NONBLOCK_MEM_TYPES", "host")),
            (false, Memory::Pinned) => Some(("UCX_REG_NONBLOCK_MEM_TYPES", "")),
        }
    }

    /// Whether it registers on demand if it is not told, where it cannot keep a cache of registrations.
    pub fn prefers_on_demand(&self) -> bool {
        self.release < NON_BLOCKING
    }

    /// The setting in which `weir doctor` should name it: untold, where it prefers memory on demand.
    pub fn watched(&self) -> Setting {
        let ideal = Adapter::named("ideal");
        if self.prefers_on_demand() { Setting::untold(ideal) } else { Setting::on_demand(ideal) }
    }

    /// Whether it writes from memory that a process has made read-only, as ArgoDSM does, without a registration for writing.
    pub fn writes_from_read_only(&self) -> bool {
        self.release < NON_BLOCKING
    }

    /// The folder of its libraries; `None`: the system's.
    pub fn libraries(&self) -> Option<PathBuf> {
        self.prefix.as_ref().map(|prefix| prefix.join("lib"))
    }

    /// The variables of a program that uses this release. Timeouts are those of T chapter 6, which are UCX's defaults: a C_ACK
    /// of 18, and an RNR delay of 0.96 ms.
    pub fn variables(&self, memory: Memory) -> Vec<(&'static str, String)> {
        let mut all = vec![("UCX_RC_TIMEOUT", "1000000us".into()), ("UCX_RC_RNR_TIMEOUT", "1000us".into())];
        all.extend(self.registration(memory).map(|(name, value)| (name, value.to_owned())));
        if let Some(libraries) = self.libraries() {
            all.push(("LD_LIBRARY_PATH", libraries.display().to_string()));
        }
        all
    }
}

/// The first word of the form 1.2.3.
fn version(text: &str) -> Option<String> {
    let words = text.split(|c: char| !c.is_ascii_digit() && c != '.');
    words.into_iter().find(|word| word.split('.').filter(|part| !part.is_empty()).count() == 3).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(text: &str) -> Ucx {
        let (major, minor) = text.split_once('.').unwrap();
        let release = (major.parse().unwrap(), minor.parse().unwrap());
        Ucx { prefix: None, release, version: format!("{text}.0") }
    }

    #[test]
    fn each_way_of_printing_the_version_is_read() {
        for (text, expected) in [
            ("# UCT version=1.9.0 revision cd9efd3\n", "1.9.0"),
            ("# Version 1.13.1\n# Git branch '<unknown>'", "1.13.1"),
            ("# Library version: 1.20.0\n# Library path: /usr/lib/libucs.so.0", "1.20.0"),
        ] {
            assert_eq!(version(text).as_deref(), Some(expected));
        }
        assert_eq!(version("no version"), None);
    }

    #[test]
    fn releases_that_are_not_fit_are_refused_with_what_to_do() {
        for works in ["1.8", "1.10", "1.18", "1.20", "2.0"] {
            release(works).check().unwrap();
        }
        for unfit in ["1.11", "1.13", "1.14", "1.15", "1.17"] {
            let why = release(unfit).check().unwrap_err().to_string();
            assert!(why.contains(&format!("UCX {unfit}.0")) && why.contains("--ucx PREFIX"), "{why}");
        }
    }

    #[test]
    fn later_releases_have_another_variable() {
        let names = |text: &str, memory| release(text).registration(memory).map(|(name, _)| name);
        assert_eq!(names("1.10", Memory::OnDemand), Some("UCX_IB_REG_METHODS"));
        assert_eq!(names("1.15", Memory::OnDemand), Some("UCX_REG_NONBLOCK_MEM_TYPES"));
        assert_eq!(names("1.9", Memory::Untold), None);
    }
}
