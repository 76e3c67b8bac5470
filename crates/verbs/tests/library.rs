//! The linked library: its symbols and versions against the distribution's, and whether programs find and load it.

mod system;

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::process::Command;

const NAME: &str = "libibverbs.so.1";

/// Symbols with their versions: `name@@VERSION` for a default version.
type Symbols = BTreeSet<String>;

#[test]
fn every_public_symbol_has_the_version_that_programs_need() {
    let distribution = system::distribution_library();
    let theirs: Symbols = public(&distribution).into_iter().filter(|s| s.contains("@@")).collect();
    assert!(theirs.len() > 70, "{theirs:?}");
    let ours = public(&system::linked().join(NAME));
    let missing: Vec<_> = theirs.difference(&ours).collect();
    assert!(missing.is_empty(), "{missing:?}");
    // Later releases may add public symbols; no symbol of Rust may be exported.
    let foreign = defined(&system::linked().join(NAME)).into_iter();
    let (own, foreign): (Symbols, Symbols) =
        foreign.filter(|s| !s.contains("ibv_") && !s.contains("@IBVERBS_PRIVATE_")).partition(|s| s.contains("@WEIR_"));
    assert_eq!(foreign, interposed());
    let expected = ["weir_counters@@WEIR_1.0", "weir_publish@@WEIR_1.0"].map(str::to_owned);
    assert_eq!(own, Symbols::from(expected));
}

/// Functions of the C library that this library interposes, with the version of each. The C library must have each of
/// them by name and version.
fn interposed() -> Symbols {
    let map = include_str!("../libibverbs.map");
    let mut version = "";
    let mut ours = Symbols::new();
    for line in map.lines() {
        if let Some((name, _)) = line.split_once(" {") {
            version = name;
        } else if let Some(symbol) = line.trim().strip_suffix(';')
            && version.starts_with("GLIBC_")
            && symbol != "}"
            && symbol != "pthread_sigmask"
        {
            ours.insert(format!("{symbol}@@{version}"));
        }
    }
    assert!(ours.len() > 60, "{ours:?}");
    let path = system::run(Command::new("cc").arg("-print-file-name=libc.so.6"));
    let theirs = defined(Path::new(path.trim()));
    // Older releases lack functions that no program needs there.
    let later = |name: &&String| ["@@GLIBC_2.33", "@@GLIBC_2.34"].iter().any(|version| name.ends_with(version));
    let missing: Vec<_> = ours.difference(&theirs).filter(|name| !later(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    // Before release 2.32 pthread_sigmask is in libpthread.
    let sigmask = ["pthread_sigmask@GLIBC_2.2.5", "pthread_sigmask@@GLIBC_2.32"].map(str::to_owned);
    assert!(theirs.contains(&sigmask[0]) == theirs.contains(&sigmask[1]), "{sigmask:?}");
    ours.extend(sigmask);
    ours
}

#[test]
fn each_private_node_exports_the_functions_of_clients() {
    let symbols = defined(&system::linked().join(NAME));
    for node in [34, 57, 59, 64, 65] {
        for name in ["ibv_query_gid_type", "ibv_wr_opcode_str"] {
            let wanted = format!("{name}@IBVERBS_PRIVATE_{node}");
            assert!(symbols.contains(&wanted), "{wanted}");
        }
    }
}

/// So that the distribution's provider libraries load, which programs are linked to.
#[test]
fn every_private_symbol_of_the_distribution_is_there() {
    let private = |file: &Path| -> Symbols {
        let all = defined(file).into_iter().map(|s| s.replace("@@", "@"));
        all.filter(|s| s.contains("@IBVERBS_PRIVATE_") && !s.starts_with("IBVERBS_PRIVATE_")).collect()
    };
    let theirs = private(&system::distribution_library());
    assert!(theirs.len() > 70, "{theirs:?}");
    let ours = private(&system::linked().join(NAME));
    let missing: Vec<_> = theirs.difference(&ours).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Programs that come with libraries of their own (Python's wheels) crash at their end if the distribution's are
/// loaded beside these.
#[test]
fn it_needs_only_the_c_library() {
    let needed = system::run(Command::new("readelf").arg("-d").arg(system::linked().join(NAME)));
    let needed: Vec<&str> = needed.lines().filter(|line| line.contains("(NEEDED)")).collect();
    let known = ["libgcc_s", "libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "libutil.so", "ld-linux"];
    assert!(needed.iter().all(|line| known.iter().any(|name| line.contains(name))), "{needed:?}");
}

#[test]
fn dlopen_and_dlvsym_find_every_symbol() {
    let library = Library::open(&system::linked().join(NAME));
    let map = include_str!("../libibverbs.map");
    let mut version = "";
    let mut found = 0;
    for line in map.lines() {
        if let Some((name, _)) = line.split_once(" {") {
            version = name;
        } else if let Some(symbol) = line.trim().strip_suffix(';')
            && ["ibv_", "weir_"].iter().any(|part| symbol.contains(part))
        {
            assert!(!library.symbol(symbol, version).is_null(), "{symbol}@{version}");
            found += 1;
        }
    }
    assert!(found >= 82, "{found}");
    assert!(library.symbol("ibv_open_device", "IBVERBS_1.14").is_null());
}

/// Programs print and compare them, so the distribution's library is the reference.
#[test]
fn names_and_rates_are_those_of_the_distribution() {
    let distribution = system::distribution_library();
    let (theirs, ours) = (Library::open(&distribution), Library::open(&system::linked().join(NAME)));
    let names = ["ibv_wc_status_str", "ibv_event_type_str", "ibv_node_type_str", "ibv_port_state_str"];
    for function in names {
        for n in -2..40 {
            let name = |l: &Library| l.name_of(function, n);
            // Release 59 added an event.
            let added = function == "ibv_event_type_str" && n == 20 && name(&theirs) == "unknown";
            assert!(added || name(&ours) == name(&theirs), "{function}({n}): {}, {}", name(&ours), name(&theirs));
        }
    }
    for (function, version, limit) in [
        ("ibv_rate_to_mult", "IBVERBS_1.0", 40),
        ("mult_to_ibv_rate", "IBVERBS_1.0", 600),
        ("ibv_rate_to_mbps", "IBVERBS_1.1", 40),
        ("mbps_to_ibv_rate", "IBVERBS_1.1", 1_300_000),
    ] {
        let (ours, theirs) = (ours.number(function, version), theirs.number(function, version));
        for n in -2..limit {
            assert_eq!(ours(n), theirs(n), "{function}({n})");
        }
    }
}

/// `ibv_devices` is the distribution's program, unaware of Weir.
#[test]
fn an_unchanged_program_lists_weir_devices() {
    system::installed("/usr/bin/ibv_devices", "ibverbs-utils");
    let list =
        system::run(Command::new("ibv_devices").env("LD_LIBRARY_PATH", system::linked()).env("WEIR_INTERFACE", "lo"));
    assert!(list.contains("weir_lo"), "{list}");
}

/// Loading prints nothing, starts no thread and opens no file.
#[test]
fn loading_does_nothing() {
    let script = "import ctypes, os, sys\n\
        count = lambda: (len(os.listdir('/proc/self/fd')), len(os.listdir('/proc/self/task')))\n\
        before = count()\n\
        ctypes.CDLL(sys.argv[1])\n\
        assert before == count(), (before, count())";
    let file = system::linked().join(NAME);
    let printed =
        system::run(Command::new("python3").args(["-c", script]).arg(file).stderr(std::process::Stdio::inherit()));
    assert_eq!(printed, "");
}

/// Public symbols: those in nodes named `IBVERBS_1…`.
fn public(file: &Path) -> Symbols {
    defined(file).into_iter().filter(|s| s.contains("@IBVERBS_1")).collect()
}

/// All defined dynamic symbols, except the names of the nodes.
fn defined(file: &Path) -> Symbols {
    system::run(Command::new("nm").arg("-D").arg("--defined-only").arg(file))
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .filter(|s| s.contains('@') && !["IBVERBS", "GLIBC", "WEIR"].iter().any(|node| s.starts_with(node)))
        .map(str::to_owned)
        .collect()
}

/// A library that is loaded by its path, in addition to any other library of the same name.
struct Library(*mut c_void);

impl Library {
    fn open(path: &Path) -> Library {
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a C string; the library's initialisers have no preconditions. It gets a namespace of its own,
        // because both libraries have the soname libibverbs.so.1.
        let handle = unsafe { libc::dlmopen(libc::LM_ID_NEWLM, name.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{}", last_error());
        Library(handle)
    }

    fn symbol(&self, name: &str, version: &str) -> *mut c_void {
        unsafe extern "C" {
            fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
        }
        let (name, version) = (CString::new(name).unwrap(), CString::new(version).unwrap());
        // SAFETY: an open handle and C strings.
        unsafe { dlvsym(self.0, name.as_ptr(), version.as_ptr()) }
    }

    fn number(&self, function: &str, version: &str) -> extern "C" fn(c_int) -> c_int {
        let symbol = self.symbol(function, version);
        assert!(!symbol.is_null(), "{function}");
        // SAFETY: the requested functions have this type in verbs.h.
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(c_int) -> c_int>(symbol) }
    }

    fn name_of(&self, function: &str, n: c_int) -> String {
        let symbol = self.symbol(function, "IBVERBS_1.1");
        assert!(!symbol.is_null(), "{function}");
        // SAFETY: as above; the result is a constant string.
        unsafe {
            let name = std::mem::transmute::<*mut c_void, extern "C" fn(c_int) -> *const c_char>(symbol);
            CStr::from_ptr(name(n)).to_str().unwrap().to_owned()
        }
    }
}

fn last_error() -> String {
    // SAFETY: the string belongs to this thread until its next call.
    unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned()
}
