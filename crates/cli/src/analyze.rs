//! `weir analyze`: what captures tell, and with `--live` what running processes send and receive.

mod live;

use anyhow::{Context, Result, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use live::Watch;
use std::fs::{self, File};
use std::io::{self, IsTerminal};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use weir_analyze::report::{Document, Style, comments, html, text};
use weir_analyze::{Analysis, Options};
use weir_capture::{Annotated, CaptureError, Frame, Reader};

/// Arguments of `weir analyze`.
#[derive(Args, Debug)]
#[command(after_help = STATUS)]
pub struct AnalyzeArgs {
    /// Captures: pcap or pcapng, compressed with gzip or zstd or not; `-` is standard input. Several files are parts of
    /// one capture, or captures of both sides
    #[arg(required_unless_present = "live", conflicts_with = "live", value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Watch the running processes that use Weir, and those that start, instead of files: new findings appear as they
    /// come, and the report at the end (Ctrl-C). The processes need no option
    #[arg(long)]
    live: bool,

    /// With --live: watch this process only, until it ends
    #[arg(long, value_name = "PID", requires = "live")]
    pid: Option<u32>,

    /// With --live: end after this time
    #[arg(long, value_name = "SECONDS", requires = "live", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,

    /// Print JSON instead of text; with --live a line for each new finding, and a line for the report
    #[arg(long)]
    json: bool,

    /// Also write the report as a page for a browser: one file, with drawings of the packets
    #[arg(long, value_name = "OUT.html")]
    html: Option<PathBuf>,

    /// The adapter of the hosts, if it is known: a name that `weir profiles` lists, or a file. Its timeouts are compared
    /// with those in the capture
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,

    /// Write a copy of the captures, with the findings as comments of their frames, for Wireshark
    #[arg(long, value_name = "OUT.pcapng", conflicts_with = "live")]
    annotate: Option<PathBuf>,

    /// Connections that the table shows
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    connections: usize,
}

const STATUS: &str = "Exit status: 0 if nothing was found, 1 if something was found, 2 after an error.";

/// Exit status after an error.
const ERROR: u8 = 2;

/// Analyzes the captures and prints the report.
pub fn run(args: &AnalyzeArgs) -> ExitCode {
    match analyzed(args) {
        Ok(found) => ExitCode::from(u8::from(found)),
        Err(error) => {
            eprintln!("weir: {error:#}");
            ExitCode::from(ERROR)
        }
    }
}

/// Whether anything was found.
fn analyzed(args: &AnalyzeArgs) -> Result<bool> {
    let profile = args.profile.as_deref().map(weir_profiles::load).transpose()?;
    let mut analysis = Analysis::new(Options { profile });
    let style = Style { colours: io::stdout().is_terminal(), connections: args.connections };
    if args.live {
        let limit = args.seconds.map(Duration::from_secs);
        let document = live::run(&Watch { pid: args.pid, limit, json: args.json, style }, analysis)?;
        return show(args, &document, style);
    }
    let files = in_order(&args.files)?;
    if let Some(out) = &args.annotate {
        let twice = files.iter().all(|path| path.as_os_str() != "-");
        ensure!(twice, "--annotate reads the captures twice: name a file instead of `-`");
        check_output("--annotate", out, &files)?;
    }
    if let Some(out) = &args.html {
        check_output("--html", out, &files)?;
    }
    for (number, path) in files.iter().enumerate() {
        each_frame(path, |frame| {
            analysis.frame(number as u16, frame);
            Ok(())
        })?;
    }
    let report = analysis.finish();
    let names: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
    let document = Document::new(&report, &names);
    let found = show(args, &document, style)?;
    // After the report, so that an error costs no result.
    if let Some(out) = &args.annotate {
        annotate(out, &files, &names, &document)?;
    }
    Ok(found)
}

/// Prints the report, and writes its page. Whether anything was found.
fn show(args: &AnalyzeArgs, document: &Document, style: Style) -> Result<bool> {
    if args.json {
        println!("{}", document.json());
    } else {
        print!("{}", text(document, style));
    }
    if let Some(path) = &args.html {
        write_page(path, document)?;
    }
    Ok(!document.findings.is_empty())
}

/// Writes the page, and says where it is: on standard error, because standard output may be JSON.
fn write_page(path: &Path, document: &Document) -> Result<()> {
    fs::write(path, html(document)).with_context(|| {
        format!("cannot write the report to {}: name a file in a folder that can be written", path.display())
    })?;
    eprintln!("weir: the report is in {}: open it in a browser", path.display());
    Ok(())
}

/// The files, each opened, in the order of their first frames: parts of a capture may be named in any order.
fn in_order(files: &[PathBuf]) -> Result<Vec<&Path>> {
    let mut order: Vec<(u64, &Path)> = Vec::new();
    for path in files {
        // What comes from a pipe can be read only once.
        let first = if files.len() == 1 || !is_regular(path) {
            0
        } else {
            let mut reader = opened(path)?;
            reader.next_frame().ok().flatten().map_or(0, |frame| frame.timestamp)
        };
        order.push((first, path));
    }
    order.sort_by_key(|(first, _)| *first);
    Ok(order.into_iter().map(|(_, path)| path).collect())
}

fn is_regular(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file())
}

fn opened(path: &Path) -> Result<Reader> {
    weir_capture::open(path).map_err(|error| match error {
        CaptureError::Open { .. } => error.into(), // it has the path
        error => anyhow::Error::new(error).context(path.display().to_string()),
    })
}

/// Frames between two looks at the progress.
const FRAMES: u64 = 1 << 16;

/// Gives each frame of a file to `take`, with a progress bar on a terminal.
fn each_frame(path: &Path, mut take: impl FnMut(&Frame<'_>) -> Result<()>) -> Result<()> {
    let mut reader = opened(path)?;
    let bar = progress(path);
    loop {
        match reader.next_frame() {
            Ok(Some(frame)) => {
                let number = frame.number;
                take(&frame)?;
                if number % FRAMES == 0 {
                    bar.set_position(reader.position());
                }
            }
            Ok(None) => break,
            // What comes before the cut is as good as ever.
            Err(error @ CaptureError::Truncated { .. }) => {
                bar.suspend(|| eprintln!("weir: {}: {error}; what comes before is analyzed", path.display()));
                break;
            }
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        }
    }
    bar.finish_and_clear();
    if let Some(dropped) = reader.statistics().dropped.filter(|dropped| *dropped > 0) {
        let name = path.display();
        eprintln!("weir: {name}: the capture lacks {dropped} frames: some of what looks lost may be in them");
    }
    Ok(())
}

/// What is written must not replace a capture.
fn check_output(option: &str, out: &Path, files: &[&Path]) -> Result<()> {
    for path in files {
        let inode = |path: &Path| path.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()));
        let same = inode(out).zip(inode(path)).is_some_and(|(out, path)| out == path);
        ensure!(!same, "{option} {}: this is one of the captures; name another file", out.display());
    }
    Ok(())
}

/// Writes the copy of the captures with comments.
fn annotate(out: &Path, files: &[&Path], names: &[String], document: &Document) -> Result<()> {
    let comments = comments(document);
    let file = File::create(out).with_context(|| {
        format!("cannot write the copy to {}: name a file in a folder that can be written", out.display())
    })?;
    let mut copy = Annotated::new(file, concat!("weir ", env!("CARGO_PKG_VERSION")));
    for (number, (path, name)) in files.iter().zip(names).enumerate() {
        let number = number as u16;
        each_frame(path, |frame| {
            let own = comments.get(&(number, frame.number)).map_or(&[][..], Vec::as_slice);
            Ok(copy.frame(number, name, frame, own)?)
        })?;
    }
    Ok(copy.flush()?)
}

/// On a terminal, how much of the file has been read.
fn progress(path: &Path) -> ProgressBar {
    let length = path.metadata().map_or(0, |metadata| metadata.len());
    if !io::stderr().is_terminal() || length == 0 {
        return ProgressBar::hidden();
    }
    let style = "{msg} {bar:30} {bytes}/{total_bytes} {eta}";
    let bar = ProgressBar::new(length).with_style(ProgressStyle::with_template(style).expect("the template is valid"));
    let name = path.file_name().map_or_else(|| "-".into(), |name| name.to_string_lossy().into_owned());
    bar.with_message(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> Document {
        Document::new(&Analysis::new(Options::default()).finish(), &["a.pcap".to_owned()])
    }

    #[test]
    fn the_page_is_written_and_replaces_an_older_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.html");
        fs::write(&path, "older".repeat(100_000)).unwrap();
        write_page(&path, &document()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), html(&document()));
    }

    #[test]
    fn a_page_that_cannot_be_written_is_an_error_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("no/such/folder/out.html");
        let error = format!("{:#}", write_page(&path, &document()).unwrap_err());
        assert!(error.contains("no/such/folder/out.html") && error.contains("No such file"), "{error}");
    }

    #[test]
    fn what_is_written_does_not_replace_a_capture() {
        let folder = tempfile::tempdir().unwrap();
        let capture = folder.path().join("a.pcap");
        fs::write(&capture, "packets").unwrap();
        let same = folder.path().join(".").join("a.pcap");
        let error = check_output("--html", &same, &[&capture]).unwrap_err().to_string();
        assert!(error.starts_with("--html") && error.contains("one of the captures"), "{error}");
        check_output("--html", &folder.path().join("b.pcap"), &[&capture]).unwrap();
    }
}
