//! What `weir install --system` has made, in a file, so that `--uninstall` removes this and nothing else.

use super::item::{Item, kind};
use super::steps::{Did, Steps};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The folder of the library and the manifest, below the root. Only root can write to it: programs of root load the
/// library from there.
pub const FOLDER: &str = "usr/local/lib/weir-system";

/// What was made, in this order.
#[derive(Serialize, Deserialize, Default, Debug, PartialEq)]
pub struct Manifest {
    /// The version of Weir that made it.
    version: String,
    items: Vec<Item>,
}

/// Its path, below the root.
pub fn path() -> PathBuf {
    Path::new(FOLDER).join("manifest.json")
}

impl Manifest {
    /// Empty if Weir is not installed.
    pub fn read() -> Result<Manifest> {
        match fs::read_to_string(path()) {
            Ok(text) => serde_json::from_str(&text).with_context(|| {
                format!("/{} is damaged: restore it, or remove Weir's files by hand", path().display())
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Manifest::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read /{}", path().display())),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// What an item would overwrite that is not Weir's: the path, and what is there.
    pub fn stranger(&self, item: &Item) -> Option<String> {
        // The others leave what is there.
        let overwrites = matches!(item, Item::Copy { .. } | Item::Text { .. });
        let unknown = overwrites && self.at(item.path()).is_none() && !item.is_there();
        let found = item.path().symlink_metadata().ok().filter(|_| unknown)?;
        Some(format!("/{} ({})", item.path().display(), kind(&found)))
    }

    /// Makes an item, and the folders above it. What is there already and not in the manifest stays out of it.
    pub fn make(&mut self, item: &Item, steps: &mut Steps) -> Result<()> {
        let path = item.path();
        let found = path.symlink_metadata().ok();
        let ours = self.at(path).is_some();
        match (item, &found) {
            (Item::Link { .. }, Some(found)) if !ours || !item.is_there() => {
                steps.add(Did::Left, path, format!("there is {} already", kind(found)));
                return Ok(());
            }
            _ if item.is_there() => {
                steps.add(Did::Unchanged, path, String::new());
                return Ok(());
            }
            _ => {}
        }
        if let Err(error) = self.make_with_folders(item, steps) {
            // A link helps some programs only, and a container may have a read-only /dev.
            if !matches!(item, Item::Link { .. }) {
                return Err(error);
            }
            steps.add(Did::Left, path, format!("{error:#}"));
            return Ok(());
        }
        let did = if found.is_some() { Did::Updated } else { Did::Created };
        let what = match item {
            Item::Copy { from, .. } => format!("a copy of {}", from.display()),
            Item::Link { target, .. } => format!("a link to {}", target.display()),
            Item::Line { line, .. } => format!("the line {line}"),
            Item::Folder { .. } | Item::Text { .. } => String::new(),
        };
        steps.add(did, path, what);
        Ok(())
    }

    /// Removes an item if it is in the manifest, and takes it out of the manifest.
    pub fn unmake(&mut self, item: &Item, steps: &mut Steps) -> Result<()> {
        let Some(known) = self.at(item.path()) else { return Ok(()) };
        known.remove(steps)?;
        self.forget(item.path())
    }

    /// Removes the file.
    pub fn remove() -> Result<()> {
        fs::remove_file(path()).with_context(|| format!("cannot remove /{}", path().display()))
    }

    fn make_with_folders(&mut self, item: &Item, steps: &mut Steps) -> Result<()> {
        let path = item.path();
        let above = path.ancestors().skip(1).filter(|folder| *folder != Path::new("") && !folder.is_dir());
        for folder in above.collect::<Vec<_>>().into_iter().rev() {
            let folder = Item::Folder { path: folder.to_owned() };
            self.write_item(&folder)?;
            steps.add(Did::Created, folder.path(), "a folder".into());
        }
        self.write_item(&item.prepared())
    }

    fn forget(&mut self, path: &Path) -> Result<()> {
        self.items.retain(|known| known.path() != path);
        self.write()
    }

    /// The item that Weir has made at a path.
    fn at(&self, path: &Path) -> Option<&Item> {
        self.items.iter().find(|item| item.path() == path)
    }

    /// Makes an item that is recorded before: an interrupted installation can be uninstalled. The folders above the
    /// manifest are recorded when the last of them exists.
    fn write_item(&mut self, item: &Item) -> Result<()> {
        self.items.retain(|known| known.path() != item.path());
        self.items.push(item.clone());
        if Path::new(FOLDER).is_dir() {
            self.write()?;
        }
        let made = item.write().with_context(|| format!("cannot write /{}", item.path().display()));
        if made.is_err() && Path::new(FOLDER).is_dir() {
            self.forget(item.path())?;
        }
        made
    }

    fn write(&mut self) -> Result<()> {
        self.version = env!("CARGO_PKG_VERSION").into();
        let new = Path::new(FOLDER).join(".manifest.new");
        let text = format!("{}\n", serde_json::to_string_pretty(self)?);
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, path()))
            .with_context(|| format!("cannot write /{}", path().display()))
    }
}
