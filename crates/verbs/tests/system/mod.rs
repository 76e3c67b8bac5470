//! What the tests need of the machine: headers, the distribution's library, and our own library, linked.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a command that must succeed; its standard output.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Whether there is something to compare with. In CI there must be.
#[allow(dead_code)] // Not every test needs all of this module.
pub fn has_headers() -> bool {
    has("/usr/include/infiniband/verbs.h", "libibverbs-dev")
}

/// The distribution's library, or nothing, which a test then says. In CI it must be there.
#[allow(dead_code)] // As above.
pub fn distribution_library() -> Option<PathBuf> {
    let path = run(Command::new("cc").arg("-print-file-name=libibverbs.so.1"));
    has(path.trim(), "libibverbs1").then(|| PathBuf::from(path.trim()))
}

/// Our library as `make lib` makes it, from the static library of this build: the directory `lib/weir`.
#[allow(dead_code)] // As above.
pub fn linked() -> PathBuf {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("linked-{}", std::process::id()));
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The directory above `tmp` is the target directory; cargo puts the static library beside the profile's programs.
    let profile = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned();
    run(Command::new(crate_dir.join("link.sh")).arg(profile).arg(&out));
    out.join("lib/weir")
}

fn has(path: &str, package: &str) -> bool {
    let there = Path::new(path).is_absolute() && Path::new(path).exists();
    assert!(there || std::env::var_os("CI").is_none(), "CI must install {package}");
    if !there {
        eprintln!("SKIPPED: no {path}; install {package}");
    }
    there
}
