//! The adapter's options: each a flag of `weir run` and a `WEIR_*` variable, checked before anything starts.

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Options of the adapter.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Options of the adapter")]
pub struct Options {
    /// Serve this network interface only, as the one device
    #[arg(long, value_name = "NAME", env = "WEIR_INTERFACE")]
    pub interface: Option<String>,

    /// Behave like this adapter, flaws included, or as a file of your own says
    #[arg(long, value_name = "NAME|FILE", env = "WEIR_PROFILE", help = profile_help())]
    pub profile: Option<String>,

    /// When to checksum packets: `auto` leaves it out between Weir peers whose path never leaves the machine
    #[arg(long, value_name = "WHEN", env = "WEIR_ICRC")]
    pub icrc: Option<Icrc>,

    /// Inject faults, such as loss=0.01,dup=0.001,reorder=0.01,corrupt=0.001,delay=50us,jitter=10us,seed=7,dir=out:
    /// a chance for each packet sent (dir=in: received, dir=both); the same seed gives the same faults
    #[arg(long, value_name = "SPEC", env = "WEIR_FAULTS")]
    pub faults: Option<String>,

    /// Write every packet, both ways, to this pcapng file; `%p` in it becomes the process ID
    #[arg(long, value_name = "FILE", env = "WEIR_CAPTURE")]
    pub capture: Option<PathBuf>,

    /// Beyond the limit of locked memory: `lax` registers all the same, `strict` fails as real adapters do
    #[arg(long, value_name = "HOW", env = "WEIR_MEMLOCK")]
    pub memlock: Option<Memlock>,

    /// Tell by userfaultfd(2) when on-demand memory is unmapped past the functions that Weir stands before, such as by
    /// free(): `auto` where the kernel allows it
    #[arg(long, value_name = "WHEN", env = "WEIR_USERFAULTFD")]
    pub userfaultfd: Option<Userfaultfd>,

    /// Do without these features of the kernel, to see the fallbacks at work: names with commas between them
    #[arg(long, value_name = "FEATURE,...", env = "WEIR_WITHOUT", help = without_help())]
    pub without: Option<String>,

    /// What the adapter says on stderr: error, warn, info, debug, trace, or a filter such as weir_device=debug
    #[arg(long, value_name = "FILTER", env = "WEIR_LOG")]
    pub log: Option<String>,

    /// Tell peers to wait this long for a process that does not answer, one stopped in a debugger for instance
    #[arg(long, value_name = "SECONDS", env = "WEIR_PATIENCE")]
    pub patience: Option<f64>,
}

/// When packets carry a true ICRC.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub enum Icrc {
    Auto,
    Always,
}

/// What happens beyond RLIMIT_MEMLOCK.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub enum Memlock {
    Lax,
    Strict,
}

/// Whether the kernel is asked to tell of memory that is unmapped.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub enum Userfaultfd {
    Auto,
    Off,
}

impl Options {
    /// The variables that hand the options to the adapter. An error says which option is wrong, and how.
    pub fn variables(&self) -> Result<Vec<(&'static str, String)>> {
        let mut variables = vec![];
        if let Some(interface) = &self.interface {
            check_interface(interface).with_context(|| source("--interface", "WEIR_INTERFACE", interface))?;
            variables.push(("WEIR_INTERFACE", interface.clone()));
        }
        if let Some(profile) = &self.profile {
            variables.push((
                "WEIR_PROFILE",
                checked_profile(profile).with_context(|| source("--profile", "WEIR_PROFILE", profile))?,
            ));
        }
        if let Some(icrc) = self.icrc {
            variables.push(("WEIR_ICRC", word(icrc)));
        }
        if let Some(faults) = &self.faults {
            faults
                .parse::<weir_link::faults::FaultSpec>()
                .with_context(|| source("--faults", "WEIR_FAULTS", faults))?;
            variables.push(("WEIR_FAULTS", faults.clone()));
        }
        if let Some(capture) = &self.capture {
            variables.push((
                "WEIR_CAPTURE",
                capture_path(capture).with_context(|| source("--capture", "WEIR_CAPTURE", capture))?,
            ));
        }
        if let Some(memlock) = self.memlock {
            variables.push(("WEIR_MEMLOCK", word(memlock)));
        }
        if let Some(userfaultfd) = self.userfaultfd {
            variables.push(("WEIR_USERFAULTFD", word(userfaultfd)));
        }
        if let Some(without) = &self.without {
            let without: weir_link::Without =
                without.parse().with_context(|| source("--without", "WEIR_WITHOUT", without))?;
            variables.push(("WEIR_WITHOUT", without.to_string()));
        }
        if let Some(log) = &self.log {
            tracing_subscriber::EnvFilter::try_new(log)
                .with_context(|| format!("{}: `{log}` is no filter", source("--log", "WEIR_LOG", log)))?;
            variables.push(("WEIR_LOG", log.clone()));
        }
        if let Some(patience) = self.patience {
            if !(0.0..=1e6).contains(&patience) {
                let source = source("--patience", "WEIR_PATIENCE", patience.to_string());
                bail!("{source}: {patience} is not between 0 and a million seconds");
            }
            variables.push(("WEIR_PATIENCE", patience.to_string()));
        }
        Ok(variables)
    }
}

/// Where a value comes from, for an error about it: the variable where that holds it, otherwise the option.
fn source(option: &'static str, variable: &'static str, value: impl AsRef<OsStr>) -> &'static str {
    let set = std::env::var_os(variable);
    if set.is_some_and(|set| set == value.as_ref()) { variable } else { option }
}

/// The interfaces of this network namespace.
fn interfaces() -> Vec<String> {
    let names = nix::net::if_::if_nameindex()
        .map(|list| list.iter().map(|interface| interface.name().to_string_lossy().into_owned()).collect::<Vec<_>>());
    names.unwrap_or_default()
}

fn check_interface(name: &str) -> Result<()> {
    let there = interfaces();
    if !there.iter().any(|interface| interface == name) {
        bail!("there is no interface `{name}` here; there are: {}", there.join(", "));
    }
    Ok(())
}

fn without_help() -> String {
    let names: Vec<&str> = weir_link::Without::names().collect();
    format!("Do without these features of the kernel, to see the fallbacks at work: {}", names.join(","))
}

fn profile_help() -> String {
    let names: Vec<&str> = weir_profiles::names().collect();
    format!("Behave like this adapter, flaws included: {}, or what a file of your own says", names.join(", "))
}

/// A name, or the file's absolute path.
fn checked_profile(name: &str) -> Result<String> {
    weir_profiles::load(name)?;
    if weir_profiles::names().any(|known| known == name) {
        return Ok(name.to_owned());
    }
    std::path::absolute(name)?.into_os_string().into_string().ok().context("the path is not UTF-8")
}

/// Absolute, because the program may change its folder before it opens the device.
fn capture_path(path: &Path) -> Result<String> {
    let path = std::path::absolute(path)?;
    if path.is_dir() {
        bail!("{} is a folder; it takes a file, such as {}", path.display(), path.join("weir.pcapng").display());
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    if !folder.is_dir() {
        bail!("there is no folder {}", folder.display());
    }
    path.into_os_string().into_string().ok().context("the path is not UTF-8")
}

fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(options: Options) -> String {
        format!("{:#}", options.variables().unwrap_err())
    }

    #[test]
    fn every_option_becomes_its_variable() {
        let options = Options {
            interface: Some("lo".into()),
            profile: Some("connectx4".into()),
            icrc: Some(Icrc::Always),
            faults: Some("loss=0.01,seed=7".into()),
            capture: Some("/tmp/a-%p.pcapng".into()),
            memlock: Some(Memlock::Strict),
            userfaultfd: Some(Userfaultfd::Off),
            without: Some("udp-gro, ipv6".into()),
            log: Some("warn,weir_device=debug".into()),
            patience: Some(1.5),
        };
        let text: Vec<String> = options.variables().unwrap().iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(
            text,
            [
                "WEIR_INTERFACE=lo",
                "WEIR_PROFILE=connectx4",
                "WEIR_ICRC=always",
                "WEIR_FAULTS=loss=0.01,seed=7",
                "WEIR_CAPTURE=/tmp/a-%p.pcapng",
                "WEIR_MEMLOCK=strict",
                "WEIR_USERFAULTFD=off",
                "WEIR_WITHOUT=udp-gro,ipv6",
                "WEIR_LOG=warn,weir_device=debug",
                "WEIR_PATIENCE=1.5"
            ]
        );
        assert!(Options::default().variables().unwrap().is_empty());
    }

    #[test]
    fn what_is_wrong_is_said() {
        let text = error(Options { interface: Some("eth99x".into()), ..Default::default() });
        assert!(text.contains("--interface") && text.contains("there are: ") && text.contains("lo"), "{text}");
        let text = error(Options { faults: Some("lost=0.01".into()), ..Default::default() });
        assert!(text.contains("--faults") && text.contains("lost"), "{text}");
        let text = error(Options { capture: Some("/no/such/folder/x.pcapng".into()), ..Default::default() });
        assert!(text.contains("no folder /no/such/folder"), "{text}");
        let text = error(Options { capture: Some("/tmp".into()), ..Default::default() });
        assert!(text.contains("is a folder"), "{text}");
        let text = error(Options { profile: Some("connectx9".into()), ..Default::default() });
        assert!(text.contains("--profile") && text.contains("connectx9") && text.contains("connectx4"), "{text}");
        let text = error(Options { profile: Some("/no/such/file.toml".into()), ..Default::default() });
        assert!(text.contains("--profile") && text.contains("/no/such/file.toml"), "{text}");
        let text = error(Options { without: Some("udp-gso".into()), ..Default::default() });
        assert!(text.contains("--without") && text.contains("udp-gso") && text.contains("udp-segment"), "{text}");
        let text = error(Options { log: Some("weir=loud".into()), ..Default::default() });
        assert!(text.contains("--log"), "{text}");
    }

    #[test]
    fn a_profile_file_becomes_absolute() {
        let file = tempfile::Builder::new().prefix("weir-").suffix(".toml").tempfile_in(".").unwrap();
        std::fs::write(&file, "about = \"mine\"\nbase = \"connectx4\"\n").unwrap();
        let name = file.path().file_name().unwrap().to_str().unwrap().to_owned();
        let options = Options { profile: Some(name.clone()), ..Default::default() };
        let path = PathBuf::from(&options.variables().unwrap()[0].1);
        assert!(path.is_absolute() && path.ends_with(name));
    }

    #[test]
    fn a_relative_capture_becomes_absolute() {
        let options = Options { capture: Some("x.pcapng".into()), ..Default::default() };
        let path = PathBuf::from(&options.variables().unwrap()[0].1);
        assert!(path.is_absolute() && path.ends_with("x.pcapng"));
    }
}
