//! The file from which an interrupted run continues.

use crate::findings::Subject;
use crate::search::Search;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::env;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// What the file contains.
#[derive(Serialize, Deserialize)]
pub struct State {
    format: u32,
    pub subject: Subject,
    pub search: Search,
}

const FORMAT: u32 = 1;

impl State {
    pub fn new(subject: Subject, search: Search) -> State {
        State { format: FORMAT, subject, search }
    }

    /// Reads a file. `None` if there is none, or none of this format.
    pub fn load(path: &Path) -> Result<Option<State>> {
        let text = match fs::read(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.with_context(|| format!("cannot read {}", path.display()))?,
        };
        Ok(serde_json::from_slice(&text).ok().filter(|state: &State| state.format == FORMAT))
    }

    /// Whether the file is of a run with the same options.
    pub fn is_of(&self, subject: &Subject, search: &Search) -> bool {
        // Which device was used is known only after it was opened.
        let options = |subject: &Subject| Subject { adapter: String::new(), weir: false, ..subject.clone() };
        options(&self.subject) == options(subject) && self.search.plan == search.plan
    }

    /// Writes the file whole, or not at all.
    pub fn save(&self, path: &Path) -> Result<()> {
        let why = || format!("cannot write {}: name another file with --state", path.display());
        let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        fs::create_dir_all(folder).with_context(why)?;
        let mut file = tempfile::NamedTempFile::new_in(folder).with_context(why)?;
        file.write_all(&serde_json::to_vec(self)?).with_context(why)?;
        file.persist(path).with_context(why)?;
        Ok(())
    }
}

/// `$XDG_STATE_HOME/weir/tune/NAME.json`, or below `~/.local/state`; `None` without a home.
pub fn default_path(subject: &Subject) -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(home.join("weir/tune").join(file_name(subject)))
}

/// The file of a run that is not complete.
pub fn part(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

fn file_name(subject: &Subject) -> String {
    let device = subject.device.as_deref().unwrap_or("default");
    let peer = [&subject.peer, &subject.peer_device].into_iter().flatten().map(|name| format!("-{name}"));
    let peer: String = peer.collect();
    let place = if subject.namespaces { "-namespaces" } else { "" };
    let kind = if subject.quick { "quick" } else { "full" };
    let name = format!("{device}{peer}{place}-{kind}.json");
    name.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Adapter, run};
    use crate::plan::Plan;

    #[test]
    fn a_state_is_read_as_it_was_written_and_belongs_to_its_options_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b.json");
        assert!(State::load(&path).unwrap().is_none());
        let subject = Subject { device: Some("mlx5_0".into()), quick: true, ..Subject::default() };
        let mut search = Search::new(Plan::quick(vec![]));
        run(&mut search, &mut Adapter::new(1, 0.01), 30);
        State::new(subject.clone(), search.clone()).save(&path).unwrap();
        let state = State::load(&path).unwrap().unwrap();
        assert_eq!((state.search.runs, state.search.contests.len()), (30, search.contests.len()));
        assert!(state.is_of(&subject, &Search::new(Plan::quick(vec![]))));
        assert!(!state.is_of(&subject, &Search::new(Plan::full(vec![]))));
        assert!(!state.is_of(&Subject { peer: Some("b".into()), ..subject }, &search));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no other file remains");
        fs::write(&path, "{").unwrap();
        assert!(State::load(&path).unwrap().is_none());
    }

    #[test]
    fn names_of_files_contain_no_separators() {
        let subject = Subject { peer: Some("../fe80::1%eth0".into()), ..Subject::default() };
        assert_eq!(file_name(&subject), "default-.._fe80__1_eth0-full.json");
    }
}
