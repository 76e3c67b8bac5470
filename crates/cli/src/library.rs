//! Finds Weir's libibverbs.so.1, and chooses the one of its two builds that fits this machine.

use anyhow::{Context, Result, bail};
use goblin::elf::Elf;
use std::path::{Path, PathBuf};

/// The soname that programs need.
pub const NAME: &str = "libibverbs.so.1";

/// A folder for LD_LIBRARY_PATH.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    pub folder: PathBuf,
    /// The distribution's own libibverbs, which provides the private symbols that the distribution's other libraries
    /// need; `None` if it is not installed.
    pub distribution: Option<PathBuf>,
}

/// The library that fits this machine.
pub fn find() -> Result<Library> {
    find_for(Path::new("/"))
}

/// The library that fits the system below `root`.
pub fn find_for(root: &Path) -> Result<Library> {
    choose(&weir_stage::library_folder()?, root)
}

/// Weir's full build needs the distribution's library by its absolute path. If that does not exist, the loader refuses
/// the full build, so the plain build is used: without the distribution's library nothing needs its private symbols.
fn choose(folder: &Path, root: &Path) -> Result<Library> {
    let full = folder.join(NAME);
    if !full.is_file() && !folder.join("plain").join(NAME).is_file() {
        bail!(
            "Weir's {NAME} is not in {}\n\
             In the source tree: run `make build`, then use target/weir/bin/weir. Elsewhere: set WEIR_LIB_DIR to the \
             folder that contains it.",
            folder.display()
        );
    }
    if full.is_file() {
        let needed = absolute_needs(&full)?;
        let below = |path: &PathBuf| root.join(path.strip_prefix("/").unwrap_or(path));
        if needed.iter().all(|path| below(path).exists()) {
            return Ok(Library { folder: folder.to_owned(), distribution: needed.into_iter().next() });
        }
    }
    let folder = folder.join("plain");
    if !folder.join(NAME).is_file() {
        bail!(
            "the distribution's libibverbs is not installed, and {} for machines without it does not exist; install \
             libibverbs1 (as root: apt install libibverbs1), or run `make build` again",
            folder.display()
        );
    }
    Ok(Library { folder, distribution: None })
}

/// The entries of a library's DT_NEEDED that are absolute paths.
fn absolute_needs(library: &Path) -> Result<Vec<PathBuf>> {
    let bytes = std::fs::read(library).with_context(|| format!("cannot read {}", library.display()))?;
    let elf = Elf::parse(&bytes).with_context(|| format!("{} is not a shared library", library.display()))?;
    Ok(elf.libraries.into_iter().map(PathBuf::from).filter(|path| path.is_absolute()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A shared library that needs another one, under the other's soname.
    fn build(folder: &Path, needs: Option<&Path>) {
        std::fs::create_dir_all(folder).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-nostdlib", "-xc", "/dev/null", "-xnone", "-o"]).arg(folder.join(NAME));
        if let Some(needs) = needs {
            let dummy = folder.join("dummy.so");
            let soname = format!("-Wl,-soname,{}", needs.display());
            let mut stand_in = Command::new("cc");
            stand_in.args(["-shared", "-nostdlib", "-xc", "/dev/null", &soname, "-o"]).arg(&dummy);
            assert!(stand_in.status().unwrap().success());
            cc.arg("-Wl,--no-as-needed").arg(dummy);
        }
        assert!(cc.status().unwrap().success());
    }

    #[test]
    fn the_full_build_is_chosen_if_the_library_that_it_needs_exists() {
        let dir = tempfile::tempdir().unwrap();
        build(dir.path(), Some(Path::new("/dev/null")));
        let found = choose(dir.path(), Path::new("/")).unwrap();
        assert_eq!(found, Library { folder: dir.path().into(), distribution: Some("/dev/null".into()) });
    }

    #[test]
    fn the_plain_build_is_chosen_if_it_does_not() {
        let dir = tempfile::tempdir().unwrap();
        build(dir.path(), Some(Path::new("/no/such/libibverbs.so.1")));
        assert!(choose(dir.path(), Path::new("/")).unwrap_err().to_string().contains("for machines without"));
        build(&dir.path().join("plain"), None);
        let found = choose(dir.path(), Path::new("/")).unwrap();
        assert_eq!(found, Library { folder: dir.path().join("plain"), distribution: None });
    }

    #[test]
    fn a_missing_library_is_an_error_that_names_make_build() {
        let dir = tempfile::tempdir().unwrap();
        assert!(choose(dir.path(), Path::new("/")).unwrap_err().to_string().contains("make build"));
    }
}
