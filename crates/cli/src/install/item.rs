//! A thing that `weir install` makes at a path: what is there, making it, removing it.

use super::steps::{Did, Steps};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Something at a path below the root.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Item {
    /// A folder that did not exist; it is removed when it is empty.
    Folder { path: PathBuf },
    /// A copy of a file, in Weir's own folder.
    Copy { path: PathBuf, from: PathBuf },
    /// A file with this text.
    Text { path: PathBuf, text: String },
    /// A symbolic link.
    Link { path: PathBuf, target: PathBuf },
    /// A line at the end of a file that others write too.
    Line {
        path: PathBuf,
        line: String,
        /// The file did not exist.
        created: bool,
        /// The last line had no newline.
        joined: bool,
    },
}

use Item::{Copy, Folder, Line, Link, Text};

impl Item {
    pub fn path(&self) -> &Path {
        match self {
            Folder { path } | Copy { path, .. } | Text { path, .. } | Link { path, .. } | Line { path, .. } => path,
        }
    }

    pub fn is_folder(&self) -> bool {
        matches!(self, Folder { .. })
    }

    /// An error if the file cannot be edited.
    pub fn check(&self) -> Result<()> {
        if let Ok(found) = self.path().symlink_metadata() {
            ensure!(found.is_file(), "/{} is {}: edit it yourself", self.path().display(), kind(&found));
        }
        Ok(())
    }

    /// As it will be made: a line also says what its file is like before.
    pub fn prepared(&self) -> Item {
        let Line { path, line, .. } = self else { return self.clone() };
        let joined = fs::read(path).is_ok_and(|before| before.last().is_some_and(|last| *last != b'\n'));
        Line { path: path.clone(), line: line.clone(), created: !path.exists(), joined }
    }

    /// Removes it, unless it has been changed since.
    pub fn remove(&self, steps: &mut Steps) -> Result<()> {
        let path = self.path();
        if path.symlink_metadata().is_err() {
            return Ok(()); // removed by hand, or /dev is new since a start of the machine
        }
        let removed = match self {
            Folder { .. } => match fs::remove_dir(path) {
                Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
                    steps.add(Did::Left, path, "it has other files now".into());
                    return Ok(());
                }
                done => done,
            },
            // In Weir's own folder, and the file from which it was copied may be another one now.
            Copy { .. } => fs::remove_file(path),
            Text { .. } | Link { .. } if !self.is_there() => {
                steps.add(Did::Left, path, "it has been changed since".into());
                return Ok(());
            }
            Text { .. } | Link { .. } => fs::remove_file(path),
            Line { line, created, joined, .. } => remove_line(path, line, *created, *joined),
        };
        removed.with_context(|| format!("cannot remove /{}", path.display()))?;
        let what = if let Line { line, .. } = self { format!("the line {line}") } else { String::new() };
        steps.add(Did::Removed, path, what);
        Ok(())
    }

    /// Whether the path has exactly this.
    pub fn is_there(&self) -> bool {
        let path = self.path();
        let is_file = || path.symlink_metadata().is_ok_and(|found| found.is_file());
        match self {
            Folder { .. } => path.is_dir(),
            Copy { from, .. } => is_file() && fs::read(path).ok().is_some_and(|old| fs::read(from).ok() == Some(old)),
            Text { text, .. } => is_file() && fs::read(path).is_ok_and(|old| old == text.as_bytes()),
            Link { target, .. } => fs::read_link(path).is_ok_and(|old| old == *target),
            Line { line, .. } => {
                fs::read_to_string(path).is_ok_and(|text| text.split([' ', ':', '\t', '\n']).any(|word| word == line))
            }
        }
    }

    /// Makes it. The folder of its path exists.
    pub fn write(&self) -> std::io::Result<()> {
        let new = |path: &Path| path.with_file_name(".weir.new");
        let finish = |path: &Path, mode: u32| {
            fs::set_permissions(new(path), Permissions::from_mode(mode))?;
            fs::rename(new(path), path)
        };
        match self {
            Folder { path } => {
                fs::create_dir(path)?;
                fs::set_permissions(path, Permissions::from_mode(0o755))
            }
            // Programs that have the old library loaded keep it.
            Copy { path, from } => fs::copy(from, new(path)).and_then(|_| finish(path, 0o755)),
            Text { path, text } => fs::write(new(path), text).and_then(|()| finish(path, 0o644)),
            Link { path, target } => symlink(target, path),
            Line { path, line, .. } => {
                let mut text = read_or_empty(path)?;
                if text.last().is_some_and(|last| *last != b'\n') {
                    text.push(b'\n');
                }
                text.extend(line.bytes().chain([b'\n']));
                replace(path, &text)
            }
        }
    }
}

/// What a path is, for messages.
pub fn kind(found: &fs::Metadata) -> String {
    let kind = found.file_type();
    if kind.is_char_device() {
        let device = found.rdev();
        return format!("a character device ({}:{})", libc::major(device), libc::minor(device));
    }
    let kind = match () {
        () if kind.is_symlink() => "a symbolic link",
        () if kind.is_dir() => "a folder",
        () if kind.is_file() => "a file",
        () => "a special file",
    };
    kind.into()
}

fn remove_line(path: &Path, line: &str, created: bool, joined: bool) -> std::io::Result<()> {
    let text = fs::read(path)?;
    let is_last = text.ends_with(format!("{line}\n").as_bytes());
    let mut rest: Vec<u8> = text
        .split_inclusive(|byte| *byte == b'\n')
        .filter(|found| found.trim_ascii() != line.as_bytes())
        .flatten()
        .copied()
        .collect();
    if joined && is_last && rest.last() == Some(&b'\n') {
        rest.pop();
    }
    if created && rest.is_empty() { fs::remove_file(path) } else { replace(path, &rest) }
}

/// At every moment the file has its old or its new text: the loader reads it at the start of every program.
fn replace(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let new = path.with_file_name(".weir.new");
    fs::write(&new, text)?;
    let old = path.metadata().ok();
    fs::set_permissions(&new, Permissions::from_mode(old.as_ref().map_or(0o644, |old| old.mode() & 0o7777)))?;
    if let Some(old) = old {
        std::os::unix::fs::chown(&new, Some(old.uid()), Some(old.gid()))?;
    }
    fs::rename(new, path)
}

fn read_or_empty(path: &Path) -> std::io::Result<Vec<u8>> {
    match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(vec![]),
        read => read,
    }
}
