//! A tree of small files in a folder, which follows a list of entries.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// What a path of the tree is. Folders above an entry need no entry of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A file with this text and a newline.
    Text(String),
    /// A symbolic link with this target.
    Link(&'static str),
    /// A folder, perhaps an empty one.
    Folder,
}

/// Paths relative to the root of the tree.
pub type Entries = BTreeMap<PathBuf, Entry>;

/// The tree as it is in its folder.
pub struct Tree {
    root: PathBuf,
    entries: Entries,
}

impl Tree {
    /// An empty tree in an existing folder, which may have other files.
    pub fn new(root: PathBuf) -> Tree {
        Tree { root, entries: Entries::new() }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The entries as they are now.
    pub fn entries(&self) -> &Entries {
        &self.entries
    }

    /// Writes what differs. A reader finds the old text of a file or the new one, and never a part. After an error
    /// the next call writes again what is missing.
    pub fn update(&mut self, wanted: Entries) -> io::Result<()> {
        let gone: Vec<PathBuf> = self.entries.keys().filter(|path| !wanted.contains_key(*path)).cloned().collect();
        // In reverse order: what is in a folder before the folder.
        for path in gone.iter().rev() {
            self.remove(path);
        }
        for (path, entry) in wanted {
            if self.entries.get(&path) != Some(&entry) {
                self.write(&path, &entry)?;
                self.entries.insert(path, entry);
            }
        }
        Ok(())
    }

    fn remove(&mut self, path: &Path) {
        let place = self.root.join(path);
        let _ = match self.entries.remove(path) {
            Some(Entry::Folder) | None => Ok(()),
            Some(_) => fs::remove_file(&place),
        };
        // Folders that are empty now. One with other files stays.
        for folder in path.ancestors() {
            if folder.as_os_str().is_empty() || self.entries.contains_key(folder) {
                break;
            }
            let _ = fs::remove_dir(self.root.join(folder));
        }
    }

    fn write(&self, path: &Path, entry: &Entry) -> io::Result<()> {
        let place = self.root.join(path);
        if *entry == Entry::Folder {
            return fs::create_dir_all(place);
        }
        fs::create_dir_all(place.parent().expect("below the root"))?;
        let new = self.root.join(".new");
        let _ = fs::remove_file(&new);
        match entry {
            Entry::Text(text) => {
                fs::write(&new, format!("{text}\n"))?;
                fs::set_permissions(&new, Permissions::from_mode(0o444))?;
            }
            Entry::Link(target) => symlink(target, &new)?,
            Entry::Folder => {}
        }
        fs::rename(new, place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &str) -> Entry {
        Entry::Text(value.into())
    }

    #[test]
    fn the_folder_follows_the_entries_and_leaves_other_files() {
        let folder = std::env::temp_dir().join(format!("weir-test-tree-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("a/other")).unwrap();
        let mut tree = Tree::new(folder.clone());
        let read = |path: &str| fs::read_to_string(folder.join(path)).ok();
        let first = [("a/b/c", text("1")), ("a/d", Entry::Link("/dev/null")), ("e", Entry::Folder), ("g/h", text("2"))];
        let entries = |list: &[(&str, Entry)]| list.iter().map(|(path, e)| (path.into(), e.clone())).collect();
        tree.update(entries(&first)).unwrap();
        assert_eq!((read("a/b/c").as_deref(), read("g/h").as_deref()), (Some("1\n"), Some("2\n")));
        assert_eq!(fs::read_link(folder.join("a/d")).unwrap(), Path::new("/dev/null"));
        assert!(folder.join("e").is_dir());
        // The same file, so that nothing was written again.
        let inode = |path: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(folder.join(path)).unwrap());
        let before = inode("g/h");
        tree.update(entries(&[("a/b/c", text("3")), ("g/h", text("2"))])).unwrap();
        assert_eq!((read("a/b/c").as_deref(), inode("g/h")), (Some("3\n"), before));
        assert!(!folder.join("a/d").exists() && !folder.join("e").exists());
        tree.update(Entries::new()).unwrap();
        assert!(!folder.join("a/b").exists() && !folder.join("g").exists());
        assert!(folder.join("a/other").is_dir(), "not the tree's");
        fs::remove_dir_all(folder).unwrap();
    }
}
