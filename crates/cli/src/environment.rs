//! The environment variables that make a program use Weir, and `weir env`, which prints them for a shell.

use crate::library;
use crate::options::Options;
use anyhow::{Result, ensure};
use clap::Args;
use std::process::ExitCode;

/// Arguments of `weir env`.
#[derive(Args, Debug)]
pub struct EnvArgs {
    #[command(flatten)]
    options: Options,

    /// Print one JSON object instead of export lines
    #[arg(long)]
    json: bool,
}

/// Prints export lines, for `eval "$(weir env)"`.
pub fn run(args: &EnvArgs) -> Result<ExitCode> {
    let variables = variables(&args.options)?;
    if args.json {
        let object: serde_json::Map<_, _> =
            variables.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        println!("{}", serde_json::to_string_pretty(&object)?);
    } else {
        for (name, value) in variables {
            println!("export {name}={}", quoted(&value));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// All variables, those of the loader first.
pub fn variables(options: &Options) -> Result<Vec<(&'static str, String)>> {
    let before = |name: &str| std::env::var(name).unwrap_or_default();
    let chosen = options.variables()?;
    let guarded = chosen.iter().any(|(name, _)| *name == "WEIR_GUARD");
    if options.system {
        ensure!(guarded, "--system: without --guard there is nothing to do; add --guard auto");
        let other: Vec<&str> = chosen.iter().map(|(name, _)| *name).filter(|name| *name != "WEIR_GUARD").collect();
        let names = other.join(", ");
        ensure!(other.is_empty(), "--system: Weir's adapter is not there to obey {names}; leave --system or these out");
        return Ok([("LD_PRELOAD", with_layer(&before("LD_PRELOAD"))?)].into_iter().chain(chosen).collect());
    }
    let folder = library::folder()?.to_string_lossy().into_owned();
    let preloaded = preload(&folder, &before("LD_PRELOAD"));
    let mut variables = vec![
        ("LD_LIBRARY_PATH", search_path(&folder, &before("LD_LIBRARY_PATH"))),
        ("LD_PRELOAD", if guarded { with_layer(&preloaded)? } else { preloaded }),
    ];
    variables.extend(chosen);
    // Without a run folder the program shows no counters (`weir stat`), which is no error.
    if let Ok(run) = weir_device::stat::folder::prepare() {
        variables.push((weir_device::stat::folder::VARIABLE, run.to_string_lossy().into_owned()));
    }
    Ok(variables)
}

/// Weir's folder and the old entries without empty ones: to the loader an empty entry means the current folder.
pub fn search_path(folder: &str, before: &str) -> String {
    let rest = before.split(':').filter(|entry| !entry.is_empty() && *entry != folder);
    std::iter::once(folder).chain(rest).collect::<Vec<_>>().join(":")
}

/// The libraries that are loaded before all others: the old entries, then Weir's library.
///
/// LD_LIBRARY_PATH alone does not reach a program with DT_RPATH, nor a copy of libibverbs under another name, and the
/// functions of the C library that Weir interposes reach a library that is opened later only if they come before the
/// C library's. Weir's library comes last among the preloaded ones, because some of those insist on being the first
/// (AddressSanitizer), and each calls the next.
fn preload(folder: &str, before: &str) -> String {
    let full = format!("{folder}/{}", library::NAME);
    // Spaces and colons separate the entries. A bare name is found by LD_LIBRARY_PATH, except for DT_RPATH.
    let ours = if full.contains([' ', ':']) { library::NAME.to_owned() } else { full };
    let rest = before.split([' ', ':']).filter(|entry| !entry.is_empty() && *entry != ours);
    rest.chain([ours.as_str()]).collect::<Vec<_>>().join(":")
}

/// The layer that has the guards, then what else is preloaded: the layer calls the next definition of each function.
pub fn with_layer(before: &str) -> Result<String> {
    let layer = library::layer()?.to_string_lossy().into_owned();
    ensure!(
        !layer.contains([' ', ':']),
        "the path of {layer} has a space or a colon, which LD_PRELOAD cannot have: install Weir elsewhere"
    );
    let rest = before.split([' ', ':']).filter(|entry| !entry.is_empty() && *entry != layer);
    Ok(std::iter::once(layer.as_str()).chain(rest).collect::<Vec<_>>().join(":"))
}

/// Single-quoted for a POSIX shell, unless it needs no quotes.
fn quoted(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,%+@".contains(c);
    if !value.is_empty() && value.chars().all(plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weirs_folder_comes_first_and_once() {
        assert_eq!(search_path("/w", ""), "/w");
        assert_eq!(search_path("/w", "/a::/w:/b:"), "/w:/a:/b");
    }

    #[test]
    fn weirs_library_is_preloaded_last_and_once() {
        assert_eq!(preload("/w", ""), "/w/libibverbs.so.1");
        assert_eq!(preload("/w", "a.so /w/libibverbs.so.1:b.so"), "a.so:b.so:/w/libibverbs.so.1");
        assert_eq!(preload("/w x", "a.so"), "a.so:libibverbs.so.1");
    }

    #[test]
    fn a_shell_reads_back_the_quoted_value() {
        for value in ["plain/1.0", "two words", "it's", "$HOME `x` \"y\" \\", ""] {
            let script = format!("printf %s {}", quoted(value));
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), value);
        }
    }
}
