//! Where Weir's libibverbs.so.1 is, and which of its two builds fits this machine.

use anyhow::{Context, Result, bail};
use goblin::elf::Elf;
use std::path::{Path, PathBuf};

/// The name that programs ask the loader for.
const NAME: &str = "libibverbs.so.1";

/// A folder for LD_LIBRARY_PATH.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    pub folder: PathBuf,
    /// The distribution's own library, which serves the private symbols that its other libraries ask for; `None`
    /// where it is not installed.
    pub distribution: Option<PathBuf>,
}

/// The folder with everything that is not the `weir` command: `WEIR_LIB_DIR`, otherwise `../lib/weir` as seen from the
/// command. The build tree (`target/weir`) and an installation are laid out alike.
pub fn folder() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("WEIR_LIB_DIR").filter(|folder| !folder.is_empty()) {
        return Ok(std::path::absolute(folder)?);
    }
    let exe = std::env::current_exe().context("cannot tell where the weir command is")?;
    let bin = exe.parent().context("the weir command lies in no folder")?;
    Ok(bin.parent().unwrap_or(bin).join("lib/weir"))
}

/// The library that fits this machine.
pub fn find() -> Result<Library> {
    choose(&folder()?)
}

/// Our library needs the distribution's by its absolute path. Where that does not exist the loader would refuse it, and
/// the plain build serves: without the distribution's library nothing asks for its private symbols either.
fn choose(folder: &Path) -> Result<Library> {
    let full = folder.join(NAME);
    if !full.is_file() && !folder.join("plain").join(NAME).is_file() {
        bail!(
            "Weir's {NAME} is not in {}\n\
             In the source tree: `make build`, then use target/weir/bin/weir. Elsewhere: set WEIR_LIB_DIR to the folder \
             that holds it.",
            folder.display()
        );
    }
    if full.is_file() {
        let needed = absolute_needs(&full)?;
        if needed.iter().all(|path| path.exists()) {
            return Ok(Library { folder: folder.to_owned(), distribution: needed.into_iter().next() });
        }
    }
    let folder = folder.join("plain");
    if !folder.join(NAME).is_file() {
        bail!("no distribution's libibverbs on this machine, and no {} for machines without", folder.display());
    }
    Ok(Library { folder, distribution: None })
}

/// The libraries that a library needs by absolute path.
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
    fn the_full_library_where_what_it_needs_is_there() {
        let dir = tempfile::tempdir().unwrap();
        build(dir.path(), Some(Path::new("/dev/null")));
        let found = choose(dir.path()).unwrap();
        assert_eq!(found, Library { folder: dir.path().into(), distribution: Some("/dev/null".into()) });
    }

    #[test]
    fn the_plain_one_where_it_is_not() {
        let dir = tempfile::tempdir().unwrap();
        build(dir.path(), Some(Path::new("/no/such/libibverbs.so.1")));
        assert!(choose(dir.path()).unwrap_err().to_string().contains("for machines without"));
        build(&dir.path().join("plain"), None);
        let found = choose(dir.path()).unwrap();
        assert_eq!(found, Library { folder: dir.path().join("plain"), distribution: None });
    }

    #[test]
    fn not_built_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        assert!(choose(dir.path()).unwrap_err().to_string().contains("make build"));
    }
}
