//! Where Weir's own files are.

use anyhow::{Context, Result};
use std::path::PathBuf;

/// The folder with all installed files but the `weir` command: `WEIR_LIB_DIR`, otherwise `../lib/weir` relative to the
/// folder of this process's program, which is the `weir` command. The build tree (`target/weir`) has the layout of an
/// installation.
pub fn library_folder() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("WEIR_LIB_DIR").filter(|folder| !folder.is_empty()) {
        return Ok(std::path::absolute(folder)?);
    }
    let exe = std::env::current_exe().context("cannot find the path of the weir command")?;
    let bin = exe.parent().context("the path of the weir command has no folder")?;
    Ok(bin.parent().unwrap_or(bin).join("lib/weir"))
}
