//! `weir install`: makes every program of the machine use Weir without `weir run`, and undoes it.
//!
//! All paths are relative to the root folder, which is the current folder of this process. This has a second use: if
//! Weir is preloaded into this process too, it shows its own files for the absolute path `/dev/infiniband`.

mod item;
mod loader;
mod manifest;
mod steps;

use crate::library::{self, NAME};
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use item::Item;
use manifest::{FOLDER, Manifest};
use nix::unistd::geteuid;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use steps::{Did, Steps};

/// Arguments of `weir install`.
#[derive(Args, Debug)]
#[command(after_long_help = EXPLANATION)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["system", "uninstall"])))]
pub struct InstallArgs {
    /// Make every program of this machine use Weir; needs root
    #[arg(long)]
    system: bool,
    /// Remove what `weir install --system` has installed, and nothing else; needs root
    #[arg(long)]
    uninstall: bool,
    /// Also load Weir into every program before all other libraries, by /etc/ld.so.preload
    #[arg(long, conflicts_with = "uninstall")]
    preload: bool,
    /// Install although this machine has RDMA adapters, which programs then no longer see
    #[arg(long, conflicts_with = "uninstall")]
    hide_adapters: bool,
    /// Install into the system below this folder instead of /
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

const EXPLANATION: &str = "\
What --system does:
  - copies Weir's libibverbs.so.1 to /usr/local/lib/weir-system
  - names this folder in /etc/ld.so.conf.d/000-weir.conf, before the distribution's, and runs ldconfig
  - makes /dev/infiniband/uverbs0 to uverbs7 links to /dev/null, as far as these names are free: UCX looks for them
  - has systemd make the links again at each start, by /etc/tmpfiles.d/weir.conf, if systemd is there
  - with --preload: adds the library to /etc/ld.so.preload

Files of others that have one of these names are never overwritten: nothing is installed, and they are named. Devices
and links in /dev/infiniband stay as they are.

Without --preload, Weir reaches every program that the dynamic loader gives a libibverbs.so.1, but:
  - a program with DT_RPATH, or with a copy of libibverbs under another name, keeps its own library
  - a program that loads libibverbs by a plugin finds no files in /sys/class/infiniband
  - in such a program Weir learns only by userfaultfd which memory is unmapped (it matters for on-demand paging)

With --preload these restrictions do not exist. But every program of the machine loads Weir, programs without RDMA and
setuid programs too: each starts some milliseconds later, and a fault in Weir's library affects all of them. 32-bit
programs print at their start that the library has the wrong ELF class. `weir run` needs none of this.

Programs read WEIR_* variables from their own environment (`weir help run` lists them).

Run `weir install --system` again after an update of Weir. Without --preload it takes Weir out of /etc/ld.so.preload
again.";

/// How many devices of a process have a file in /dev/infiniband: UCX shows only those.
const DEVICES: usize = 8;

/// The first line of the files.
const MADE: &str = "# Made by `weir install --system`; `weir install --uninstall` removes it.\n";

/// Installs, or uninstalls.
pub fn run(args: &InstallArgs) -> Result<ExitCode> {
    ensure!(
        geteuid().is_root(),
        "weir install changes files of the system: run it as root. Without root, use `weir run` or `weir env`"
    );
    let root = std::path::absolute(&args.root)?;
    ensure!(root.is_dir(), "{} is not a folder", root.display());
    // Found first: its path may be relative to the current folder.
    let library = library::folder();
    std::env::set_current_dir(&root).with_context(|| format!("cannot enter {}", root.display()))?;
    let mut steps = Steps::default();
    if args.uninstall {
        uninstall(&root, &mut steps)?;
    } else {
        let what = Wanted { library: library?.join(NAME), preload: args.preload, hide_adapters: args.hide_adapters };
        install(&root, &what, &mut steps)?;
    }
    steps.print(args.json, if args.uninstall { None } else { Some(args.preload) })?;
    Ok(ExitCode::SUCCESS)
}

/// What to install.
struct Wanted {
    /// The library to copy.
    library: PathBuf,
    preload: bool,
    hide_adapters: bool,
}

fn install(root: &Path, wanted: &Wanted, steps: &mut Steps) -> Result<()> {
    let mut manifest = Manifest::read()?;
    check_adapters(wanted.hide_adapters, steps)?;
    let items = items(&wanted.library);
    let strangers: Vec<String> = items.iter().filter_map(|item| manifest.stranger(item)).collect();
    ensure!(strangers.is_empty(), "nothing is installed, because this is there already:\n  {}", strangers.join("\n  "));
    let line = loader::preload_line();
    if wanted.preload {
        line.check()?;
    }

    // If a step fails, the manifest has all that was done so far.
    let done = items.iter().try_for_each(|item| manifest.make(item, steps));
    let done = done.and_then(|()| loader::update(root)).and_then(|()| loader::check(root));
    if let Err(error) = done {
        return Err(undo(root, error));
    }
    steps.add(Did::Ran, "ldconfig", format!("programs load {}", loader::library().display()));
    if wanted.preload {
        if let Err(error) = loader::try_preload(root) {
            return Err(undo(root, error));
        }
        manifest.make(&line, steps)?;
    } else {
        manifest.unmake(&line, steps)?;
    }
    Ok(())
}

fn undo(root: &Path, error: anyhow::Error) -> anyhow::Error {
    match uninstall(root, &mut Steps::default()) {
        Ok(()) => anyhow!("{error:#}\nWhat was installed before this error is removed again."),
        Err(left) => anyhow!("{error:#}\nRun `weir install --uninstall`: {left:#}"),
    }
}

fn uninstall(root: &Path, steps: &mut Steps) -> Result<()> {
    let mut manifest = Manifest::read()?;
    if manifest.is_empty() {
        steps.add(Did::Nothing, manifest::path(), "Weir is not installed in the system".into());
        return Ok(());
    }
    let loaded = manifest.items().to_vec();
    for item in loaded.iter().rev().filter(|item| !item.is_folder()) {
        manifest.unmake(item, steps)?;
    }
    // The manifest is in one of the folders.
    Manifest::remove()?;
    for item in loaded.iter().rev().filter(|item| item.is_folder()) {
        item.remove(steps)?;
    }
    loader::update(root)?;
    steps.add(Did::Ran, "ldconfig", "programs load the distribution's library again, if there is any".into());
    Ok(())
}

/// Everything but the line in ld.so.preload, in the order in which it is made.
fn items(library: &Path) -> Vec<Item> {
    let mut items = vec![
        Item::Copy { path: Path::new(FOLDER).join(NAME), from: library.to_owned() },
        Item::Text { path: "etc/ld.so.conf.d/000-weir.conf".into(), text: format!("{MADE}/{FOLDER}\n") },
    ];
    let links = (0..DEVICES).map(|number| format!("dev/infiniband/uverbs{number}"));
    items.extend(links.clone().map(|path| Item::Link { path: path.into(), target: "/dev/null".into() }));
    // /dev is made anew at each start of the machine.
    if ["usr/bin/systemd-tmpfiles", "bin/systemd-tmpfiles"].iter().any(|program| Path::new(program).exists()) {
        let lines: String = links.map(|link| format!("L /{link} - - - - /dev/null\n")).collect();
        items.push(Item::Text {
            path: "etc/tmpfiles.d/weir.conf".into(),
            text: format!("{MADE}d /dev/infiniband 0755 root root -\n{lines}"),
        });
    }
    items
}

/// Programs see Weir's devices only, so the adapters of this machine would be out of use.
fn check_adapters(hide: bool, steps: &mut Steps) -> Result<()> {
    let entries = fs::read_dir("sys/class/infiniband").into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let names = names.join(", ");
    if names.is_empty() {
        return Ok(());
    }
    if !hide {
        bail!(
            "this machine has RDMA adapters ({names}), and programs would no longer see them. Use `weir run`, or \
             --hide-adapters if that is what you want"
        );
    }
    steps.add(Did::Hidden, "sys/class/infiniband", format!("programs no longer see {names}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    #[test]
    fn either_system_or_uninstall_is_given_and_uninstall_has_no_options_of_system() {
        let parses = |options: &str| {
            let words = ["weir", "install"].into_iter().chain(options.split_whitespace());
            crate::Cli::try_parse_from(words).map(drop).map_err(|error| error.to_string())
        };
        for good in ["--system", "--system --preload --hide-adapters --root /x --json", "--uninstall --json --root /x"]
        {
            assert_eq!(parses(good), Ok(()), "{good}");
        }
        for bad in ["", "--preload", "--json", "--system --uninstall", "--uninstall --preload"] {
            assert!(parses(bad).is_err(), "{bad}");
        }
        assert!(parses("").unwrap_err().contains("<--system|--uninstall>"), "{:?}", parses(""));
    }
}
