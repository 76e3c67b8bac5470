//! Finds Weir's libibverbs.so.1, and the layer of `weir doctor`.

use anyhow::{Result, bail, ensure};
use std::path::{Path, PathBuf};

/// The soname that programs need.
pub const NAME: &str = "libibverbs.so.1";

/// What to do about a missing library.
const INSTALLED: &str = "In the source tree: run `make build`, then use target/weir/bin/weir. Elsewhere: set \
                         WEIR_LIB_DIR to the folder that contains it.";
/// The layer of `weir doctor`.
const LAYER: &str = "libweir-layer.so";

/// The path of the layer between programs and their libibverbs.
pub fn layer() -> Result<PathBuf> {
    let path = weir_stage::library_folder()?.join(LAYER);
    ensure!(path.is_file(), "{} does not exist\n{INSTALLED}", path.display());
    Ok(path)
}

/// The folder of the library, for LD_LIBRARY_PATH.
pub fn folder() -> Result<PathBuf> {
    let folder = weir_stage::library_folder()?;
    check(&folder)?;
    Ok(folder)
}

fn check(folder: &Path) -> Result<()> {
    if !folder.join(NAME).is_file() {
        bail!("Weir's {NAME} is not in {}\n{INSTALLED}", folder.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_an_error_that_names_make_build() {
        let dir = tempfile::tempdir().unwrap();
        assert!(check(dir.path()).unwrap_err().to_string().contains("make build"));
        std::fs::write(dir.path().join(NAME), "").unwrap();
        check(dir.path()).unwrap();
    }
}
