//! What the tests need from the machine: headers, the distribution's library, and Weir's library, linked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Programs that were compiled so far.
static COMPILED: AtomicU32 = AtomicU32::new(0);

/// Runs a command that must succeed; returns its standard output.
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

/// Compiles `tests/c/SOURCE` against the installed headers, to a program with this name. Other tests of the file may run
/// or compile the same program meanwhile: it appears as a whole. `WEIR_TEST_CFLAGS` has more options of the compiler.
#[allow(dead_code)] // Not every test needs all of this module.
pub fn compile(source: &str, name: &str, options: &[&str]) -> PathBuf {
    installed("/usr/include/infiniband/verbs.h", "libibverbs-dev");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/c").join(source);
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let unfinished = program.with_file_name(format!("{name}.{}", COMPILED.fetch_add(1, Relaxed)));
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&unfinished).arg(source).args(options);
    compiler.args(std::env::var("WEIR_TEST_CFLAGS").unwrap_or_default().split_whitespace());
    run(&mut compiler);
    fs::rename(&unfinished, &program).unwrap();
    program
}

/// Compiles a self-checking program and runs it with Weir's library: all checks must pass. Returns its output.
#[allow(dead_code)] // As above.
pub fn check(name: &str, arguments: &[&str], env: &[(&str, &str)]) -> String {
    let program = compile(&format!("{name}.c"), name, &["-libverbs", "-pthread"]);
    let mut timed = Command::new("timeout");
    timed
        .arg("120")
        .arg(&program)
        .arg("weir_lo")
        .args(arguments)
        .env("LD_LIBRARY_PATH", linked())
        .env("WEIR_INTERFACE", "lo");
    let out = run(timed.envs(env.iter().copied()));
    assert!(passed(&out), "{arguments:?} {env:?}: {out}");
    out
}

/// Whether a self-checking program reports that all checks passed.
#[allow(dead_code)] // As above.
pub fn passed(out: &str) -> bool {
    out.trim_end().ends_with(" passed, 0 failed")
}

/// The distribution's library.
#[allow(dead_code)] // As above.
pub fn distribution_library() -> PathBuf {
    let path = run(Command::new("cc").arg("-print-file-name=libibverbs.so.1"));
    installed(path.trim(), "libibverbs1");
    PathBuf::from(path.trim())
}

/// The directory `lib/weir` with Weir's library, as built by `make lib`. `WEIR_LIB_DIR` names an existing one;
/// otherwise the static library of this build is linked, once per test program.
#[allow(dead_code)] // As above.
pub fn linked() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        if let Some(dir) = std::env::var_os("WEIR_LIB_DIR") {
            return PathBuf::from(dir);
        }
        let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let tmp = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let (profile, out) = (tmp.join("profile"), tmp.join("linked"));
        fs::create_dir_all(&profile).unwrap();
        fs::copy(newest_archive(&deps), profile.join("libweir_verbs.a")).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("link.sh");
        run(Command::new(script).arg(&profile).arg(&out));
        out.join("lib/weir")
    })
}

/// The newest static library: cargo keeps those of older builds, under names with other hashes.
fn newest_archive(deps: &Path) -> PathBuf {
    fs::read_dir(deps)
        .unwrap()
        .filter_map(|entry| entry.ok())
        .filter(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name.starts_with("libweir_verbs-") && name.ends_with(".a")
        })
        .max_by_key(|entry| entry.metadata().and_then(|m| m.modified()).ok())
        .unwrap_or_else(|| panic!("no static library in {}", deps.display()))
        .path()
}

/// Fails if a package is missing that `make test` installs.
#[allow(dead_code)] // As above.
pub fn installed(path: &str, package: &str) {
    let exists = Path::new(path).is_absolute() && Path::new(path).exists();
    assert!(exists, "{path} does not exist: install {package} (`make test` installs it)");
}
