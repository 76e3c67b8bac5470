//! `weir man` and `weir completions`: what `weir help` says, as manual pages and for shells.

use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `weir man`.
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Folder for weir.1, weir-run.1 and so on; it is created if it does not exist
    folder: PathBuf,
}

/// Arguments of `weir completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    shell: Shell,
}

/// Writes the pages.
pub fn write(args: &ManArgs, mut command: Command) -> Result<ExitCode> {
    // Then each subcommand knows its full name.
    command.build();
    fs::create_dir_all(&args.folder)
        .and_then(|()| write_page(&args.folder, &command))
        .with_context(|| format!("cannot write manual pages into {}", args.folder.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// The pages of a command and of the commands below it.
fn write_page(folder: &Path, command: &Command) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let page = Man::new(command.clone()).title(&name).source(concat!("weir ", env!("CARGO_PKG_VERSION")));
    page.render(&mut File::create(folder.join(format!("{name}.1")))?)?;
    let below = command.get_subcommands().filter(|below| below.get_name() != "help");
    below.into_iter().try_for_each(|below| write_page(folder, below))
}

/// Prints the script for the shell.
pub fn print_completions(args: &CompletionsArgs, mut command: Command) -> Result<ExitCode> {
    let mut script = vec![];
    clap_complete::generate(args.shell, &mut command, "weir", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use clap::ValueEnum;

    use super::*;

    /// The full names of all commands, `weir-lab-run` for example.
    fn names(command: &Command) -> Vec<String> {
        let below = command.get_subcommands().filter(|below| below.get_name() != "help").flat_map(names);
        let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
        std::iter::once(name).chain(below).collect()
    }

    /// The page as text, without warnings.
    fn rendered(page: &Path) -> String {
        let mut groff = std::process::Command::new("groff");
        let output = groff.args(["-k", "-man", "-Tutf8", "-ww", "-P-c", "-P-b", "-P-u"]).arg(page).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{}: {output:?}", page.display());
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn every_command_has_a_page_that_renders_and_the_page_of_weir_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let page = |name: &str| folder.path().join("man1").join(format!("{name}.1"));
        write(&ManArgs { folder: folder.path().join("man1") }, crate::Cli::command()).unwrap();
        let mut command = crate::Cli::command();
        command.build();
        let names = names(&command);
        assert!(names.contains(&"weir-lab-run".to_owned()), "{names:?}");
        for name in &names {
            assert!(rendered(&page(name)).contains(&format!("NAME {name} - ")), "{name}: {}", rendered(&page(name)));
        }
        let first = rendered(&page("weir"));
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            assert!(first.contains(&format!("weir-{}(1)", below.get_name())), "{}: {first}", below.get_name());
        }
    }

    #[test]
    fn the_completions_of_every_shell_name_every_command() {
        let mut command = crate::Cli::command();
        for shell in Shell::value_variants() {
            let mut script = vec![];
            clap_complete::generate(*shell, &mut command, "weir", &mut script);
            let script = String::from_utf8(script).unwrap();
            for below in command.get_subcommands() {
                assert!(script.contains(below.get_name()), "{shell}: {}", below.get_name());
            }
        }
    }
}
