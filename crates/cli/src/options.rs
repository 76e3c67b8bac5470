//! The adapter's options. Each is a flag of `weir run` and a `WEIR_*` variable, checked before the program starts.

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use weir_link::capture::{HistorySize, Snap};
use weir_links::{Interfaces, LinksSpec};

/// Options of the adapter.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Options of the adapter")]
pub struct Options {
    /// Use only this network interface: programs see one device. `all`: they see every device, `weir_lo` too, which
    /// by default is there only if no other interface is up
    #[arg(long, value_name = "NAME", env = "WEIR_INTERFACE")]
    pub interface: Option<String>,

    /// Exchange packets with these hosts only, and with processes of this host: prefixes such as 192.0.2.0/24 or
    /// 2001:db8::/32, or single addresses, separated by commas. The option may be repeated. The kernel drops what comes
    /// from other addresses; connections and address handles to them fail with EACCES
    #[arg(long, value_name = "PREFIX,...", env = "WEIR_ALLOW", value_delimiter = ',')]
    pub allow: Vec<String>,

    /// Use these interfaces as one: programs see the device `weir_links0`, and packets to a process that does the same
    /// go over all of them. Names separated by commas, each with a weight if its speed (1: 1 Gbit/s) is not what the
    /// kernel says: eth1,eth2=10. `auto`: all that lead to the peer. Not together with --interface
    #[arg(long, value_name = "NAME[=WEIGHT],...", env = "WEIR_LINKS")]
    pub links: Option<String>,

    /// Imitate this adapter, flaws included: the name of a profile, or your own profile file
    #[arg(long, value_name = "NAME|FILE", env = "WEIR_PROFILE", help = profile_help())]
    pub profile: Option<String>,

    /// Which packets carry an ICRC. `always`: every packet; `auto` (default): not those between Weir processes on one
    /// machine
    #[arg(long, value_name = "WHEN", env = "WEIR_ICRC")]
    pub icrc: Option<Icrc>,

    /// Format of payload packets between Weir processes. `roce`: RoCEv2; `weir`: Weir's own frames, which are faster;
    /// `auto` (default): frames, but RoCEv2 with --capture or --faults. The process at the other end must agree to frames
    #[arg(long, value_name = "FORMAT", env = "WEIR_FRAMING")]
    pub framing: Option<Framing>,
    /// Whether packets between processes of one network namespace and user go through shared memory. `auto` (default):
    /// they do, except with --capture, --faults, --icrc always, --framing roce or weir, or a profile in which the
    /// responder sends RNR NAKs or drops packets at page faults; `off`: they never do, and a sniffer sees them
    #[arg(long, value_name = "WHEN", env = "WEIR_LOCAL")]
    pub local: Option<Local>,

    /// Inject faults, such as loss=0.01,dup=0.001,reorder=0.01,corrupt=0.001,delay=50us,jitter=10us,seed=7,dir=out:
    /// probabilities per packet, for packets sent (dir=in: received, dir=both); the same seed gives the same faults
    #[arg(long, value_name = "SPEC", env = "WEIR_FAULTS")]
    pub faults: Option<String>,

    /// Write every packet sent or received to this pcapng file; `%p` in its name becomes the process ID
    #[arg(long, value_name = "FILE", env = "WEIR_CAPTURE")]
    pub capture: Option<PathBuf>,

    /// Keep at most so many bytes of each packet in the capture, or `headers`: no payload of the program. Then the
    /// capture costs little, and packets need no ICRC: without --icrc always the file has none. By default packets are
    /// whole
    #[arg(long, value_name = "BYTES|headers", env = "WEIR_CAPTURE_SNAP")]
    pub capture_snap: Option<String>,

    /// Keep the last packets in so much memory, such as 64M, and write the file only at a stall or an error: what came
    /// before it, and a second of what follows (as much as that memory holds, at most). For a run of hours; --capture-snap headers makes the memory last longer
    #[arg(long, value_name = "SIZE", env = "WEIR_CAPTURE_RING")]
    pub capture_ring: Option<String>,

    /// Registration above RLIMIT_MEMLOCK: `lax` (default) succeeds without locking the rest, `strict` fails with ENOMEM
    #[arg(long, value_name = "HOW", env = "WEIR_MEMLOCK")]
    pub memlock: Option<Memlock>,

    /// Detect by userfaultfd(2) unmapping of ODP memory that does not pass through the functions that Weir
    /// interposes, such as by free(): `auto` (default) if the kernel allows it, `off` never
    #[arg(long, value_name = "WHEN", env = "WEIR_USERFAULTFD")]
    pub userfaultfd: Option<Userfaultfd>,

    /// Do not use these kernel features, to test the fallbacks: names separated by commas
    #[arg(long, value_name = "FEATURE,...", env = "WEIR_WITHOUT", help = without_help())]
    pub without: Option<String>,

    /// Work around flaws of adapters with on-demand paging, above whatever adapter there is: names separated by commas of
    /// `rnr` (the smallest RNR delay for QPs of a process with ODP memory), `dummy` (while a request is open for too
    /// long, empty READs reveal a lost one), `reissue` (a READ that is stuck at its own ODP memory starts again, into
    /// pinned memory), `prefetch` (ODP memory becomes present before a request is posted); or `auto`: all of them
    #[arg(long, value_name = "LIST", env = "WEIR_GUARD")]
    pub guard: Option<String>,

    /// Run on the system's libibverbs and its adapters, with nothing of Weir but the guards of --guard
    #[arg(long)]
    pub system: bool,

    /// What Weir logs to stderr: error, warn, info, debug, trace, or a filter such as weir_device=debug
    #[arg(long, value_name = "FILTER", env = "WEIR_LOG")]
    pub log: Option<String>,

    /// Ask peers to retry for this long while this process does not respond, for example stopped in a debugger
    #[arg(long, value_name = "SECONDS", env = "WEIR_PATIENCE")]
    pub patience: Option<f64>,
}

const FILTERS: &str = "use error, warn, info, debug, trace, or TARGET=LEVEL such as weir_device=debug";

/// Which packets carry a correct ICRC.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub enum Icrc {
    Auto,
    Always,
}

/// How payload travels between Weir processes.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub enum Framing {
    Auto,
    Roce,
    Weir,
}

/// Whether packets go through shared memory.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub enum Local {
    Auto,
    Off,
}

/// What registration does above RLIMIT_MEMLOCK.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub enum Memlock {
    Lax,
    Strict,
}

/// Whether Weir uses userfaultfd(2) to be notified of unmapped memory.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub enum Userfaultfd {
    Auto,
    Off,
}

impl Options {
    /// The variables that pass the options to the adapter. An error says which option is wrong, and why.
    pub fn variables(&self) -> Result<Vec<(&'static str, String)>> {
        let mut variables = vec![];
        if let Some(interface) = &self.interface {
            check_interface(interface).with_context(|| source("--interface", "WEIR_INTERFACE", interface))?;
            variables.push(("WEIR_INTERFACE", interface.clone()));
        }
        if !self.allow.is_empty() {
            let allow = self.allow.join(",");
            let allowed: weir_link::Allowed = allow.parse().with_context(|| source("--allow", "WEIR_ALLOW", &allow))?;
            variables.push(("WEIR_ALLOW", allowed.to_string()));
        }
        if let Some(links) = &self.links {
            let source = source("--links", "WEIR_LINKS", links);
            let spec: LinksSpec = links.parse().context(source)?;
            Interfaces::find(&spec).context(source)?;
            if let Some(interface) = &self.interface {
                let other = self::source("--interface", "WEIR_INTERFACE", interface);
                bail!("{source}: programs see these interfaces as one device; leave out {other}");
            }
            variables.push(("WEIR_LINKS", spec.to_string()));
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
        if let Some(framing) = self.framing {
            variables.push(("WEIR_FRAMING", word(framing)));
        }
        if let Some(local) = self.local {
            variables.push(("WEIR_LOCAL", word(local)));
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
        self.add_capture_amounts(&mut variables)?;
        if let Some(memlock) = self.memlock {
            variables.push(("WEIR_MEMLOCK", word(memlock)));
        }
        if let Some(userfaultfd) = self.userfaultfd {
            variables.push(("WEIR_USERFAULTFD", word(userfaultfd)));
        }
        if let Some(without) = &self.without {
            let without: weir_link::DisabledFeatures =
                without.parse().with_context(|| source("--without", "WEIR_WITHOUT", without))?;
            variables.push(("WEIR_WITHOUT", without.to_string()));
        }
        if let Some(guard) = &self.guard {
            let guards: weir_guard::Guards = guard.parse().with_context(|| source("--guard", "WEIR_GUARD", guard))?;
            variables.push(("WEIR_GUARD", guards.to_string()));
        }
        if let Some(log) = &self.log {
            tracing_subscriber::EnvFilter::try_new(log)
                .with_context(|| format!("{}: `{log}` is not a filter; {FILTERS}", source("--log", "WEIR_LOG", log)))?;
            variables.push(("WEIR_LOG", log.clone()));
        }
        if let Some(patience) = self.patience {
            if !(0.0..=1e6).contains(&patience) {
                let source = source("--patience", "WEIR_PATIENCE", patience.to_string());
                bail!("{source}: {patience} is out of range; give seconds from 0 to 1000000");
            }
            variables.push(("WEIR_PATIENCE", patience.to_string()));
        }
        Ok(variables)
    }

    fn add_capture_amounts(&self, variables: &mut Vec<(&'static str, String)>) -> Result<()> {
        let without_capture = "there is no capture; add --capture FILE";
        if let Some(snap) = &self.capture_snap {
            let source = source("--capture-snap", "WEIR_CAPTURE_SNAP", snap);
            let snap: Snap = snap.parse().context(source)?;
            ensure!(self.capture.is_some(), "{source}: {without_capture}");
            variables.push(("WEIR_CAPTURE_SNAP", snap.to_string()));
        }
        if let Some(ring) = &self.capture_ring {
            let source = source("--capture-ring", "WEIR_CAPTURE_RING", ring);
            let size: HistorySize = ring.parse().context(source)?;
            ensure!(self.capture.is_some(), "{source}: {without_capture}");
            size.check_memory().context(source)?;
            variables.push(("WEIR_CAPTURE_RING", size.to_string()));
        }
        Ok(())
    }
}

/// The source of a value, for an error about it: the variable if it holds this value, otherwise the option.
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
    if name == weir_device::ALL_INTERFACES {
        return Ok(());
    }
    let existing = interfaces();
    if !existing.iter().any(|interface| interface == name) {
        bail!(
            "there is no interface `{name}` in this network namespace; there are: {}, and `all`",
            existing.join(", ")
        );
    }
    Ok(())
}

fn without_help() -> String {
    let names: Vec<&str> = weir_link::DisabledFeatures::names().collect();
    format!("Do not use these kernel features, to test the fallbacks: {}", names.join(","))
}

fn profile_help() -> String {
    let names: Vec<&str> = weir_profiles::names().collect();
    format!("Imitate this adapter, flaws included: {}, or your own profile file", names.join(", "))
}

/// The name of a built-in profile, or the profile file's absolute path.
fn checked_profile(name: &str) -> Result<String> {
    weir_profiles::load(name)?;
    if weir_profiles::names().any(|known| known == name) {
        return Ok(name.to_owned());
    }
    std::path::absolute(name)?
        .into_os_string()
        .into_string()
        .ok()
        .context("the path is not UTF-8; choose a path in UTF-8")
}

/// The absolute path, because the program may change its working directory before it opens the device.
fn capture_path(path: &Path) -> Result<String> {
    let path = std::path::absolute(path)?;
    if path.is_dir() {
        bail!("{} is a folder; name a file, such as {}", path.display(), path.join("weir.pcapng").display());
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    if !folder.is_dir() {
        bail!("there is no folder {}; create it, or name a file in another folder", folder.display());
    }
    path.into_os_string().into_string().ok().context("the path is not UTF-8; choose a path in UTF-8")
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
    fn links_are_checked_and_exclude_an_interface() {
        let options = Options { links: Some("lo=2".into()), ..Options::default() };
        assert_eq!(options.variables().unwrap(), [("WEIR_LINKS", "lo=2".to_string())]);
        let text = error(Options { links: Some("lo,lo".into()), ..Options::default() });
        assert_eq!(text, "--links: `lo` is named twice");
        let text = error(Options { interface: Some("lo".into()), links: Some("lo".into()), ..Options::default() });
        assert_eq!(text, "--links: programs see these interfaces as one device; leave out --interface");
    }

    #[test]
    fn every_option_sets_its_variable() {
        let options = Options {
            interface: Some("lo".into()),
            allow: vec!["192.0.2.0/24".into(), "::1".into()],
            links: None,
            profile: Some("connectx4".into()),
            icrc: Some(Icrc::Always),
            framing: Some(Framing::Roce),
            local: Some(Local::Off),
            faults: Some("loss=0.01,seed=7".into()),
            capture: Some("/tmp/a-%p.pcapng".into()),
            capture_snap: Some("headers".into()),
            capture_ring: Some("1024K".into()),
            memlock: Some(Memlock::Strict),
            userfaultfd: Some(Userfaultfd::Off),
            without: Some("udp-gro, ipv6".into()),
            guard: Some("dummy, rnr".into()),
            system: false,
            log: Some("warn,weir_device=debug".into()),
            patience: Some(1.5),
        };
        let text: Vec<String> = options.variables().unwrap().iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(
            text,
            [
                "WEIR_INTERFACE=lo",
                "WEIR_ALLOW=192.0.2.0/24,::1/128",
                "WEIR_PROFILE=connectx4",
                "WEIR_ICRC=always",
                "WEIR_FRAMING=roce",
                "WEIR_LOCAL=off",
                "WEIR_FAULTS=loss=0.01,seed=7",
                "WEIR_CAPTURE=/tmp/a-%p.pcapng",
                "WEIR_CAPTURE_SNAP=headers",
                "WEIR_CAPTURE_RING=1M",
                "WEIR_MEMLOCK=strict",
                "WEIR_USERFAULTFD=off",
                "WEIR_WITHOUT=udp-gro,ipv6",
                "WEIR_GUARD=rnr,dummy",
                "WEIR_LOG=warn,weir_device=debug",
                "WEIR_PATIENCE=1.5"
            ]
        );
        assert!(Options::default().variables().unwrap().is_empty());
    }

    #[test]
    fn errors_name_the_option_and_the_wrong_value() {
        let text = error(Options { interface: Some("eth99x".into()), ..Default::default() });
        assert!(text.contains("--interface") && text.contains("there are: ") && text.contains("lo"), "{text}");
        let text = error(Options { allow: vec!["192.0.2.7/24".into()], ..Default::default() });
        assert!(text.contains("--allow") && text.contains("write 192.0.2.0/24"), "{text}");
        let text = error(Options { faults: Some("lost=0.01".into()), ..Default::default() });
        assert!(text.contains("--faults") && text.contains("lost"), "{text}");
        let text = error(Options { capture: Some("/no/such/folder/x.pcapng".into()), ..Default::default() });
        assert!(text.contains("no folder /no/such/folder"), "{text}");
        let text = error(Options { capture: Some("/tmp".into()), ..Default::default() });
        assert!(text.contains("is a folder"), "{text}");
        let text = error(Options { capture_snap: Some("64".into()), ..Default::default() });
        assert!(text.contains("--capture-snap") && text.contains("106"), "{text}");
        let text = error(Options { capture_ring: Some("1K".into()), ..Default::default() });
        assert!(text.contains("--capture-ring") && text.contains("128K"), "{text}");
        for (snap, ring) in [(Some("headers".into()), None), (None, Some("64M".into()))] {
            let text = error(Options { capture_snap: snap, capture_ring: ring, ..Default::default() });
            assert!(text.contains("--capture-") && text.contains("add --capture FILE"), "{text}");
        }
        let text = error(Options { profile: Some("connectx9".into()), ..Default::default() });
        assert!(text.contains("--profile") && text.contains("connectx9") && text.contains("connectx4"), "{text}");
        let text = error(Options { profile: Some("/no/such/file.toml".into()), ..Default::default() });
        assert!(text.contains("--profile") && text.contains("/no/such/file.toml"), "{text}");
        let text = error(Options { without: Some("udp-gso".into()), ..Default::default() });
        assert!(text.contains("--without") && text.contains("udp-gso") && text.contains("udp-segment"), "{text}");
        let text = error(Options { guard: Some("dumy".into()), ..Default::default() });
        assert!(text.contains("--guard") && text.contains("`dumy`") && text.contains("reissue"), "{text}");
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
