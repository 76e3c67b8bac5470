//! The dynamic loader: its cache, which ldconfig writes, and its list of preloaded libraries.

use super::item::Item;
use super::manifest::FOLDER;
use crate::library::NAME;
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The path by which programs load Weir's library.
pub fn library() -> PathBuf {
    Path::new("/").join(FOLDER).join(NAME)
}

/// The line in the list of preloaded libraries.
pub fn preload_line() -> Item {
    let line = library().display().to_string();
    Item::Line { path: "etc/ld.so.preload".into(), line, created: false, joined: false }
}

/// Writes the cache anew.
pub fn update(root: &Path) -> Result<()> {
    run(&mut ldconfig(root)).map(drop)
}

/// An error if the cache does not lead to Weir's library.
pub fn check(root: &Path) -> Result<()> {
    let output = run(ldconfig(root).arg("-p"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let machine = if cfg!(target_arch = "aarch64") { "AArch64" } else { "x86-64" };
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix(NAME)?.split_once(" => "));
    match lines.into_iter().find(|(flags, _)| flags.contains(machine)) {
        Some((_, path)) if Path::new(path) == library() => Ok(()),
        Some((_, path)) => bail!(
            "programs would still load {path}: a file of /etc/ld.so.conf.d, or /etc/ld.so.conf itself, names its folder \
             first. Move that line behind the line with /etc/ld.so.conf.d"
        ),
        None => bail!(
            "ldconfig did not find {}: /etc/ld.so.conf must have the line `include /etc/ld.so.conf.d/*.conf`",
            library().display()
        ),
    }
}

/// Runs a program with the library preloaded, before all programs get it. Another root's programs cannot be run here.
pub fn try_preload(root: &Path) -> Result<()> {
    if root != Path::new("/") {
        return Ok(());
    }
    let output = run(Command::new("/bin/sh").args(["-c", "exit 0"]).env("LD_PRELOAD", library()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(said.trim().is_empty(), "a program with the library preloaded says: {said}");
    Ok(())
}

fn ldconfig(root: &Path) -> Command {
    let program = ["/sbin/ldconfig", "/usr/sbin/ldconfig"].into_iter().find(|path| Path::new(path).exists());
    let mut command = Command::new(program.unwrap_or("ldconfig"));
    if root != Path::new("/") {
        command.arg("-r").arg(root);
    }
    command
}

fn run(command: &mut Command) -> Result<Output> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run {program}: this needs glibc's tools"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program}: {}: {}", output.status, said.trim());
    Ok(output)
}
