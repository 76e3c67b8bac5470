//! The ways in which programs load libibverbs: under `weir run` each of them finds Weir's devices, their files, and
//! the memory hooks.

use crate::bed::{Bed, Topology};
use crate::trial;
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use weir_stage::{Child, Side};

type Way = fn(&Bed) -> Result<()>;

pub fn trials() -> Vec<Trial> {
    let ways: [(&str, Way); 7] = [
        ("linked to libibverbs", linked),
        ("with DT_RPATH to the distribution's libibverbs", with_rpath),
        ("linked to a copy of libibverbs under another name", renamed),
        ("that opens libibverbs and asks for versions", opened),
        ("with a plugin that is linked to libibverbs", plugin),
        ("in Python", python),
        ("with another preloaded library", with_other_preload),
    ];
    ways.map(|(way, test)| trial(Topology::Loopback, &format!("a program {way} finds a device and its files"), test))
        .into()
}

fn linked(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = compile(folder.path(), "program", &["-DLINKED", "-libverbs"])?;
    finds(bed, &[program.as_os_str(), "linked".as_ref()], &[])
}

/// The loader looks in DT_RPATH before LD_LIBRARY_PATH.
fn with_rpath(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut cc = Command::new("cc");
    let library = output(cc.arg("-print-file-name=libibverbs.so.1"))?;
    let system = Path::new(library.trim()).parent().context("no folder")?;
    let path = format!("-Wl,--disable-new-dtags,-rpath,{}", system.display());
    let program = compile(folder.path(), "program", &["-DLINKED", &path, "-libverbs"])?;
    finds(bed, &[program.as_os_str(), "linked".as_ref()], &[])
}

/// As in Python wheels: the library has another soname, and the same version nodes.
fn renamed(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = |name: &str| folder.path().join(name);
    std::fs::write(
        file("copy.c"),
        "void *ibv_get_device_list(int *count) { *count = 0; return 0; }\n\
         const char *ibv_get_device_name(void *device) { (void)device; return \"\"; }\n",
    )?;
    std::fs::write(file("map"), "IBVERBS_1.1 { global: ibv_get_device_list; ibv_get_device_name; local: *; };\n")?;
    let copy = file("libibverbs-c0ffee.so.1");
    let map = format!("-Wl,--version-script={}", file("map").display());
    output(
        Command::new("cc")
            .args(["-shared", "-fPIC", "-Wl,-soname,libibverbs-c0ffee.so.1", &map, "-o"])
            .arg(&copy)
            .arg(file("copy.c")),
    )?;
    let path = format!("-Wl,-rpath,{}", folder.path().display());
    let copy = copy.to_str().context("a path in UTF-8")?;
    let program = compile(folder.path(), "program", &["-DLINKED", &path, copy])?;
    let needed = output(Command::new("readelf").arg("-d").arg(&program))?;
    ensure!(needed.contains("libibverbs-c0ffee.so.1") && !needed.contains("libibverbs.so.1]"), "{needed}");
    finds(bed, &[program.as_os_str(), "linked".as_ref()], &[])
}

fn opened(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = compile(folder.path(), "program", &[])?;
    finds(bed, &[program.as_os_str(), "opened".as_ref()], &[])
}

fn plugin(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = compile(folder.path(), "program", &[])?;
    let plugin = compile(folder.path(), "plugin.so", &["-DPLUGIN", "-shared", "-fPIC", "-libverbs"])?;
    finds(bed, &[program.as_os_str(), "plugin".as_ref(), plugin.as_os_str()], &[])
}

fn python(bed: &Bed) -> Result<()> {
    let script = "
import ctypes, os, stat
verbs = ctypes.CDLL('libibverbs.so.1')
verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
verbs.ibv_get_device_name.restype = ctypes.c_char_p
verbs.ibv_get_device_name.argtypes = [ctypes.c_void_p]
count = ctypes.c_int()
name = verbs.ibv_get_device_name(verbs.ibv_get_device_list(ctypes.byref(count))[0]).decode()
assert name.startswith('weir_'), name
assert name in os.listdir('/sys/class/infiniband')
assert os.path.realpath('/sys/class/infiniband/' + name).endswith(name)
assert open(f'/sys/class/infiniband/{name}/ports/1/link_layer').read() == 'Ethernet\\n'
assert stat.S_ISCHR(os.stat('/dev/infiniband/uverbs0').st_mode)
print('ok')";
    finds(bed, &["python3", "-c", script].map(OsStr::new), &[])
}

/// Weir's library does not displace a library that the user preloads.
fn with_other_preload(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let source = folder.path().join("other.c");
    std::fs::write(
        &source,
        "#include <stdlib.h>\n__attribute__((constructor)) static void loaded(void) { setenv(\"OTHER\", \"yes\", 1); }\n",
    )?;
    let other = folder.path().join("other.so");
    output(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&other).arg(&source))?;
    let program = compile(folder.path(), "program", &[])?;
    let program = program.to_str().context("a path in UTF-8")?;
    let script = format!("[ \"$OTHER\" = yes ] && exec {program} opened");
    finds(bed, &["sh", "-c", &script].map(OsStr::new), &[("LD_PRELOAD", other.into_os_string())])
}

/// Runs a program under `weir run`: it prints "ok" and nothing else.
fn finds(bed: &Bed, words: &[&OsStr], environment: &[(&str, OsString)]) -> Result<()> {
    let mut command = bed.weir(Side::A, &[], words);
    command.envs(environment.iter().map(|(name, value)| (*name, value)));
    let ended = Child::spawn(&mut command, "loading.c")?.wait(Duration::from_secs(60))?.success()?;
    ensure!(ended.stdout == "ok\n" && ended.stderr.is_empty(), "{}", ended.printed());
    Ok(())
}

/// Compiles loading.c, without optimisation of what is linked.
fn compile(folder: &Path, name: &str, options: &[&str]) -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/e2e/loading.c");
    let program = folder.join(name);
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source).args(options).arg("-ldl");
    output(&mut cc)?;
    Ok(program)
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}
